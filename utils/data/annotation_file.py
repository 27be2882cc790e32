"""Annotation files: text files with one video per line, fields separated by single spaces.

Source "video": `path label` or `path num_frames label`.
Source "frames", a folder of images: `path num_frames label`.
Both: `path start end label` or `path,start,end,label`, the segment of a video in seconds. All lines
of a file have one form; the first line decides.

With `model.labels: multi` the label is `3,17`, or `-` for a video without a label. Instead a list
may have several columns, `path 3 17` (frames: `path num_frames 3 17`; segments:
`path,start,end,3,17`). Videos then have no num_frames.

Fields are counted from the right, so a path may contain spaces. For source "video" an integer
before the label is read as num_frames.

Class names are text files with one name per line, in the order of the labels.
"""

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from utils.files import ROOT, read_text
from utils.log import log
from utils.messages import check_choice, escape_control, find_nearest, format_value, shorten
from utils.runtime import Runtime
from utils.video.decoders import open_path
from utils.video.reader import MAX_PIXELS, FrameReader, Segment

FIELDS = {"video": "path label", "frames": "path num_frames label"}
SEGMENTS = "path start end label"
CSV_SEGMENTS = "path,start,end,label"  # also a first line that names the columns
MAX_SHOWN = 5  # bad lines named in an error
MAX_PATH = 150  # characters of a path in an error
MIN_FRAMES = 3  # a folder of fewer frames is left out
Label = Union[int, tuple[int, ...]]  # with `model.labels: multi` all labels, ascending
NO_LABEL = "-"
BUILTIN_NAMES = ROOT / "utils" / "labels"  # of public data sets, for `labels: NAME`
COLUMNS = re.compile(r"(?<=\S)(?: +-?[0-9]+)+$")  # the numbers at the end of a line


class Record(NamedTuple):
    """One video. `num_frames` is None if the file does not give it; `line` counts from 1."""

    path: str
    num_frames: Optional[int]
    label: Label
    line: int
    segment: Optional[Segment] = None  # the part of the video, or else the whole
    dataset_index: int = 0  # of a network for several data sets

    def open(self, data: Any) -> FrameReader:
        """Opens the video, or its segment; `data` has the settings of `VideoData`."""
        is_folder = data.source == "frames"
        return open_path(
            self.path, data, is_folder, num_frames=self.num_frames, segment=self.segment
        )


class VideoList(list[Record]):
    """The videos of a split, in the order of its list; their paths start with `root`."""

    def __init__(self, records: Iterable[Record], root: Path):
        super().__init__(records)
        self.root = root

    def list_names(self) -> list[str]:
        """The names of the samples in a report."""
        return [name_record(record).removeprefix(f"{self.root}/") for record in self]

    def write_classes(self, run: Path, rt: Runtime) -> None:
        """Nothing: a list numbers the classes itself. Class folders are written into the run."""


class AnnotationFile(NamedTuple):
    """An annotation file and the settings needed to read it."""

    name: str  # in the config file
    path: Path
    root: Path  # folder of the videos; paths in the file start there
    source: str  # "video" or "frames"
    num_classes: int  # labels are 0 to num_classes - 1
    image_tmpl: str = ""  # for source "frames", the template of the file names of frames
    flow: bool = False  # for source "frames", whether they are optical flow
    folder_fps: float = 0.0  # for source "frames", frames per second; 0: unknown
    max_pixels: int = MAX_PIXELS  # larger frames are not read
    multi_label: bool = False  # a video has any number of labels
    class_names: Sequence[str] = ()  # of the network, by label; empty: unknown
    labels: Optional[Path] = None  # its own class names, by label; None: labels.txt beside it

    @property
    def labels_path(self) -> Path:
        return self.labels or self.path.with_name("labels.txt")


def describe_list(cfg: Any, split: str) -> AnnotationFile:
    """The annotation file of the split train, test or val, of a network for one data set."""
    data = cfg.data
    name = data.lists.get(split, data.test_list)
    return AnnotationFile(
        name,
        path=data.root / name,
        root=data.root,
        source=data.source,
        num_classes=cfg.model.num_classes,
        image_tmpl=data.image_tmpl,
        flow=data.is_flow,
        folder_fps=data.folder_fps,
        max_pixels=data.max_pixels,
        multi_label=cfg.has_several_labels,
    )


def find_labels(train: AnnotationFile, test: AnnotationFile) -> Path:
    """The file of the class names that a network has: those of the training list, if it has any."""
    return train.labels_path if train.labels_path.is_file() else test.labels_path


def read_list(file: AnnotationFile) -> VideoList:
    """The records of a list with the labels of the network, which are matched by class names.

    Raises ValueError for bad lines, and if the network has not exactly one class of the name of a
    label in use.
    """
    path = file.labels_path
    names = read_class_names(path, f"{path}") if file.class_names and path.is_file() else []
    classes = max(file.num_classes, len(names))
    records, left_out = read_annotations(file._replace(num_classes=classes))
    if left_out:
        log.info("%s: %d videos are left out: fewer than 3 frames", file.path, left_out)
    own = [escape_control(name) for name in names]  # as a checkpoint has them
    known = list(file.class_names)
    if not names or own == known:
        return VideoList(records, file.root)
    new_labels = {}
    for label in sorted({label for record in records for label in list_labels(record.label)}):
        name = own[label] if label < len(own) else ""
        if not name or own.count(name) > 1 or known.count(name) != 1:
            fault = f"{format_value(name)}, is not one class of the network"
            near = find_nearest(name, known)
            raise ValueError(f"{file.path}: its label {label}, in {path} {fault}; nearest: {near}")
        new_labels[label] = known.index(name)
    changed = sum(label != new for label, new in new_labels.items())
    if changed:
        text = "%s: %d classes have another label than in the network; they are matched by name"
        log.info(text, path, changed)
    for k, record in enumerate(records):
        labels = tuple(sorted(new_labels[label] for label in list_labels(record.label)))
        records[k] = record._replace(label=labels if file.multi_label else labels[0])
    return VideoList(records, file.root)


def read_annotations(
    file: AnnotationFile, min_frames: int = MIN_FRAMES
) -> tuple[list[Record], int]:
    """Reads an annotation file and checks every line and that its video exists.

    Lines of source "frames" with fewer than `min_frames` frames are left out (the source
    implementation keeps them for ensembles: `min_frames=0`). If `image_tmpl` has three fields, x
    and y of optical flow are separate files; num_frames counts both, so it is halved.

    Returns the records in file order, with paths below the root, and the number of lines left out.
    Raises ValueError if the file is missing, if it has no usable line, and for bad lines; then it
    names the first five.
    """
    exists = os.path.isdir if file.source == "frames" else os.path.isfile
    records = []
    short = 0
    bad = []
    for number, _, record in iterate_lines(file, min_frames):
        if record is None:
            short += 1
        elif isinstance(record, str):
            bad.append(f"line {number}: {record}")
        elif exists(record.path):
            records.append(record)
        else:
            bad.append(f"line {number}: {shorten(repr(record.path), MAX_PATH)} does not exist")
    if bad:
        root = "" if file.root.is_dir() else f", and data.root {file.root} is not a folder"
        shown = "; ".join(bad[:MAX_SHOWN])
        raise ValueError(f"{file.path}, bad lines ({len(bad)}{root}): {shown}")
    if not records:
        raise ValueError(f"{file.path} lists no video of {min_frames} frames or more")
    return records, short


def iterate_lines(file: AnnotationFile, min_frames: int = 0) -> Iterator[tuple[int, str, Any]]:
    """(number, text, record) of every line; does not look for the videos.

    Of a bad line, the record is the reason; None if it has fewer than `min_frames` frames.
    """
    lines, form = _read_lines(file)
    for number, text in lines:
        try:
            record: Any = _parse(number, text, file, form, min_frames)
        except ValueError as error:
            record = str(error)
        yield number, text, record


def name_record(record: Any) -> str:
    """The path, and of a segment its start and end: the identity of a sample."""
    return record.path if record.segment is None else f"{record.path} {record.segment}"


def choose_output_names(files: list[AnnotationFile]) -> list[Path]:
    """The names of the files or, if two are the same, the paths below their common folder."""
    paths = [file.path.resolve() for file in files]
    if len({path.name for path in paths}) == len(paths):
        return [Path(path.name) for path in paths]
    top = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(top) for path in paths]


def _read_lines(file: AnnotationFile) -> tuple[list[tuple[int, str]], str]:
    """(number, text) of the lines with text, and the form of the first one (`_find_form`)."""
    path = file.path
    if not os.path.isfile(path):
        raise ValueError(
            f"annotation file {path} is no file: data.root or the list's name is wrong (a relative "
            "one is looked for below data.root), or make one: scripts/data/make_lists.py"
        )
    # File names are bytes: surrogate escapes keep those that are not UTF-8.
    text = read_text(path, f"annotation file {path}", "surrogateescape")
    lines = [(n, line.strip()) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if lines and lines[0][1] == CSV_SEGMENTS:
        lines = lines[1:]
    if not lines:
        raise ValueError(f"annotation file {path} is empty")
    if file.multi_label:
        lines = _join_columns(lines, file)
    form = _find_form(lines[0][1], file)
    if form != FIELDS[file.source] and file.source == "frames" and not file.folder_fps:
        raise ValueError(
            f"data.folder_fps: set the frame rate of the folders; {path} lists segments in seconds"
        )
    return lines, form


def _join_columns(lines: list[tuple[int, str]], file: AnnotationFile) -> list[tuple[int, str]]:
    """Lines with a column for each label, `path 3 17`, as `path 3,17`; others as they are.

    Raises ValueError if the numbers of all lines may be labels or something else.
    """
    if any(re.search(r",\s*\S*$", text) for _, text in lines):
        return lines
    segments = [_split_segment(text, SEGMENTS)[1:3] for _, text in lines]
    if all(segments) and any("." in field for fields in segments for field in fields):
        return lines
    first = 1 if file.source == "frames" else 0  # num_frames
    columns = [COLUMNS.search(text) for _, text in lines]
    counts = {len(match[0].split()) for match in columns if match}
    if max(counts, default=0) <= first + 1:
        return lines
    if counts in ({2}, {3}):
        raise ValueError(
            f"{file.path}: all lines end in {max(counts)} numbers, of which not all may be labels: "
            "write the labels of a video as `3,17`, and a segment as `path,start,end,3,17`"
        )
    joined = []
    for (number, text), match in zip(lines, columns):
        if match:
            numbers = match[0].split()
            text = " ".join([text[: match.start()], *numbers[:first], ",".join(numbers[first:])])
        joined.append((number, text.rstrip()))
    return joined


def _find_form(text: str, file: AnnotationFile) -> str:
    """The form of a line: SEGMENTS, CSV_SEGMENTS or, for every other text, that of whole videos.

    A line is of a whole video if there is one of its name, as `my clip 7` of `my clip 7 30 2` or
    `a b,1,2,c` of `a b,1,2,c 3`.
    """
    wholes = [text.rsplit(" ", 1)[0], text.rsplit(" ", 1 if file.multi_label else 2)[0]]
    for form in (CSV_SEGMENTS, SEGMENTS):
        if _split_segment(text, form) and not any(os.path.exists(file.root / w) for w in wholes):
            return form
    return FIELDS[file.source]


def _split_segment(text: str, form: str) -> list[str]:
    """The four fields of a line with a segment in this form; empty for another line."""
    try:
        if form == SEGMENTS:
            fields = text.rsplit(" ", 3)
        else:
            fields = [field.strip() for field in next(csv.reader([text], skipinitialspace=True))]
            fields[3:] = [",".join(fields[3:])] if len(fields) > 3 else []
        numbers = [float(field) for field in fields[1:3]]
    except (csv.Error, ValueError):
        return []
    return fields if len(fields) == 4 and len(numbers) == 2 else []


def _parse(
    number: int, text: str, file: AnnotationFile, form: str, min_frames: int
) -> Optional[Record]:
    """The record of a line; None if it has too few frames, ValueError if it is bad."""
    is_whole = form in FIELDS.values()
    fields = text.rsplit(" ", 2) if is_whole else _split_segment(text, form)
    if _find_form(text, file) != form if is_whole else not fields:
        raise ValueError(f"{format_value(text)} is not `{form}`, the form of the first line")
    has_count = len(fields) > 2 and _parse_integer(fields[1]) is not None
    if is_whole and file.source == "video" and (file.multi_label or not has_count):
        fields = text.rsplit(" ", 1)
    if len(fields) < len(form.split()):
        raise ValueError(f"{format_value(text)} is not `{form}`, separated by single spaces")
    label = _parse_label(fields[-1], file)
    record = Record(str(file.root / fields[0]), num_frames=None, label=label, line=number)
    if not is_whole:
        segment = Segment(float(fields[1]), float(fields[2]))
        if not 0 <= segment.start < segment.end < math.inf:
            start, end = map(format_value, fields[1:3])
            raise ValueError(f"segment {start} to {end}: start must be at least 0, and below end")
        return record._replace(segment=segment)
    if len(fields) == 2:
        return record
    num_frames = _parse_integer(fields[1])
    if file.source == "frames" and num_frames is not None and 0 <= num_frames < min_frames:
        return None
    if num_frames is None or num_frames < 1:
        raise ValueError(f"num_frames {format_value(fields[1])} is not a positive integer")
    # Of optical flow, one file is for x and one for y
    is_pair = file.image_tmpl.count("{") == 3
    return record._replace(num_frames=num_frames // 2 if is_pair else num_frames)


def _parse_label(text: str, file: AnnotationFile) -> Label:
    """The label; multi-label: the labels of `3,17`, ascending, and none of `-`."""
    if file.multi_label and text == NO_LABEL:
        return ()
    labels = set()
    for part in text.split(",") if file.multi_label else [text]:
        label = _parse_integer(part)
        if label is None or not 0 <= label < file.num_classes:
            raise ValueError(
                f"label {format_value(part)} is not an integer from 0 to {file.num_classes - 1}: "
                f"num_classes is {file.num_classes}"
            )
        labels.add(label)
    return tuple(sorted(labels)) if file.multi_label else labels.pop()


def _parse_integer(text: str) -> Optional[int]:
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def list_labels(label: Label) -> tuple[int, ...]:
    return (label,) if isinstance(label, int) else label


def format_label(label: Label) -> str:
    """The label as a list has it."""
    return str(label) if isinstance(label, int) else ",".join(map(str, label)) or NO_LABEL


def encode_label(label: Label, classes: int) -> Union[np.int32, np.ndarray]:
    """The target of a row: int32, or multi-label float32 (classes,), 1 for each of them."""
    if isinstance(label, int):
        return np.int32(label)
    target = np.zeros(classes, np.float32)
    target[list(label)] = 1
    return target


def swap_labels(label: Label, pairs: Sequence[tuple[int, int]]) -> Label:
    """The label or labels of a mirrored clip: the labels of a pair are exchanged."""
    other = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    if isinstance(label, int):
        return other.get(label, label)
    return tuple(sorted(other.get(part, part) for part in label))


def find_class_names(names_file: Optional[Path], builtin: str, classes: int) -> list[str]:
    """The class names of a data set, in the order of the labels.

    They are in `names_file`, the `labels.txt` beside the annotation files, if it exists. Otherwise
    `builtin`, the setting `labels`, names built-in ones, or is empty. Returns an empty list if
    there are no names, or if the built-in ones are not `classes` names: then the network has other
    classes than the data set of the recipe. Raises ValueError if `names_file` does not hold
    `classes` names.
    """
    if names_file is not None and names_file.is_file():
        return read_class_names(names_file, f"{names_file}", classes)
    if not builtin:
        return []
    files = {file.stem: file for file in sorted(BUILTIN_NAMES.glob("*.txt"))}
    check_choice(builtin, files, "list of data.labels")
    names = files[builtin].read_text(encoding="utf-8").splitlines()
    return names if len(names) == classes else []


def read_class_names(path: Path, description: str, classes: int = 0) -> list[str]:
    """The lines of a file; ValueError, with `description`, if they are not `classes` (0: any)."""
    names = [line.strip() for line in read_text(path, description).rstrip().split("\n")]
    if classes and len(names) != classes:
        raise ValueError(
            f"{description} has {len(names)} names, the network {classes} classes; set "
            "num_classes, or give a line for each"
        )
    return names


def describe_numbered(names: Sequence[str]) -> str:
    """What to say if all names of class folders are numbers, but not those of their labels."""
    are_numbers = all(name.isdecimal() for name in names)
    odd = [(name, k) for k, name in enumerate(names) if are_numbers and int(name) != k]
    text = "class folders are numbers, and labels count them sorted as text: folder {} has label {}"
    return text.format(*odd[0]) if odd else ""
