"""Files of scores: the `scores.csv` of a report, and scores that another program has written."""

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils import files
from utils.data.annotation_file import NO_LABEL, format_label
from utils.evaluate.label_report import LABEL_COLUMNS
from utils.evaluate.report import SCORE_COLUMNS
from utils.evaluate.report_page import Samples
from utils.evaluate.several_labels import encode_label_sets

UNREADABLE = "unreadable"
MAX_SCORES = 2**31  # bytes of an .npz, which may be packed a thousandfold
# What reading raises for a file of another form, or of numbers or sizes that no array can have
NO_SCORES = (AttributeError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile)
NO_SCORES += (MemoryError, OverflowError)


class Scores(NamedTuple):
    """The scores float64 (n, classes) of n samples; `readable` (n,) is False for those without."""

    samples: Samples
    values: np.ndarray
    readable: np.ndarray


def read_scores(path: Path) -> tuple[Samples, np.ndarray]:
    """The samples of a `scores.csv`, and its rows as `metrics.ScoreTable` has them.

    Raises ValueError if it is not such a file.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name a folder that eval.py --report wrote")
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        header, *lines = csv.reader(file) or [[]]
    several = tuple(header[: len(LABEL_COLUMNS)]) == LABEL_COLUMNS
    columns = LABEL_COLUMNS if several else SCORE_COLUMNS
    width = len(columns)
    try:
        if tuple(header[:width]) != columns or not lines:
            raise ValueError("no table of scores")
        classes = [name.partition(" ")[2] for name in header[width:]]
        labels = [parse_labels(line[1]) if several else int(line[1]) for line in lines]
        samples = Samples([line[0] for line in lines], labels, classes)
        targets = encode_label_sets(labels, len(classes)) if several else np.array(labels)[:, None]
        rows = np.zeros((len(lines), len(classes) + targets.shape[1] + 1))
        for row, line, target in zip(rows, lines, targets):
            if line[2] != UNREADABLE:
                row[:] = [*map(float, line[width:]), *target, 1]
    except (IndexError, ValueError):
        raise ValueError(f"{path} is not a scores.csv that eval.py --report wrote") from None
    return samples, rows


def parse_labels(text: str) -> tuple[int, ...]:
    """The inverse of `format_label`, for several labels."""
    return () if text == NO_LABEL else tuple(map(int, text.split(",")))


def read_any_scores(path: Path) -> Scores:
    """The scores of a report, or of a file that another program has written.

    Such a file has no labels; `.npy` and `.npz` may have no names. Raises ValueError for a file of
    another form.
    """
    if not path.is_dir() and (path.suffix not in READERS or not path.is_file()):  # so no pipe
        raise ValueError(f"{path}: name a folder of eval.py --report, or {', '.join(READERS)}")
    if path.is_dir() or is_report(path):
        samples, rows = read_scores(path / "scores.csv" if path.is_dir() else path)
        return Scores(samples, rows[:, : len(samples.classes)], rows[:, -1] > 0)
    try:
        paths, numbers = READERS[path.suffix](path)
        values = np.asarray(numbers, np.float64)
    except NO_SCORES as error:
        raise ValueError(f"{path} holds no scores of videos: {error}") from None
    if values.ndim != 2 or not values.size or len(paths) not in (0, len(values)):
        shape = f"{len(paths)} names and scores {list(values.shape)}"
        raise ValueError(f"{path} has {shape}, not one row (classes) for a video")
    samples = Samples(paths, classes=[""] * values.shape[1])
    return Scores(samples, values, np.ones(len(values), bool))


def is_report(path: Path) -> bool:
    """Whether a file is the `scores.csv` of a report."""
    if path.suffix != ".csv":
        return False
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        header = file.readline()
    return any(header.startswith(",".join(names)) for names in (SCORE_COLUMNS, LABEL_COLUMNS))


def read_csv(path: Path) -> tuple[Sequence[str], list]:
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line for line in csv.reader(file) if line]
    has_header = bool(lines) and lines[0][0] == SCORE_COLUMNS[0]
    lines = lines[has_header:]
    return [line[0] for line in lines], [list(map(float, line[1:])) for line in lines]


def read_json(path: Path) -> tuple[Sequence[str], list]:
    scores = files.read_json(path, "it")
    return list(scores), list(scores.values())


def read_npy(path: Path) -> tuple[Sequence[str], np.ndarray]:
    names = path.with_suffix(".txt")
    text = files.read_text(names, str(names), "surrogateescape") if names.is_file() else ""
    return text.removesuffix("\n").split("\n") if text else [], np.load(path, allow_pickle=False)


def read_npz(path: Path) -> tuple[Sequence[str], np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_SCORES:
            raise ValueError(f"it unpacks to more than {MAX_SCORES} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        paths = arrays["paths"].tolist() if "paths" in arrays else []
        return paths, arrays["scores"]


READERS = {".csv": read_csv, ".json": read_json, ".npy": read_npy, ".npz": read_npz}


def find_difference(samples: Samples, other: Samples) -> str:
    """The first difference of two lists in words; an empty string if they are equal.

    Lists without labels, and lists without names, equal any list in these.
    """
    if len(samples.classes) != len(other.classes):
        return f"{len(other.classes)} classes instead of {len(samples.classes)}"
    for k, names in enumerate(zip(samples.classes, other.classes)):
        if all(names) and names[0] != names[1]:
            return f"class {k} is {names[1]} instead of {names[0]}"
    for k, (path, other_path) in enumerate(zip(samples.paths, other.paths)):
        if path != other_path:
            return f"video {k + 1} is {other_path} instead of {path}"
        if samples.labels and other.labels and samples.labels[k] != other.labels[k]:
            labels = [format_label(samples_of.labels[k]) for samples_of in (other, samples)]
            return f"{path} has label {labels[0]} instead of {labels[1]}"
    if samples.paths and other.paths and len(samples.paths) != len(other.paths):
        return f"{len(other.paths)} videos instead of {len(samples.paths)}"
    return ""
