"""The Python interface of the zoo: `import mindspore_video_zoo as zoo`; docs/python.md.

The code of the zoo imports its own modules by short names, `from utils.files import ROOT`, as its
commands do. A program may have modules of its own with these names. So a finder loads every module
below `mindspore_video_zoo.` with an `__import__` of its own, which puts the name of this package
before the short names. Python takes `__import__` from the `__builtins__` of the module that
imports, so modules outside of this package are not affected, and no short name appears in
`sys.modules`.
"""

import os
import signal
import sys

if os.path.basename(sys.argv[0]) == "zoo":  # the command, until its script watches the signals
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

import builtins
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER if (FOLDER / "utils").is_dir() else FOLDER.parents[1]  # installed, or a checkout
OWN = {path.parent.name for path in ROOT.glob("*/network.py")} | {"benchmarks", "scripts", "utils"}


def import_module(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> ModuleType:
    """`__import__` for the modules of the zoo."""
    first = name.partition(".")[0]
    is_own = level == 0 and first in OWN
    name = f"{__name__}.{name}" if is_own else name
    module = builtins.__import__(name, globals, locals, fromlist, level)
    return sys.modules[f"{__name__}.{first}"] if is_own and not fromlist else module


BUILTINS = {**vars(builtins), "__import__": import_module}


class OwnLoader(SourceFileLoader):
    """Loads a module of the zoo, in which `import_module` imports."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = BUILTINS
        super().exec_module(module)


class OwnFinder:
    """Finds the modules of the zoo in its checkout, or in the installed package."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if not name.startswith(f"{__name__}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = OwnLoader(name, spec.origin)
        return spec


__path__ = [str(ROOT)]
sys.meta_path[:0] = [OwnFinder]  # type: ignore[list-item]

from mindspore_video_zoo.utils.predict.model import Model, list_recipes, load

__all__ = ["Model", "list_recipes", "load"]
