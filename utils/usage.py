"""How a command is used, told without MindSpore; and output that nobody reads any more."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's, with a mistake told in one line, as everywhere here."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; --help shows the usage\n")


def show_usage(usage: str) -> None:
    """Prints the usage and exits, where the command line asks for it."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        with quietly():
            print(usage.strip())
        sys.exit(0)


def fill_closed_streams() -> None:
    """Opens /dev/null as each of stdin, stdout and stderr that the caller has closed.

    Else the next file, perhaps a checkpoint, would get its number and what libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def take_nothing(usage: str) -> None:
    """The same for a command without arguments; any other is the user's mistake."""
    show_usage(usage)
    if sys.argv[1:]:
        print(f"error: {sys.argv[1]}: this command takes no arguments", file=sys.stderr)
        sys.exit(2)


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, a reader of our output who has gone, as `head` does, ends the process in silence."""
    try:
        try:
            yield
        finally:
            flush_stdout()  # here, and not when the interpreter ends
    except BrokenPipeError:
        os._exit(141)


def flush_stdout() -> None:
    """Raises ValueError where the disk below stdout takes no more."""
    try:
        if sys.stdout:  # None where the caller closed it
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ValueError(f"cannot write to stdout: {error.strerror}") from None
