"""Files: outputs that replace no file of somebody else, written whole or not at all; reading text
in UTF-8 or UTF-16, small JSON files; folder locks."""

import codecs
import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Callable, Optional, Union

from utils.signals import unfinished

ROOT = Path(__file__).resolve().parents[1]  # of the code: a checkout, or an installed package
MAX_BYTES = 2**30  # bytes of a file that is read
JOURNAL = r'\n*(\["\[|\Z)'  # of lines `[key, value]`, whose keys are lists as JSON; or of none yet


def is_installed() -> bool:
    """Whether the zoo runs as an installed package, without the files of a checkout."""
    return not (ROOT / "pyproject.toml").is_file()


def get_base_folder() -> Path:
    """The folder of data and results: the checkout, or the current folder if this is installed."""
    return Path.cwd() if is_installed() else ROOT


def get_cache_folder() -> Path:
    """The folder of files that are made once: in the checkout, or the user's if it is installed."""
    if get_base_folder() == ROOT:
        return ROOT / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mindspore_video_zoo"


@contextlib.contextmanager
def report_write_errors(path: Path, setting: str = "run.out") -> Iterator[None]:
    """Turns an OSError into a ValueError that names the setting and the file."""
    try:
        yield
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        raise ValueError(f"{setting}: cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def make_drafts(folder: Path) -> Iterator[Path]:
    """A new folder in `folder` for unfinished files, deleted at the end, by a signal too.

    The name is random and belongs to nobody else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drafts = tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=os.path.abspath(folder))
    unfinished.add(drafts)
    try:
        yield Path(drafts)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
        unfinished.discard(drafts)


@contextlib.contextmanager
def write_beside(path: Path) -> Iterator[Path]:
    """A name for a file that will be renamed to `path`; if it is left, it is deleted at the end."""
    with make_drafts(path.parent) as drafts:
        yield drafts / path.name


@contextlib.contextmanager
def open_replacement(path: Path, newline: Optional[str] = None) -> Iterator[IO[str]]:
    """A text file that replaces `path` when it is complete; after an error, `path` is unchanged."""
    with write_beside(path) as temporary:
        with temporary.open(
            "w", newline=newline, encoding="utf-8", errors="surrogateescape"
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def check_target(
    path: Path,
    inputs: Iterable[Union[str, Path]] = (),
    option: str = "--target",
    overwrite: bool = False,
) -> None:
    """Raises ValueError, which names `option`, if a command may not write the file `path`.

    It may not be one of the `inputs`, and exist only with `overwrite`.
    """
    check_inputs([path], inputs, option)
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a folder")
    if os.path.lexists(path) and not overwrite:
        raise ValueError(f"{option}: {path} exists; --overwrite replaces it")


def check_folder(folder: Path, own: Mapping[str, str], option: str = "--out") -> None:
    """Raises ValueError, which names `option`, if a command may not write files into `folder`.

    It must be new, empty but for hidden files, or have results of the command. `own` are the names
    of its main files (shell patterns), and what the start of such a file matches (a regular
    expression): there is one, and none that does not match. Then the command replaces the files
    that it writes, and no others.
    """
    is_own = True
    found = [(path, start) for name, start in own.items() for path in folder.glob(name)]
    for path, start in found:
        is_file = path.is_file() and not path.is_symlink()  # a pipe would block
        if is_file:
            with open(path, "rb") as file:
                is_file = bool(re.match(start, file.read(2**16).decode(errors="replace")))
        is_own = is_own and is_file
    names = (path.relative_to(folder).parts for path in folder.rglob("*") if not path.is_dir())
    has_files = any(all(part[0] != "." for part in parts) for parts in names)
    if has_files and not (found and is_own):
        raise ValueError(
            f"{option}: {folder} has files, and none that this command recognises as its result: "
            f"empty it, or choose another {option}"
        )


def check_inputs(
    outputs: Iterable[Path], inputs: Iterable[Union[str, Path]], option: str = "--out"
) -> None:
    """Raises ValueError, which names `option`, if an output is an input, through links too."""
    identities: list[set] = []
    outputs = list(outputs)
    for path in (*outputs, *inputs):
        identities.append({os.path.realpath(path)})
        with contextlib.suppress(OSError, ValueError):  # an address may be no path
            stat_result = os.stat(path)  # its number on its disk, which links share
            identities[-1].add((stat_result.st_dev, stat_result.st_ino))
    sources = set().union(*identities[len(outputs) :])
    for path, identity in zip(outputs, identities):
        if not sources.isdisjoint(identity):
            raise ValueError(f"{option}: the command reads {path}, which would be replaced")


def set_default_mode(path: Path) -> None:
    """Gives a file the permissions of a new file: the umask decides.

    MindSpore writes files that only their owner can read.
    """
    status = Path("/proc/self/status").read_text()  # os.umask would set it for all threads
    os.chmod(path, 0o666 & ~int(re.search(r"^Umask:\s+(\d+)", status, re.MULTILINE)[1], 8))


def write_text(path: Path, text: str) -> None:
    with open_replacement(path) as file:
        file.write(text)


def lock_folder(folder: Path, name: str = ".lock", shared: bool = False) -> Optional[IO]:
    """A file whose lock lasts until it is closed; None if another process holds the lock.

    A file system without locks excludes nobody; filelock 4.3 fails there, or leaves a file after a
    kill. Its shared locks are SQLite files, a second kind beside this one.
    """
    lock = open(folder / name, "a+")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:  # a file system without locks
        pass
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
            raise ValueError(f"another process has held {folder / name} for {seconds:g} s; end it")
        time.sleep(0.1)
        lock = lock_folder(folder, name)
    return lock


def compute_sha256(path: Union[str, Path]) -> str:
    """The SHA-256 of a file in hexadecimal, read one megabyte at a time."""
    result = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(2**20), b""):
            result.update(part)
    return result.hexdigest()


def read_json(path: Path, name: str, kind: type = dict) -> Any:
    """The value in a small JSON file, of a type such as `dict`.

    Raises ValueError of one line, which names the file by `name`, if it is not such a file.
    """
    text = read_text(path, name)
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"{name} is damaged: it holds no {kind.__name__}")
    return value


def parse_line(text: str) -> dict[str, Any]:
    """The JSON object in a line; empty if there is none, as a kill or a full disk cuts it off."""
    try:
        value = json.loads(text)
    except (RecursionError, ValueError):
        value = None
    return value if isinstance(value, dict) else {}


def read_text(path: Path, name: str, errors: str = "strict") -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16.

    `errors` is what `bytes.decode` does with bytes that are not UTF-8. Raises ValueError, which
    names the file by `name` and the line, if the file cannot be read or is not a string.
    """
    try:
        if not os.path.isfile(path):  # a pipe would block
            state = "is not a file" if os.path.exists(path) else "does not exist"
            raise ValueError(f"{name} {state}")
        if os.path.getsize(path) > MAX_BYTES:
            raise ValueError(f"{name} is larger than {MAX_BYTES} bytes")
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16") if is_utf16 else data.decode("utf-8-sig", errors)
        if "\0" in text:
            raise UnicodeDecodeError("utf-8", data, data.index(0), 0, "a zero byte")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line} is not UTF-8; save the file as UTF-8") from None
    return text
