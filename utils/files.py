"""Text files: written whole or not at all, read in UTF-8 or UTF-16; folder locks."""

import codecs
import contextlib
import errno
import fcntl
import hashlib
import math
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Callable, Optional, Union

MAX_BYTES = 2**30  # bytes of a file that is read
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # errors of file systems without locks
USE_UTF8 = "set the environment variable PYTHONUTF8=1"


@contextlib.contextmanager
def report_write_errors(path: Path, setting: str = "run.out") -> Iterator[None]:
    """Turns an OSError into a ValueError that names the setting and the file."""
    try:
        yield
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            reason = "a file is in the way"
        raise ValueError(f"{setting}: cannot write {path}: {reason}") from None


@contextlib.contextmanager
def open_replacement(path: Path, newline: Optional[str] = None) -> Iterator[IO[str]]:
    """A text file that replaces `path` when it is complete; after an error, `path` is unchanged."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open(
            "w", newline=newline, encoding="utf-8", errors="surrogateescape"
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def set_default_mode(path: Path) -> None:
    """Gives a file the permissions of a new file in its folder: the umask decides.

    MindSpore writes files that only their owner can read.
    """
    probe = path.with_name(path.name + ".tmp.mode")
    probe.unlink(missing_ok=True)
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            os.chmod(path, stat.S_IMODE(os.fstat(descriptor).st_mode))
        finally:
            os.close(descriptor)
    finally:
        probe.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with open_replacement(path) as file:
        file.write(text)


def lock_folder(folder: Path, name: str = ".lock", shared: bool = False) -> Optional[IO]:
    """A file whose lock lasts until it is closed; None if another process holds the lock.

    A file system without locks excludes nobody.
    """
    lock = open(folder / name, "a+")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return lock


def wait_for_lock(
    folder: Path, report: Callable[[], object], seconds: float = math.inf, name: str = ".lock"
) -> IO:
    """`lock_folder`, when the lock is free; calls `report` once if it is not.

    Raises ValueError if another process holds it for `seconds`.
    """
    end = time.monotonic() + seconds
    lock = lock_folder(folder, name)
    if lock is None:
        report()
    while lock is None:
        if time.monotonic() > end:
            raise ValueError(
                f"another process has held {folder / name} for {seconds:g} s; end that process"
            )
        time.sleep(0.1)
        lock = lock_folder(folder, name)
    return lock


def check_encodable(text: str, name: str) -> None:
    """Raises ValueError, which names `name`, if `text` cannot be part of the path of a file.

    Python encodes paths in ASCII if the locale is C and its UTF-8 mode is off.
    """
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise ValueError(
            f"{name} has {character!a}, but Python's encoding of names of files is "
            f"{sys.getfilesystemencoding()}: {USE_UTF8}"
        ) from None


def compute_sha256(path: Union[str, Path]) -> str:
    """The SHA-256 of a file in hexadecimal, read one megabyte at a time."""
    result = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(2**20), b""):
            result.update(part)
    return result.hexdigest()


def read_text(path: Path, name: str, errors: str = "strict") -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16.

    `errors` is what `bytes.decode` does with bytes that are not UTF-8. Raises ValueError, which
    names the file by `name` and the line, if the file cannot be read or is not a string.
    """
    try:
        if not os.path.isfile(path):  # a pipe would block
            raise ValueError(
                f"{name} {'is not a file' if os.path.exists(path) else 'does not exist'}"
            )
        if os.path.getsize(path) > MAX_BYTES:
            raise ValueError(f"{name} is larger than {MAX_BYTES} bytes")
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
        raise ValueError(f"{name} is not a text file: line {line} has a zero byte")
    return text
