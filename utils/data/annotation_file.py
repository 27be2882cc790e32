"""List files: one video a line, fields separated by single spaces.

Source "video": `path label` or `path num_frames label`. Source "frames", a folder of JPEG frames:
`path num_frames label`. Fields are counted from the right, so a path may contain spaces; in a video
list an integer before the label is taken for num_frames.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from tqdm import tqdm

from utils.files import read_text
from utils.messages import cut, quote
from utils.video.reader import MAX_PIXELS

FIELDS = {"video": "path label", "frames": "path num_frames label"}
LONG = 10_000  # lines; looking for that many files takes long enough to show a bar
SHOWN = 5  # bad lines named in an error
LONGEST_PATH = 150  # characters of a path in an error


class Record(NamedTuple):
    """One video. `num_frames` is None where the list does not say; `line` counts from 1."""

    path: str
    num_frames: Optional[int]
    label: int
    line: int
    place: Any = None  # of a packed list: the `utils.data.packed.reader.Place`


class ListFile(NamedTuple):
    """A list file, and what its lines mean; `flow` and `image_tmpl` are of source "frames".

    `name` is what the yaml calls it; frames of more than `max_pixels` pixels are not read.
    """

    name: str
    path: Path
    root: Path
    source: str
    num_classes: int
    image_tmpl: str = ""
    flow: bool = False
    max_pixels: int = MAX_PIXELS


class _TooShort(Exception):
    """A line to be left out, not to be complained about."""


def read_list(file: ListFile, min_frames: int = 3) -> tuple[list[Record], int]:
    """Reads a list file and checks every line; paths are below its root.

    Lines of source "frames" with fewer than `min_frames` frames are left out (the source
    implementation keeps them for ensembles: `min_frames=0`). With an `image_tmpl` of three fields
    the listed numbers count x and y files and are halved.

    Returns the records in file order and the number of lines left out. Raises ValueError for a
    list that is missing or has nothing to read, and for bad lines, naming the first five.
    """
    path, source = file.path, file.source
    if source not in FIELDS:
        raise ValueError(f"data.source is {source!r}; choose one of {', '.join(FIELDS)}")
    lines = _lines(path)
    records, short, bad = [], 0, []
    hide = None if len(lines) > LONG else True  # None: hide the bar where there is no terminal
    for number, text in tqdm(lines, "checking files", disable=hide):
        try:
            record = _parse(number, text, source, file.num_classes, min_frames)
            record = _locate(record, file.root, file.image_tmpl)
            _look(record.path, source)
            records.append(record)
        except _TooShort:
            short += 1
        except ValueError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        root = "" if file.root.is_dir() else f", and data.root {file.root} is no folder"
        raise ValueError(f"{path}, bad lines ({len(bad)}{root}): {'; '.join(bad[:SHOWN])}{more}")
    if not records:
        raise ValueError(f"{path} lists no video of {min_frames} frames or more")
    return records, short


def entries(file: ListFile) -> Iterator[tuple[int, str, Union[Record, str]]]:
    """(line number, line, what it says) of every line; of a bad one, what is wrong with it.

    Nobody looks whether the videos are there.
    """
    for number, text in _lines(file.path):
        try:
            record = _parse(number, text, file.source, file.num_classes, min_frames=1)
            yield number, text, _locate(record, file.root, file.image_tmpl)
        except _TooShort:
            yield number, text, "no frames, says the list"
        except ValueError as error:
            yield number, text, str(error)


def names_of(files: list[ListFile]) -> list[Path]:
    """What a scan calls the lists: their names or, if two have one, their paths below all."""
    paths = [file.path.resolve() for file in files]
    if len({path.name for path in paths}) == len(paths):
        return [Path(path.name) for path in paths]
    top = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(top) for path in paths]


def _lines(path: Path) -> list[tuple[int, str]]:
    if not os.path.isfile(path):
        what = "is no file" if os.path.exists(path) else "does not exist"
        raise ValueError(
            f"list file {path} {what}: data.root or the list's name is wrong (a relative one "
            "is looked for below data.root), or make one: scripts/data/make_lists.py"
        )
    # File names are bytes; surrogates carry those that are not UTF-8 through to the file system.
    texts = read_text(path, f"list file {path}", "surrogateescape").split("\n")
    lines = [(number, text.strip()) for number, text in enumerate(texts, 1) if text.strip()]
    if not lines:
        raise ValueError(f"list file {path} is empty")
    return lines


def _parse(number: int, text: str, source: str, num_classes: int, min_frames: int) -> Record:
    """Splits and checks a line; a ValueError says what is wrong with it."""
    fields = text.rsplit(" ", 2)
    if source == "video" and (len(fields) < 3 or _integer(fields[1]) is None):
        fields = text.rsplit(" ", 1)
    if len(fields) < len(FIELDS[source].split()):
        raise ValueError(f"{quote(text)} is not `{FIELDS[source]}`, separated by single spaces")
    label = _integer(fields[-1])
    if label is None or not 0 <= label < num_classes:
        raise ValueError(
            f"label {quote(fields[-1])} is not an integer from 0 to {num_classes - 1}: "
            f"num_classes is {num_classes}"
        )
    if len(fields) == 2:
        return Record(fields[0], None, label, number)
    num_frames = _integer(fields[1])
    if source == "frames" and num_frames is not None and 0 <= num_frames < min_frames:
        raise _TooShort
    if num_frames is None or num_frames < 1:
        raise ValueError(f"num_frames {quote(fields[1])} is not a positive integer")
    return Record(fields[0], num_frames, label, number)


def _look(path: str, source: str) -> None:
    if not (os.path.isdir(path) if source == "frames" else os.path.isfile(path)):
        raise ValueError(f"{cut(repr(path), LONGEST_PATH)} does not exist")


def _locate(record: Record, root: Path, image_tmpl: str) -> Record:
    """Puts the path below the root, halves the count of a two-file flow template."""
    num_frames = record.num_frames
    if num_frames is not None and image_tmpl.count("{") == 3:  # one file for x, one for y
        num_frames //= 2
    return record._replace(path=str(root / record.path), num_frames=num_frames)


def _integer(text: str) -> Optional[int]:
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def digest(path: Path) -> str:
    """Of a file's bytes, a megabyte at a time."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(2**20), b""):
            found.update(part)
    return found.hexdigest()


def swapped(label: int, pairs: Sequence[tuple[int, int]]) -> int:
    """The label of a mirrored clip, where some classes name a direction."""
    for a, b in pairs:
        if label in (a, b):
            return a + b - label
    return label
