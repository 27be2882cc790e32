"""The first call of every command. What it imports takes a few milliseconds."""

import sys

from utils import signals


def prepare_process(name: str) -> None:
    """Prepares the process of an entry point, which calls this before it imports anything else.

    `name` is its `__name__`: an entry point that another program imports leaves signals alone.
    A package that is missing ends the process with one line.
    """
    if name == "__main__":
        signals.watch()
    from utils import missing_packages, runtime

    sys.excepthook = missing_packages.explain_error
    runtime.set_environment()
