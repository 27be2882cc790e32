"""The names of classes: a text file with a name a line, in the order of the labels.

`utils/labels` holds those of public data sets, for `labels: NAME` in a yaml.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from utils.config import ROOT
from utils.data.annotation_file import ListFile
from utils.files import read_text
from utils.log import log
from utils.messages import check_choice

SHIPPED = ROOT / "utils" / "labels"
TURNED = re.compile("(counter|anti)[- _]?clockwise")
SIDES = {
    "left": "right",
    "right": "left",
    "counterclockwise": "clockwise",
    "clockwise": "counterclockwise",
}


def find_names(beside: Optional[Path], shipped: str, classes: int) -> list[str]:
    """Of a file beside the lists, where there is one, or else of what the yaml calls `labels`.

    Empty where neither says, and where the network has other classes than the yaml's data set.
    Raises ValueError where a file beside the lists has not as many as classes.
    """
    if beside is not None and beside.is_file():
        return read_names(beside, classes, f"{beside}")
    if not shipped:
        return []
    check_choice(
        shipped, [file.stem for file in sorted(SHIPPED.glob("*.txt"))], "list of data.labels"
    )
    names = (SHIPPED / f"{shipped}.txt").read_text(encoding="utf-8").splitlines()
    return names if len(names) == classes else []


def read_names(path: Path, classes: int, what: str) -> list[str]:
    """The lines of a file but empty ones at its end; `what` is what an error calls it."""
    names = [line.strip() for line in read_text(path, what).rstrip().split("\n")]
    if len(names) != classes:
        raise ValueError(
            f"{what} has {len(names)} names, the network {classes} classes; set num_classes, or "
            "give a line for each"
        )
    return names


def advise(file: ListFile, data: Any) -> None:
    """Tells, before a training, what names beside its list say against the settings `data`."""
    beside = file.path.with_name("labels.txt")
    try:
        names = find_names(beside, data.labels, file.num_classes)
    except ValueError as error:
        log.info("%s", error)
        return
    if not names:
        return
    wanted, given = mirrored(names), [tuple(sorted(pair)) for pair in data.swap_labels]
    loose = [pair for pair in wanted if data.flip and pair not in given]
    if loose:
        one, other = loose[0]
        log.info(
            "flip mirrors clips, and those of %r then show %r: swap_labels must be %s, "
            "or flip false",
            names[one],
            names[other],
            [list(pair) for pair in wanted],
        )
    for one, other in given:
        if (one, other) not in wanted:
            log.info("swap_labels takes %r for a mirrored %r", names[other], names[one])


def mirrored(names: Sequence[str]) -> list[tuple[int, int]]:
    """Labels of which a mirror makes one the other, by their names: left and right, or turns."""
    plain = [TURNED.sub("counterclockwise", name.lower()) for name in names]
    found = {name: label for label, name in enumerate(plain)}
    words = re.compile("|".join(SIDES))
    images = [words.sub(lambda word: SIDES[word[0]], name) for name in plain]
    pairs = ((label, found.get(image, -1)) for label, image in enumerate(images))
    return [(one, other) for one, other in pairs if plain[one] != images[one] and one < other]
