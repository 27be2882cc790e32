"""Messages for the terminal: one printable line of bounded length, whatever is quoted in them."""

import contextlib
import difflib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from utils.files import escape_control

LINE = 1000  # characters of any message
SETTINGS_LINE = 300  # of one about a yaml or the command line, whose values may be anything
VALUE = 80  # of a value quoted in a message
LONGEST_NAME = 100  # characters of an unknown name that are compared with the real ones


class Interrupted(Exception):
    """Stopped by ctrl-C; the message says what is safe and how to go on."""


class Failed(RuntimeError):
    """The machine failed, not the user and not this code; the message is one line.

    Of an error in a data pipeline MindData keeps the text alone, in a RuntimeError of its own.
    """


def cut(text: str, most: int = LINE) -> str:
    """The text itself, or its beginning and its end, `most` characters together."""
    if len(text) <= most:
        return text
    end = (most - 5) // 3  # the end often says what to do
    return f"{text[: most - 5 - end]} ... {text[-end:]}"


def quote(value: Any) -> str:
    """The value as Python writes it, at most VALUE characters."""
    try:
        return cut(repr(value), VALUE)
    except ValueError:  # Python writes whole numbers of at most 4300 digits
        return "a number of thousands of digits"


def check_choice(name: str, names: Any, what: str) -> None:
    """Raises ValueError if `name` is none of `names`, with the nearest that is."""
    if name in names:
        return
    gap = "" if what[-1] in ".-" else " "  # "setting data." and "option --" end in half a name
    name = cut(name, LONGEST_NAME)
    raise ValueError(f"unknown {what}{gap}{name}; nearest: {nearest(name, names)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of `names`, by the first characters of `name`."""
    return difflib.get_close_matches(name[:LONGEST_NAME], list(names), 1, 0.0)[0]


def to_line(message: object, most: int = LINE) -> str:
    """The message without line breaks and control characters, at most `most` characters."""
    return cut(escape_control(" ".join(str(message).split())), most)


def print_line(message: object) -> None:
    """Prints the message on stderr, in one printable line."""
    print(to_line(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def cut_errors(most: int = SETTINGS_LINE) -> Iterator[None]:
    """Inside, and in functions that this decorates, messages of ValueErrors are cut."""
    try:
        yield
    except ValueError as error:
        raise ValueError(to_line(error, most)) from None
