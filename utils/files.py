"""Files that appear whole or not at all, and what the disk says told in one line."""

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
