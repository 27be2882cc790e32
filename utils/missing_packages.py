"""A missing package is one line that names the way out, not a traceback.

The commonest first error is a shell without the environment.
"""

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Optional

TOP_LEVEL = __name__.partition(".")[0]  # a module of the zoo that is missing is a bug
ADVICE = (
    "source .venv/bin/activate, which bash scripts/quickstart.sh makes, or "
    "pip install -r requirements.txt"
)


def explain_error(
    kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]
) -> None:
    """A `sys.excepthook`: prints one line for a missing package and ends with exit status 2."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    name = (missing or "").partition(".")[0]
    if name in ("", TOP_LEVEL) or find_spec(name):
        sys.__excepthook__(kind, error, traceback)
        return
    name = name if find_spec("mindspore") else "MindSpore"
    print(f"error: {sys.executable} has no {name}: {ADVICE}", file=sys.stderr)
    sys.exit(2)


def install_hook() -> None:
    """Explains missing packages from now on, also those that are missing at an import."""
    sys.excepthook = explain_error
