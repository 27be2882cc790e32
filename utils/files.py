"""Files that appear whole or not at all, and what the disk says told in one line."""

import codecs
import contextlib
import fcntl
import os
import unicodedata
from pathlib import Path
from typing import IO, Optional

# Control characters, invisible ones that reorder text, bytes that are not UTF-8, line separators.
UNPRINTED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def escape_control(text: str) -> str:
    """The text in one printable line: ESC becomes `\\x1b`, a line feed `\\n`, a bad byte `\\xe9`.

    For names and file contents of strangers, which a terminal would obey.
    """
    return "".join(map(escape_character, text)) if not text.isprintable() else text


def escape_character(character: str) -> str:
    if unicodedata.category(character) not in UNPRINTED:
        return character
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte that `surrogateescape` carries
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


@contextlib.contextmanager
def explained(path: Path, setting: str = "run.out"):
    """Turns what the disk says into a ValueError that names the file."""
    try:
        yield
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            reason = "a file is in the way"
        raise ValueError(f"{setting}: cannot write {path}: {reason}") from None


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def locked(folder: Path) -> Optional[IO]:
    """A file to hold as long as nobody else may write in a folder; None where somebody holds it."""
    lock = open(folder / ".lock", "a+")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


LARGEST = 2**30  # bytes


def read_text(path: Path, name: str, errors: str = "strict") -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16.

    `errors` is what `bytes.decode` does with bytes that are not UTF-8. Raises ValueError, which
    names the file by `name` and the line, if the file cannot be read or is no text.
    """
    try:
        if not os.path.isfile(path):  # a pipe would be waited for
            raise ValueError(f"{name} {'is no file' if os.path.exists(path) else 'does not exist'}")
        if os.path.getsize(path) > LARGEST:
            raise ValueError(f"{name} is larger than {LARGEST} bytes")
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16") if is_utf16 else data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{name} is no text file: line {line} has a zero byte")
    return text
