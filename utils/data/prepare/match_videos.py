"""Lists out of official annotations: each annotated video is looked for below a folder."""

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from utils.data.prepare.public_annotations import Annotations, key_of
from utils.messages import format_value
from utils.video.integrity import SUFFIXES

FRAME = re.compile(r"(?:.*\D)?([0-9]+)\.jpe?g", re.IGNORECASE)


class Listed(NamedTuple):
    """Lines of the lists, and what did not fit.

    `missing`: lines `split key label`, annotated but not there; `others`: paths that nobody
    annotated; `doubles`: paths of further files of a listed video.
    """

    train: list[str]
    val: list[str]
    missing: list[str]
    others: list[str]
    doubles: list[str]


def match(result: Annotations, root: Path, frames: bool) -> Listed:
    """Raises ValueError where `root` holds none of the annotated videos."""
    if not root.is_dir():
        raise ValueError(f"--videos: {root} is no folder")
    keys = {**result.train, **result.val}
    deep = any("/" in key for key in keys)
    here = frame_folders(root) if frames else video_files(root, deep)
    train, val = (
        [f"{here[key][0]} {label}" for key, label in part.items() if key in here]
        for part in (result.train, result.val)
    )
    if not train and not val:
        wanted = next(iter(keys), "nothing")
        kind = "a folder" if frames else "a video"
        raise ValueError(
            f"--videos: below {root} lies none of the {len(keys)} annotated videos; the first is "
            f"{kind} {wanted}"
        )
    odd = next((line for line in (*train, *val) if "\n" in line), None)
    if odd:
        raise ValueError(f"--videos: {format_value(odd)} has a line break in its name; rename it")
    missing = [
        f"{name} {key} {label}"
        for name, part in (("train", result.train), ("val", result.val))
        for key, label in part.items()
        if key not in here
    ]
    others = sorted(
        position for key, positions in here.items() if key not in keys for position in positions
    )
    doubles = sorted(position for key in keys for position in here.get(key, ())[1:])
    return Listed(train, val, missing, others, doubles)


def video_files(root: Path, deep: bool) -> dict[str, list[str]]:
    """{key: paths below `root`} of all videos; of a `deep` key the last folder is a part."""
    result: dict[str, list[str]] = defaultdict(list)
    for folder, inner, names in os.walk(root, followlinks=True):
        inner.sort()
        position = Path(folder).relative_to(root)
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                key = f"{position.name}/{name}" if deep else name
                result[key_of(key)].append(str(position / name))
    return result


def frame_folders(root: Path) -> dict[str, list[str]]:
    """{name: [`path num_frames`]} of all folders whose JPEG frames count up from 1."""
    result: dict[str, list[str]] = defaultdict(list)
    for folder, inner, names in os.walk(root, followlinks=True):
        inner.sort()
        numbers = {int(hit.group(1)) for hit in map(FRAME.fullmatch, names) if hit}
        if numbers and numbers == set(range(1, len(numbers) + 1)):
            position = Path(folder).relative_to(root)
            result[position.name].append(f"{position} {len(numbers)}")
    return result
