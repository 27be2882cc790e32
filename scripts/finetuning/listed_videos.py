"""The videos in the lists of a fine-tuning, and what has changed in their folder since."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.data.prepare.class_folders import drop_results, find_equal_files, find_sources
from utils.files import read_text
from utils.messages import join_names
from utils.video.media_files import find_files

MAX_SHOWN = 5  # names in a line
LISTS = ("train", "val", "test")


def read_lists(folder: Path, videos: Path) -> dict[str, list[str]]:
    """{train, val, test: paths relative to `videos`} of lists, or of folders of links to images."""
    lists: dict[str, list[str]] = {name: [] for name in LISTS}
    for name in LISTS:
        links = [path for path in (folder / name).rglob("*") if path.is_symlink()]
        lists[name] += [os.path.relpath(os.readlink(link), videos) for link in links]
        for path in (folder / f"{name}{suffix}" for suffix in (".txt", ".csv")):
            if path.exists():
                lines = read_text(path, str(path), "surrogateescape").split("\n")
                paths = [line.rpartition(" ")[0].removeprefix("./") for line in lines]
                lists[name] += filter(None, paths)
    return lists


def describe_changes(
    videos: Path, suffixes: Sequence[str], lists: Mapping[str, Sequence[str]], folder: Path
) -> list[str]:
    """A line if videos came or went since the lists were made; `folder` has lists and run.

    Raises ValueError if none of the listed videos is there.
    """
    listed = {name for names in lists.values() for name in names}
    present = [name for name in drop_results(find_files(videos, suffixes)).files if "/" in name]
    gone = sorted(listed.difference(present))
    if len(gone) == len(listed):
        raise ValueError(
            f"VIDEOS: none of the videos in {folder / 'lists'} is in {videos}; choose another --out"
        )
    new = [name for name in present if name not in listed]
    if new:  # of equal files one is listed
        paths = {str(videos / name): name for name in present}
        twins = {paths[path] for group in find_equal_files(paths) for path in group[1:]}
        new = [name for name in new if name not in twins]
    parts = [
        f"{len(names)} {what} ({join_names(names, MAX_SHOWN)})"
        for what, names in (("came", new), ("went", gone))
        if names
    ]
    if not parts:
        return []
    return [
        f"since the lists were made, of the videos {' and '.join(parts)}; the lists stay as they "
        f"are: to make them anew, delete {folder / 'lists'} and {folder / 'run'}"
    ]


def describe_lists(lists: Mapping[str, Sequence[str]], group: str) -> list[str]:
    """Lines: the videos of each list and, with `group`, their sources.

    Raises ValueError if the lists were made with another `group`.
    """
    counts = {name: f"{len(names)}" for name, names in lists.items()}
    lines = []
    if group:
        source_of = find_sources([name for names in lists.values() for name in names], group)
        sources = {name: {source_of[video] for video in lists[name]} for name in lists}
        total = len(set(source_of.values()))
        if sum(map(len, sources.values())) > total:
            raise ValueError(
                "--group: a source has videos in several lists, which were made with another "
                "--group: delete the folder of the lists"
            )
        counts = {
            name: f"{count} of {len(sources[name])} sources" for name, count in counts.items()
        }
        if len(sources["val"]) == 1:
            lines.append("one source validates: which epoch is the best may be luck")
    train, val, test = (counts[name] for name in LISTS)
    return [f"videos: {train} train, {val} validate, {test} test", *lines]
