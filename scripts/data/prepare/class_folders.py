"""Lists from a folder of class folders with videos (FOLDER/CLASS/VIDEO.mp4), split by class.

Or with images, if `suffixes` are theirs.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from scripts.data.integrity import SUFFIXES
from utils.files import compute_sha256

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png")


class ClassFolders(NamedTuple):
    """What a folder of class folders holds; all paths are relative to it."""

    classes: dict[str, list[str]]  # videos
    others: list[str]  # other files
    twins: list[list[str]]  # groups of equal files
    nested: list[str]  # classes whose videos are all in several folders below the class folder


def scan_class_folders(
    folder: Path, suffixes: Sequence[str] = SUFFIXES, with_twins: bool = True
) -> ClassFolders:
    """Looks for equal files if `with_twins`, which reads those of equal size.

    Raises ValueError if there are fewer than two classes, or no class has two videos.
    """
    classes = {}
    others = [str(p.name) for p in folder.iterdir() if p.is_file()]
    for inner in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = [p.relative_to(folder) for p in sorted(inner.rglob("*")) if p.is_file()]
        videos = [str(p) for p in files if p.suffix.lower() in suffixes]
        others += [str(p) for p in files if p.suffix.lower() not in suffixes]
        if videos:
            classes[inner.name] = videos
    if len(classes) < 2:
        raise ValueError(
            f"{folder} has {len(classes)} class folders with videos, but a data set "
            f"needs two: {folder}/CLASS/VIDEO.mp4"
        )
    if all(len(videos) < 2 for videos in classes.values()):
        raise ValueError(
            f"every class of {folder} has one video; "
            "at least one class needs two, one of them for the test list"
        )
    odd = next((v for videos in classes.values() for v in videos if "\n" in v), None)
    if odd:
        raise ValueError(f"{odd!r} has a line break in its name; rename it")
    folders = {name: {Path(v).parts[1:-1][:1] for v in videos} for name, videos in classes.items()}
    nested = [name for name, inner in folders.items() if len(inner) > 1 and () not in inner]
    twins = find_twins(folder, classes) if with_twins else []
    return ClassFolders(classes, others=others, twins=twins, nested=nested)


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


def split_classes(
    folders: ClassFolders,
    fractions: Mapping[str, float],
    seed: int,
    sources: Optional[Mapping[str, str]] = None,
) -> dict[str, list[str]]:
    """Lines `path label` for {"train" and the names of `fractions`}: `fractions` of every class.

    Each of these lists gets at least one video of a class, training first. Of equal files only the
    first is listed: the test must not contain training videos. `sources`, {video: its source},
    keeps all videos of a source in one list; then the fractions are approximate.
    """
    twins = {video: group[0] for group in folders.twins for video in group}
    labels = {}
    lists = {}
    for label, (_, videos) in enumerate(sorted(folders.classes.items())):
        distinct = [video for video in videos if twins.get(video, video) == video]
        labels.update(dict.fromkeys(distinct, label))
        order = np.random.RandomState([seed, label]).permutation(len(distinct)).tolist()
        lists.update(dict.fromkeys(distinct, "train"))
        for name, fraction in fractions.items():
            count = min(max(1, round(fraction * len(distinct))), len(order) - 1)
            lists.update((distinct[k], name) for k in order[:count])
            del order[:count]
    if sources:
        parts = split_sources(labels, sources=sources, fractions=fractions, seed=seed)
        lists = {video: parts[sources[video]] for video in labels}
    return {
        name: [f"{video} {label}" for video, label in labels.items() if lists[video] == name]
        for name in ("train", *fractions)
    }


def split_sources(
    labels: Mapping[str, int], sources: Mapping[str, str], fractions: Mapping[str, float], seed: int
) -> dict[str, str]:
    """The list of every source, so that each list has about its fraction of every class.

    The largest source is assigned first, in turn each to the list that lacks most of its classes.
    Afterwards sources move to lists that have no video of a class, if training keeps one.
    """
    names = sorted({sources[video] for video in labels})
    counts = np.zeros((len(names), max(labels.values()) + 1), np.int64)
    rows = [names.index(sources[video]) for video in labels]
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
        for k in smallest_first:
            left = assigned[chosen[k]] - counts[k]
            is_free = part == 0 or (chosen[k] == 0 and left[counts[k] > 0].all())
            if not assigned[part, label] and counts[k, label] and is_free:
                assigned[chosen[k]] -= counts[k]
                assigned[part] += counts[k]
                chosen[k] = part
    return {name: parts[part] for name, part in zip(names, chosen)}


def find_sources(folders: ClassFolders, pattern: str) -> dict[str, str]:
    """{video: its source}, the first group of the regular expression `pattern` in its path.

    Raises ValueError if the pattern has no group, does not match every video, or gives one source.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--group: {pattern} is not a regular expression: {error}") from None
    if not expression.groups:
        example = r"v_\w+_(g\d+)"
        raise ValueError(
            f"--group: {pattern} has no group: put the part that names the source into "
            f"parentheses, as in {example}"
        )
    videos = [video for videos in folders.classes.values() for video in videos]
    matches = {video: expression.search(video) for video in videos}
    sources = {video: match[1] for video, match in matches.items() if match and match[1]}
    missing = [video for video in videos if video not in sources]
    if missing:
        count = f"{len(missing)} of {len(videos)}" if sources else f"any of {len(videos)}"
        raise ValueError(
            f"--group: {pattern} names no source for {count} files, for example {missing[0]}"
        )
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
            link.with_suffix(image.suffix.lower()).symlink_to(root / image)
