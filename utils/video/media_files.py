"""Media files in folders: which names are videos, images, or of no use to a data set."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

from utils.messages import join_names

# fmt: off
VIDEO_SUFFIXES = (
    ".3g2", ".3gp", ".asf", ".avi", ".divx", ".dv", ".f4v", ".flv", ".gif", ".m1v", ".m2t",
    ".m2ts", ".m2v", ".m4v", ".mjpeg", ".mjpg", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg",
    ".mts", ".mxf", ".ogm", ".ogv", ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m",
)
IMAGE_SUFFIXES = (
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
)
# Lower case; of macOS, Windows, Linux, Android, network drives (Synology, QNAP, NetApp) and Python.
SYSTEM_NAMES = frozenset((
    "__macosx", "icon\r", "desktop db", "desktop df", "network trash folder", "temporary items",
    "thevolumesettingsfolder", "$recycle.bin", "recycler", "found.000", "found.001",
    "system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found",
    "lost.dir", "#recycle", "#snapshot", "~snapshot", "@eadir", "@recycle", "@recently-snapshot",
    "__pycache__",
))
# fmt: on
MAX_SHOWN = 5  # names in a line


class FolderScan(NamedTuple):
    """Paths below a folder, sorted."""

    files: list[str]  # with a suffix that was looked for
    others: list[str]  # with another suffix
    system: list[str]  # hidden and system files and folders; what such a folder holds is not listed


def is_system_name(name: str) -> bool:
    """Whether a program made the file or folder for itself: hidden ones, `__MACOSX`, `@eaDir`."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def has_suffix(name: str, suffixes: Sequence[str]) -> bool:
    """Whether the name of a file ends in one of the suffixes, in letters of any case."""
    return os.path.splitext(name)[1].lower() in suffixes


def find_files(folder: Union[str, Path], suffixes: Sequence[str]) -> FolderScan:
    """All files below a folder. Follows links to folders; raises ValueError as `walk_files`."""
    system: list[str] = []
    walk = walk_files(folder, system)
    paths = [os.path.join(inner, name) for inner, names in walk for name in names]
    paths.sort(key=lambda path: path.split(os.sep))
    files = [path for path in paths if has_suffix(path, suffixes)]
    others = [path for path in paths if not has_suffix(path, suffixes)]
    return FolderScan(files, others=others, system=sorted(system))


def walk_files(
    folder: Union[str, Path], system: list[str], inner: str = "", above: frozenset = frozenset()
) -> Iterator[tuple[str, list[str]]]:
    """(folder below `folder`, its file names) of all folders, in the order of their names.

    Adds the paths of hidden and system files and folders to `system`. Does not follow a link to a
    folder that it is in. Raises ValueError for a folder that cannot be read.
    """
    path = os.path.join(folder, inner)
    try:
        stat = os.stat(path)
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        return
    names = []
    folders = []
    for entry in entries:
        if is_system_name(entry.name):
            system.append(os.path.join(inner, entry.name))
        elif entry.is_dir():
            folders.append(os.path.join(inner, entry.name))
        elif entry.is_file():
            names.append(entry.name)
        else:  # a link to nothing, a pipe
            system.append(os.path.join(inner, f"{entry.name} (no file)"))
    yield inner, names
    for name in folders:
        yield from walk_files(folder, system=system, inner=name, above=above | {here})


def compute_stamp(path: str) -> str:
    """Changes when somebody writes a file, or a file of a folder of frames: names, sizes, times.

    The time of change of the entry on the disk shows a file that was given its old time again.
    """
    names = sorted(os.listdir(path)) if os.path.isdir(path) else None
    files = [path] if names is None else [os.path.join(path, name) for name in names]
    stats = [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in map(os.stat, files)]
    return hashlib.sha256(repr((names, stats)).encode()).hexdigest()


def describe_left_out(scan: FolderScan, kind: str) -> Optional[str]:
    """A line about the files that are no `kind` (videos, images); None if there are none."""
    parts = []
    if scan.others:
        parts.append(f"no {kind} ({len(scan.others)}): {join_names(scan.others, MAX_SHOWN)}")
    if scan.system:
        names = join_names(scan.system, MAX_SHOWN)
        parts.append(f"hidden or system files and folders ({len(scan.system)}): {names}")
    return f"left out: {'; '.join(parts)}" if parts else None


def list_class_folders(path: Path) -> list[str]:
    """The names of the class folders, sorted; hidden and system folders are none."""
    folders = (entry.name for entry in os.scandir(path) if entry.is_dir())
    return sorted(name for name in folders if not is_system_name(name))


def list_images(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the images of a class folder by their bytes, and of all else in it."""
    names = sorted(os.listdir(folder), key=os.fsencode)
    images = [n for n in names if has_suffix(n, IMAGE_SUFFIXES) and not is_system_name(n)]
    return images, sorted({*names} - {*images})
