"""Lists from a folder of class folders with videos (FOLDER/CLASS/VIDEO.mp4), split by class."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts.data.integrity import SUFFIXES
from utils.files import compute_sha256


class ClassFolders(NamedTuple):
    """What a folder of class folders holds; all paths are relative to it."""

    classes: dict[str, list[str]]  # videos
    others: list[str]  # other files
    twins: list[list[str]]  # groups of equal files
    nested: list[str]  # classes whose videos are all in several folders below the class folder


def scan_class_folders(folder: Path) -> ClassFolders:
    """Raises ValueError if there are fewer than two classes, or no class has two videos."""
    classes = {}
    others = [str(p.name) for p in folder.iterdir() if p.is_file()]
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = [p.relative_to(folder) for p in sorted(inner.rglob("*")) if p.is_file()]
        videos = [str(p) for p in files if p.suffix.lower() in SUFFIXES]
        others += [str(p) for p in files if p.suffix.lower() not in SUFFIXES]
        if videos:
            classes[inner.name] = videos
    if len(classes) < 2:
        raise ValueError(
            f"--videos: {folder} has {len(classes)} class folders with videos, but a data set "
            f"needs two: {folder}/CLASS/VIDEO.mp4"
        )
    if all(len(videos) < 2 for videos in classes.values()):
        raise ValueError(
            f"--videos: every class of {folder} has one video; "
            "at least one class needs two, one of them for the test list"
        )
    odd = next((v for videos in classes.values() for v in videos if "\n" in v), None)
    if odd:
        raise ValueError(f"--videos: {odd!r} has a line break in its name; rename it")
    folders = {name: {Path(v).parts[1:-1][:1] for v in videos} for name, videos in classes.items()}
    nested = [name for name, inner in folders.items() if len(inner) > 1 and () not in inner]
    return ClassFolders(classes, others=others, twins=find_twins(folder, classes), nested=nested)


def find_twins(folder: Path, classes: dict[str, list[str]]) -> list[list[str]]:
    """Groups of equal files. Reads only files whose size occurs more than once."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for video in (video for videos in classes.values() for video in videos):
        by_size[(folder / video).stat().st_size].append(video)
    by_content: dict[str, list[str]] = defaultdict(list)
    for videos in by_size.values():
        for video in videos if len(videos) > 1 else ():
            by_content[compute_sha256(folder / video)].append(video)
    return [videos for videos in by_content.values() if len(videos) > 1]


def split_classes(folders: ClassFolders, fraction: float, seed: int) -> tuple[list[str], list[str]]:
    """Lines `path label` for training and for the test: `fraction` of every class, at least one.

    The only video of a class is for training.
    Of equal files only the first is listed: the test must not contain training videos.
    """
    train = []
    test = []
    twins = {video: group[0] for group in folders.twins for video in group}
    for label, (_, videos) in enumerate(sorted(folders.classes.items())):
        distinct = [video for video in videos if twins.get(video, video) == video]
        order = np.random.RandomState([seed, label]).permutation(len(distinct))
        count = max(0, min(max(1, round(fraction * len(distinct))), len(distinct) - 1))
        test += [f"{distinct[k]} {label}" for k in sorted(order[:count])]
        train += [f"{distinct[k]} {label}" for k in sorted(order[count:])]
    return train, test
