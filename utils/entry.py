"""The first call of every command. What it imports takes a few milliseconds.

A missing package or system library is one line that names the way out, not a traceback: the
commonest first error is a shell without the environment. MindSpore 2.10 also needs libgomp, and a
libstdc++ of GCC 9 or newer, which openEuler 20.03, Kylin V10 and CentOS 7 do not have.
"""

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Optional

from utils import signals

TOP_LEVEL = __name__.partition(".")[0]  # a module of the zoo that is missing is a bug
ADVICE = (
    "source .venv/bin/activate, which bash scripts/quickstart.sh makes, or "
    "pip install -r requirements.txt"
)

LIBRARIES = {  # in the loader's message, which also names the library: what to do
    "static TLS": "export LD_PRELOAD with the path of this library",
    "libgomp.so.1": "apt-get install libgomp1, or yum install libgomp",
    "libz.so.1": "apt-get install zlib1g, or yum install zlib",
    "GLIBC_": "a system with a newer C library, glibc",
    "GLIBCXX_": "conda install -c conda-forge libstdcxx-ng, or a system with GCC 9 or newer",
}


def prepare_process(name: str) -> None:
    """Prepares the process of an entry point, which calls this before it imports anything else.

    `name` is its `__name__`: an entry point that another program imports leaves signals alone.
    A package that is missing ends the process with one line.
    """
    if name == "__main__":
        signals.watch()
    from utils import runtime

    sys.excepthook = explain_error
    runtime.set_environment()


def explain_error(
    kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]
) -> None:
    """A `sys.excepthook`: prints one line for what is missing and ends with exit status 2."""
    advice = advise_library(str(error)) if isinstance(error, ImportError) else ""
    if advice:
        print(f"error: {sys.executable} cannot load a package: {error}: {advice}", file=sys.stderr)
        sys.exit(2)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    name = (missing or "").partition(".")[0]
    if name in ("", TOP_LEVEL) or find_spec(name):
        sys.__excepthook__(kind, error, traceback)
        return
    name = name if find_spec("mindspore") else "MindSpore"
    print(f"error: {sys.executable} has no {name}: {ADVICE}", file=sys.stderr)
    sys.exit(2)


def advise_library(message: str) -> str:
    """What to do about a library that the loader's message names; else empty."""
    return next((advice for name, advice in LIBRARIES.items() if name in message), "")
