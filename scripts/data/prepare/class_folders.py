"""Lists from a folder of class folders with videos (FOLDER/CLASS/VIDEO.mp4), split by class.

Or with images, if `suffixes` are theirs. Equal files: one video under two names, copies or links.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from utils.files import compute_sha256
from utils.video.media_files import VIDEO_SUFFIXES, FolderScan, find_files

CONFIG = "finetune.yaml"  # the config file that finetune.py writes into the folder of its results
SOURCES = 2  # that each list but training gets at least, if that is no more than a fifth of all


class ClassFolders(NamedTuple):
    """What a folder of class folders holds; all paths are relative to it."""

    classes: dict[str, list[str]]  # videos; of equal ones the first
    scan: FolderScan  # all files
    twins: list[list[str]]  # groups of equal files


def scan_class_folders(folder: Path, suffixes: Sequence[str] = VIDEO_SUFFIXES) -> ClassFolders:
    """Also looks for equal files, for which it reads those of equal size.

    Raises ValueError if there are fewer than two classes.
    """
    scan = find_files(folder, suffixes)
    # What is in folders of finetune.py, which have copies and pictures, is no video.
    results = tuple(f[: -len(CONFIG)] for f in scan.others if f.endswith(f"/{CONFIG}"))
    lists = (scan.files, scan.others)
    files, others = ([f for f in part if not f.startswith(results)] for part in lists)
    scan = scan._replace(files=files, others=others)
    odd = next((video for video in scan.files if "\n" in video), None)
    if odd:
        raise ValueError(f"{odd!r} has a line break in its name; rename it")
    paths = {str(folder / video): video for video in scan.files if "/" in video}
    twins = [[paths[path] for path in group] for group in find_equal_files(paths)]
    again = {video for group in twins for video in group[1:]}
    classes: dict[str, list[str]] = {get_class(video): [] for video in paths.values()}
    for video in paths.values():
        if video not in again:
            classes[get_class(video)].append(video)
    if len(classes) < 2:
        count = f"{len(classes)} class folders with such files"
        raise ValueError(f"{folder} has {count}, but a data set needs two: {folder}/CLASS/FILE")
    return ClassFolders(classes, scan=scan, twins=twins)


def find_equal_files(paths: Iterable[str]) -> list[list[str]]:
    """Groups of paths with one content; it reads only files whose size occurs more than once.

    Empty files, folders and files that cannot be read are left out.
    """
    order = {path: k for k, path in enumerate(dict.fromkeys(paths))}
    by_size = defaultdict(list)
    for path in order:
        if os.path.isfile(path) and os.access(path, os.R_OK):
            by_size[os.path.getsize(path)].append(path)
    by_content = defaultdict(list)
    for size, files in by_size.items():
        for path in files if size and len(files) > 1 else ():
            by_content[compute_sha256(path)].append(path)
    groups = [group for group in by_content.values() if len(group) > 1]
    return sorted(groups, key=lambda group: order[group[0]])


def get_class(video: str) -> str:
    """The class folder of a path."""
    return video.partition("/")[0]


def split_classes(
    folders: ClassFolders,
    fractions: Mapping[str, float],
    seed: int,
    sources: Optional[Mapping[str, str]] = None,
) -> dict[str, list[str]]:
    """Lines `path label` for {"train" and the names of `fractions`}: `fractions` of every class.

    Each of these lists gets at least one video of a class, training first. `sources`, {video: its
    source}, keeps all videos of a source in one list; then the fractions are approximate.
    """
    labels = {}
    lists = {}
    for label, (_, videos) in enumerate(sorted(folders.classes.items())):
        labels.update(dict.fromkeys(videos, label))
        order = np.random.RandomState([seed, label]).permutation(len(videos)).tolist()
        lists.update(dict.fromkeys(videos, "train"))
        for name, fraction in fractions.items():
            count = min(max(1, round(fraction * len(videos))), len(order) - 1)
            lists.update((videos[k], name) for k in order[:count])
            del order[:count]
    if sources:
        parts = split_sources(labels, sources=sources, fractions=fractions, seed=seed)
        lists = {video: parts[sources[video]] for video in labels}
    result: dict[str, list[str]] = {name: [] for name in ("train", *fractions)}
    for video, label in labels.items():  # a path that begins with a space begins with `./`
        path = video if video == video.lstrip() else f"./{video}"
        result[lists[video]].append(f"{path} {label}")
    return result


def split_sources(
    labels: Mapping[str, int], sources: Mapping[str, str], fractions: Mapping[str, float], seed: int
) -> dict[str, str]:
    """The list of every source, so that each list has about its fraction of every class.

    The largest source is assigned first, in turn each to the list that lacks most of its classes.
    Afterwards sources move to lists that have no video of a class, if training keeps one, and to
    lists of too few sources: one person or film says little about others.
    """
    names = sorted({sources[video] for video in labels})
    counts = np.zeros((len(names), max(labels.values()) + 1), np.int64)
    row_of = {name: row for row, name in enumerate(names)}
    rows = [row_of[sources[video]] for video in labels]
    np.add.at(counts, (rows, list(labels.values())), 1)
    totals = counts.sum(0)
    parts = ["train", *fractions]
    goals = np.array([1 - sum(fractions.values()), *fractions.values()])[:, None] * totals
    assigned = np.zeros_like(goals, np.int64)
    chosen = np.zeros(len(names), np.int64)
    order = np.random.RandomState(seed).permutation(len(names))
    for k in order[np.argsort(-counts[order].sum(1), kind="stable")]:
        chosen[k] = np.argmax(((goals - assigned) * counts[k] / np.maximum(totals, 1) ** 2).sum(1))
        assigned[chosen[k]] += counts[k]
    smallest_first = np.argsort(counts.sum(1), kind="stable")
    for part, label in np.ndindex(*assigned.shape):
        if assigned[part, label]:
            continue
        for k in smallest_first[counts[smallest_first, label] > 0]:
            left = assigned[chosen[k]] - counts[k]
            is_free = part == 0 or (chosen[k] == 0 and left[counts[k] > 0].all())
            if is_free:
                assigned[chosen[k]] -= counts[k]
                assigned[part] += counts[k]
                chosen[k] = part
                break
    for part in range(1, len(parts)):
        for k in smallest_first:
            is_enough = (chosen == part).sum() >= min(SOURCES, len(names) // 5)
            is_free = chosen[k] == 0 and (assigned[0] - counts[k])[counts[k] > 0].all()
            if is_free and not is_enough:
                assigned[0] -= counts[k]
                chosen[k] = part
    return {name: parts[part] for name, part in zip(names, chosen)}


def find_sources(videos: Sequence[str], pattern: str) -> dict[str, str]:
    """{video: its source}, the first group of the regular expression `pattern` in its path.

    Raises ValueError if the pattern has no group, does not match every video, or gives one source.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--group: {pattern} is not a regular expression: {error}") from None
    matches = {video: expression.search(video) for video in videos if expression.groups}
    sources = {video: match[1] for video, match in matches.items() if match and match[1]}
    missing = [video for video in videos if video not in sources]
    if missing:
        count = f"{len(missing)} of {len(videos)} files"
        raise ValueError(f"--group: {pattern} names no source for {count}, such as {missing[0]}")
    if len(set(sources.values())) < 2:
        raise ValueError(f"--group: {pattern}: all videos are of one source, {sources[videos[0]]}")
    return sources


def link_images(
    root: Path, out: Path, classes: Sequence[str], lists: Mapping[str, Sequence[str]]
) -> None:
    """Makes OUT/LIST/CLASS/IMAGE, links to the images of the lines `path label` of each list.

    A list has a folder for every class: labels count the folders. Raises ValueError if a folder of
    a list exists.
    """
    for name in lists:
        if (out / name).exists():
            raise ValueError(f"--out: {out / name} exists; delete it, or choose another folder")
    for name, lines in lists.items():
        for class_name in classes:
            (out / name / class_name).mkdir(parents=True)
        for line in lines:
            image = Path(line.rpartition(" ")[0])
            link = out / name / image.parts[0] / "_".join(image.parts[1:])
            while os.path.lexists(link):  # a/b.jpg and a_b.jpg
                link = link.with_name(f"_{link.name}")
            link.symlink_to(root / image)
