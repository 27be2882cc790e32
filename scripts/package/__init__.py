"""The Python interface of the zoo: `import mindspore_video_zoo as zoo`; docs/python.md.

The code of the zoo imports its own modules by short names, `from utils.files import ROOT`, as its
commands do. In a wheel these imports have the name of this package in front (setup.py), so that a
program may have modules of its own with the short names. A checkout or an editable installation
goes on the path instead.
"""

import os
import signal
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
# A command, until its script watches the signals.
if os.path.basename(sys.argv[0]) == "zoo" or sys.argv[0].startswith(FOLDER):
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

from pathlib import Path

CODE = Path(__file__).resolve().parent
ROOT = CODE if (CODE / "utils").is_dir() else CODE.parents[1]  # of a wheel, or a checkout
__path__ = [str(ROOT)]
sys.path[:0] = [] if ROOT == CODE else [str(ROOT)]
other = sys.modules.get("utils")
if ROOT != CODE and other and ROOT not in Path(str(other.__file__)).parents:
    raise ImportError(
        f"{other.__file__} is imported already, and this checkout needs the name utils itself: "
        "install it by `pip install .` instead of `pip install -e .`"
    )

from utils.inference.model import Model, list_recipes, list_weights, load, load_cell, start
from utils.weights.description import VERSION as __version__

__all__ = ["Model", "__version__", "list_recipes", "list_weights", "load", "load_cell", "start"]


def __dir__() -> list[str]:
    return __all__
