"""Annotation files: text files with one video per line, fields separated by single spaces.

Source "video": `path label` or `path num_frames label`.
Source "frames", a folder of images: `path num_frames label`.

Fields are counted from the right, so a path may contain spaces. For source "video" an integer
before the label is read as num_frames.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from utils.files import check_encodable, read_text
from utils.messages import format_value, shorten
from utils.progress import track
from utils.video.reader import MAX_PIXELS

FIELDS = {"video": "path label", "frames": "path num_frames label"}
PROGRESS_LINES = 10_000  # a longer file shows a progress bar while its videos are looked up
MAX_SHOWN = 5  # bad lines named in an error
MAX_PATH = 150  # characters of a path in an error


class Record(NamedTuple):
    """One video. `num_frames` is None if the file does not give it; `line` counts from 1."""

    path: str
    num_frames: Optional[int]
    label: int
    line: int
    location: Any = None  # of a packed video: its `utils.data.packed.reader.PackLocation`

    @property
    def dataset_index(self) -> int:
        """For `utils.data.classes`: a network for several data sets has its own records."""
        return 0


class AnnotationFile(NamedTuple):
    """An annotation file and the settings needed to read it."""

    name: str  # in the config file
    path: Path
    root: Path  # folder of the videos; paths in the file start there
    source: str  # "video" or "frames"
    num_classes: int  # labels are 0 to num_classes - 1
    image_tmpl: str = ""  # for source "frames", the template of the file names of frames
    flow: bool = False  # for source "frames", whether they are optical flow
    max_pixels: int = MAX_PIXELS  # larger frames are not read


def read_annotations(file: AnnotationFile, min_frames: int = 3) -> tuple[list[Record], int]:
    """Reads an annotation file and checks every line and that its video exists.

    Lines of source "frames" with fewer than `min_frames` frames are left out (the source
    implementation keeps them for ensembles: `min_frames=0`). If `image_tmpl` has three fields, x
    and y of optical flow are separate files; num_frames counts both, so it is halved.

    Returns the records in file order, with paths below the root, and the number of lines left out.
    Raises ValueError if the file is missing, if it has no usable line, and for bad lines; then it
    names the first five.
    """
    if file.source not in FIELDS:
        raise ValueError(f"data.source is {file.source!r}; choose one of {', '.join(FIELDS)}")
    exists = os.path.isdir if file.source == "frames" else os.path.isfile
    lines = _read_lines(file.path)
    records = []
    short = 0
    bad = []
    hidden = len(lines) <= PROGRESS_LINES
    for number, text in track(lines, name="checking files", unit="lines", hidden=hidden):
        try:
            record = _parse(number, text=text, file=file, min_frames=min_frames)
            if record is None:
                short += 1
            elif exists(record.path):
                records.append(record)
            else:
                raise ValueError(f"{shorten(repr(record.path), MAX_PATH)} does not exist")
        except ValueError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - MAX_SHOWN} more" if len(bad) > MAX_SHOWN else ""
        root = "" if file.root.is_dir() else f", and data.root {file.root} is not a folder"
        shown = "; ".join(bad[:MAX_SHOWN])
        raise ValueError(f"{file.path}, bad lines ({len(bad)}{root}): {shown}{more}")
    if not records:
        raise ValueError(f"{file.path} lists no video of {min_frames} frames or more")
    return records, short


def iterate_lines(file: AnnotationFile) -> Iterator[tuple[int, str, Union[Record, str]]]:
    """(number, text, record or why it is bad) of every line; does not look for the videos."""
    for number, text in _read_lines(file.path):
        try:
            yield (
                number,
                text,
                _parse(number, text=text, file=file, min_frames=1) or "num_frames is 0",
            )
        except ValueError as error:
            yield number, text, str(error)


def choose_output_names(files: list[AnnotationFile]) -> list[Path]:
    """The names of the files or, if two are the same, the paths below their common folder."""
    paths = [file.path.resolve() for file in files]
    if len({path.name for path in paths}) == len(paths):
        return [Path(path.name) for path in paths]
    top = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(top) for path in paths]


def _read_lines(path: Path) -> list[tuple[int, str]]:
    check_encodable(str(path), f"the path of the annotation file {path}")
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise ValueError(
            f"annotation file {path} {what}: data.root or the list's name is wrong (a relative one "
            "is looked for below data.root), or make one: scripts/data/make_lists.py"
        )
    # File names are bytes: surrogate escapes keep those that are not UTF-8.
    text = read_text(path, f"annotation file {path}", "surrogateescape")
    check_encodable(text, f"annotation file {path}")
    lines = [(n, line.strip()) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"annotation file {path} is empty")
    return lines


def _parse(number: int, text: str, file: AnnotationFile, min_frames: int) -> Optional[Record]:
    """The record of a line; None if it has too few frames, ValueError if it is bad."""
    fields = text.rsplit(" ", 2)
    form = FIELDS[file.source]
    if file.source == "video" and (len(fields) < 3 or _parse_integer(fields[1]) is None):
        fields = text.rsplit(" ", 1)
    if len(fields) < len(form.split()):
        raise ValueError(f"{format_value(text)} is not `{form}`, separated by single spaces")
    label = _parse_integer(fields[-1])
    if label is None or not 0 <= label < file.num_classes:
        raise ValueError(
            f"label {format_value(fields[-1])} is not an integer from 0 to {file.num_classes - 1}: "
            f"num_classes is {file.num_classes}"
        )
    path = str(file.root / fields[0])
    if len(fields) == 2:
        return Record(path, num_frames=None, label=label, line=number)
    num_frames = _parse_integer(fields[1])
    if file.source == "frames" and num_frames is not None and 0 <= num_frames < min_frames:
        return None
    if num_frames is None or num_frames < 1:
        raise ValueError(f"num_frames {format_value(fields[1])} is not a positive integer")
    if file.image_tmpl.count("{") == 3:  # one file for x of flow, one for y
        num_frames //= 2
    return Record(path, num_frames=num_frames, label=label, line=number)


def _parse_integer(text: str) -> Optional[int]:
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def swap_label(label: int, pairs: Sequence[tuple[int, int]]) -> int:
    """The label of a mirrored clip: in `pairs` (`swap_labels`), one label becomes the other."""
    for a, b in pairs:
        if label in (a, b):
            return a + b - label
    return label
