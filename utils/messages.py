"""Messages for the terminal: one printable line of bounded length, for untrusted values too."""

import contextlib
import difflib
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

LINE = 1000  # characters of any message
SETTINGS_LINE = 300  # of one about a config file or the command line, whose values may be anything
VALUE = 80  # of a value quoted in a message
LONGEST_NAME = 100  # characters of an unknown name that are compared with the real ones
SIMILAR = 0.65  # of difflib: a less similar name is not suggested
FEW_NAMES = 8  # so many are named if none is similar

# An address in a text; pathlib makes one slash of two. The bound keeps the search linear.
ADDRESS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]{0,30}://|(?:https?|rtsps?|rtmp):/)\S+")
PUNCTUATION = ":;,.)'\""  # after an address, it belongs to the sentence
SCHEME = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:/{1,2})?")
# Some cameras take user=NAME&password=WORD as a part of the path.
QUERY_IN_PATH = re.compile(r"[;&].*|(?<=/)[^/;&]*=.*", re.DOTALL)

# Control characters, invisible ones that reorder text, bytes that are not UTF-8, line separators.
UNPRINTED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class RunInterruptedError(Exception):
    """Stopped by ctrl-C; the message names the saved step and how to continue."""


class MachineError(RuntimeError):
    """A failure of the machine, not a user error and not a bug; the message is one line.

    MindData replaces an error in a data pipeline by a RuntimeError that contains only its text.
    """


def hide_secrets(address: str) -> str:
    """An address without user and password, up to the last @ before the host, and the query.

    If a query has an @, it may belong to a password with a question mark: then nothing remains.
    """
    scheme = SCHEME.match(address)[0]
    before, _, query = address[len(scheme) :].replace("#", "?", 1).partition("?")
    if "@" in query:
        return f"{scheme}..."
    return scheme + QUERY_IN_PATH.sub("", before.rpartition("@")[2])


def hide_all_secrets(text: str) -> str:
    """The text, with `hide_secrets` of every address in it."""
    addresses = {match.rstrip(PUNCTUATION) for match in ADDRESS.findall(text)}
    for address in sorted(addresses, key=len, reverse=True):  # one may begin with another
        text = text.replace(address, hide_secrets(address))
    return text


def escape_control(text: str) -> str:
    """The text in one printable line: ESC becomes `\\x1b`, a line feed `\\n`, a bad byte `\\xe9`.

    For untrusted names and file contents, whose control characters a terminal would execute.
    """
    for character in set() if text.isprintable() else set(text):
        if unicodedata.category(character) in UNPRINTED:
            escaped = character.encode("unicode_escape").decode("ascii")
            # U+DC80 to U+DCFF are bytes that `surrogateescape` carries
            text = text.replace(character, re.sub(r"^\\udc(?=[89a-f])", r"\\x", escaped))
    return text


def shorten(text: str, limit: int = LINE) -> str:
    """The text itself or, if it is too long, its beginning and its end: `limit` characters."""
    if len(text) <= limit:
        return text
    end = (limit - 5) // 3  # the end often has the advice
    return f"{text[: limit - 5 - end]} ... {text[-end:]}"


def format_value(value: Any) -> str:
    """The value as Python writes it, at most VALUE characters."""
    return shorten(repr(value), VALUE)


def check_choice(name: str, names: Iterable[str], what: str) -> None:
    """Raises ValueError if `name` is none of `names`, with the nearest that is.

    If none is similar, the message has the first FEW_NAMES.
    """
    names = list(names)
    if name in names:
        return
    gap = "" if what[-1] in ".-" else " "  # "setting data." and "option --" end in half a name
    name = shorten(name, LONGEST_NAME)
    near = find_nearest(name, names)
    advice = f"nearest: {near}" if near else f"there are {join_names(names, FEW_NAMES)}"
    raise ValueError(f"unknown {what}{gap}{name}; {advice}")


def find_nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of `names`, by the first characters of `name`; empty if none is similar."""
    return "".join(difflib.get_close_matches(name[:LONGEST_NAME], list(names), 1, SIMILAR))


def format_line(message: object, limit: int = LINE) -> str:
    """The message without line breaks, control characters and secrets of addresses.

    At most `limit` characters.
    """
    text = hide_all_secrets(" ".join(str(message).split()))
    return shorten(escape_control(text), limit)


def format_error(error: Exception) -> str:
    """The error's message, or its type if it has none, as `format_line`."""
    return format_line(error) or type(error).__name__


def join_names(names: list[str], limit: int) -> str:
    """`a, b and 7 more`."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"


def print_line(message: object) -> None:
    """Prints the message on stderr, in one printable line."""
    print(format_line(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def shorten_errors() -> Iterator[None]:
    """Inside, and in functions that this decorates, messages of ValueErrors are shortened."""
    try:
        yield
    except ValueError as error:
        raise ValueError(format_line(error, SETTINGS_LINE)) from None
