"""Class names: text files with one name per line, in the order of the labels.

`utils/labels` holds built-in names of public data sets, for `labels: NAME` in a config file.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from utils.files import ROOT, read_text
from utils.log import log
from utils.messages import check_choice
from utils.settings import ClassSettings

BUILTIN_NAMES = ROOT / "utils" / "labels"
COUNTERCLOCKWISE = re.compile("(counter|anti)[- _]?clockwise")
OPPOSITES = {"left": "right", "counterclockwise": "clockwise"}
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}


def find_class_names(names_file: Optional[Path], builtin: str, classes: int) -> list[str]:
    """The class names of a data set, in the order of the labels.

    They are in `names_file`, the `labels.txt` beside the annotation files, if it exists. Otherwise
    `builtin`, the setting `labels`, names built-in ones, or is empty. Returns an empty list if
    there are no names, or if the built-in ones are not `classes` names: then the network has other
    classes than the data set of the recipe. Raises ValueError if `names_file` does not hold
    `classes` names.
    """
    if names_file is not None and names_file.is_file():
        return read_class_names(names_file, classes, f"{names_file}")
    if not builtin:
        return []
    files = {file.stem: file for file in sorted(BUILTIN_NAMES.glob("*.txt"))}
    check_choice(builtin, files, "list of data.labels")
    names = files[builtin].read_text(encoding="utf-8").splitlines()
    return names if len(names) == classes else []


def read_class_names(path: Path, classes: int, description: str) -> list[str]:
    """The `classes` lines of a file; ValueError, with `description`, if it has another number."""
    names = read_names(path, description)
    if len(names) != classes:
        raise ValueError(
            f"{description} has {len(names)} names, the network {classes} classes; set "
            "num_classes, or give a line for each"
        )
    return names


def read_names(path: Path, description: str = "") -> list[str]:
    text = read_text(path, description or f"{path}")
    return [line.strip() for line in text.rstrip().split("\n")]


def describe_numbered(names: Sequence[str]) -> str:
    """What to say if all names of class folders are numbers, but not those of their labels."""
    odd = [(k, name) for k, name in enumerate(names) if not name.isdecimal() or int(name) != k]
    if not odd or not all(name.isdecimal() for name in names):
        return ""
    label, name = odd[0]
    return (
        f"class folders are numbers, and labels count them sorted as text: folder {name} has label "
        f"{label}"
    )


def warn_about_mirroring(names_file: Path, classes: int, data: ClassSettings) -> None:
    """Logs if class names contradict `data.flip` and `data.swap_labels`, or are too many or few."""
    try:
        names = find_class_names(names_file, data.labels, classes)
    except ValueError as error:
        log.info("%s", error)
        return
    if not names:
        return
    mirror_pairs = find_mirror_pairs(names)
    swapped_pairs = [tuple(sorted(pair)) for pair in data.swap_labels]
    missing = [pair for pair in mirror_pairs if data.flip and pair not in swapped_pairs]
    if missing:
        label, mirrored = missing[0]
        log.info(
            "flip mirrors clips, and those of %r then show %r: swap_labels must be %s, "
            "or flip false",
            names[label],
            names[mirrored],
            [list(pair) for pair in mirror_pairs],
        )
    for label, mirrored in swapped_pairs:
        if (label, mirrored) not in mirror_pairs:
            log.info("swap_labels takes %r for a mirrored %r", names[mirrored], names[label])


def find_mirror_pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of labels that mirroring exchanges: by the words of OPPOSITES in their names."""
    normalized = [COUNTERCLOCKWISE.sub("counterclockwise", name.lower()) for name in names]
    label_of = {name: label for label, name in enumerate(normalized)}
    words = re.compile("|".join(OPPOSITES))
    mirrored = [words.sub(lambda word: OPPOSITES[word[0]], name) for name in normalized]
    pairs = ((label, label_of.get(name, -1)) for label, name in enumerate(mirrored))
    return [(a, b) for a, b in pairs if normalized[a] != mirrored[a] and a < b]
