"""A folder of class folders of videos: its classes, a split of each, files that are twice there."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.data.annotation_file import compute_sha256
from utils.video.integrity import SUFFIXES


class FoundFolders(NamedTuple):
    """Videos by class, relative to the folder; other files; groups of equal files.

    `nested` are the classes with several folders of videos in theirs, and no video beside them.
    """

    classes: dict[str, list[str]]
    others: list[str]
    twins: list[list[str]]
    nested: list[str]


def look(folder: Path) -> FoundFolders:
    """Raises ValueError where there are not two classes of two videos each."""
    if not folder.is_dir():
        raise ValueError(f"--videos: {folder} is no folder")
    classes, others = {}, [str(p.name) for p in folder.iterdir() if p.is_file()]
    for each in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = [p.relative_to(folder) for p in sorted(each.rglob("*")) if p.is_file()]
        videos = [str(p) for p in files if p.suffix.lower() in SUFFIXES]
        others += [str(p) for p in files if p.suffix.lower() not in SUFFIXES]
        if videos:
            classes[each.name] = videos
    few = [name for name, videos in classes.items() if len(videos) < 2]
    if len(classes) < 2:
        raise ValueError(
            f"--videos: {folder} has {len(classes)} class folders with videos; two are the least: "
            f"{folder}/CLASS/VIDEO.mp4"
        )
    if few:
        raise ValueError(f"--videos: {folder / few[0]} has one video; a class needs two to split")
    odd = next((v for videos in classes.values() for v in videos if "\n" in v), None)
    if odd:
        raise ValueError(f"--videos: {odd!r} has a line break in its name; rename it")
    folders = {name: {Path(v).parts[1:-1][:1] for v in videos} for name, videos in classes.items()}
    nested = [name for name, inner in folders.items() if len(inner) > 1 and () not in inner]
    return FoundFolders(classes, others, twins_of(folder, classes), nested)


def twins_of(folder: Path, classes: dict[str, list[str]]) -> list[list[str]]:
    """Equal files: only those of one size are read."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for video in (video for videos in classes.values() for video in videos):
        by_size[(folder / video).stat().st_size].append(video)
    by_content: dict[str, list[str]] = defaultdict(list)
    for videos in by_size.values():
        for video in videos if len(videos) > 1 else ():
            by_content[compute_sha256(folder / video)].append(video)
    return [videos for videos in by_content.values() if len(videos) > 1]


def split(result: FoundFolders, fraction: float, seed: int) -> tuple[list[str], list[str]]:
    """Lines `path label` to train and to test with: a share of every class, at least one.

    Of equal files the first alone is listed: a test must not ask for what was trained on.
    """
    train, test = [], []
    twins = {video: group[0] for group in result.twins for video in group}
    for label, (_, videos) in enumerate(sorted(result.classes.items())):
        alone = [video for video in videos if twins.get(video, video) == video]
        drawn = np.random.RandomState([seed, label]).permutation(len(alone))
        count = max(0, min(max(1, round(fraction * len(alone))), len(alone) - 1))
        test += [f"{alone[k]} {label}" for k in sorted(drawn[:count])]
        train += [f"{alone[k]} {label}" for k in sorted(drawn[count:])]
    return train, test
