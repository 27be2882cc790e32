"""The official annotation files of public data sets: which video is of which class.

Every reader takes the folder of the annotation files as they are distributed, and returns the
classes' names in the order of their labels and, for `train` and `val`, each video's key and label.
A key is the end of a video's path without its extension: `name`, or `folder/name` where names come
twice.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from utils.files import read_text
from utils.messages import format_value

KINETICS_SPLITS = {"train": "train", "val": "val", "validate": "val"}


class Annotations(NamedTuple):
    """`train`, `val`: {key: label}; `files`: what was read."""

    names: list[str]
    train: dict[str, int]
    val: dict[str, int]
    files: list[Path]


def kinetics(folder: Path, split: int) -> Annotations:
    """CSV files with the columns label, youtube_id, time_start, time_end, split; sorted classes."""
    result: dict[str, dict[str, str]] = {"train": {}, "val": {}}
    columns = {"label", "youtube_id", "time_start", "time_end", "split"}
    files = [file for file in sorted(folder.glob("*.csv")) if columns <= set(header(file))]
    for file in files:
        for number, row in rows(file, csv.DictReader(lines(file))):
            if row["split"] == "test":  # not every release has its labels
                continue
            with annotation_errors(file, number):
                span = int(float(row["time_start"])), int(float(row["time_end"]))
                key = f"{row['youtube_id']}_{span[0]:06d}_{span[1]:06d}"
                result[KINETICS_SPLITS[row["split"]]][key] = filled(row["label"])
    if not files:
        raise ValueError(f"--annotations: {folder} has no csv with {', '.join(sorted(columns))}")
    return by_name(result["train"], result["val"], files)


def sthv2(folder: Path, split: int) -> Annotations:
    """labels.json, train.json, validation.json, with or without `something-something-v2-`."""
    files = [one(folder, f"*{name}.json") for name in ("labels", "train", "validation")]
    given, *parts = map(read_json, files)
    with annotation_errors(files[0]):
        labels = {name: int(str(label)) for name, label in given.items()}
    result = []
    for file, part in zip(files[1:], parts):
        with annotation_errors(file):
            videos = [(row["id"], row["template"]) for row in part]
            plain = str.maketrans("", "", "[]")
            result.append({str(name): labels[text.translate(plain)] for name, text in videos})
    return Annotations(ordered(labels, files[0]), result[0], result[1], files)


def sthv1(folder: Path, split: int) -> Annotations:
    """`*-labels.csv`, a class a line; `*-train.csv`, `*-validation.csv`, `id;class`; sorted."""
    files = [one(folder, f"*{name}.csv") for name in ("labels", "train", "validation")]
    names = sorted(line for line in lines(files[0]) if line)
    train, val = (pairs(file, ";") for file in files[1:])
    return by_name(train, val, files, names)


def moments(folder: Path, split: int) -> Annotations:
    """moments_categories.txt, `class,label`; trainingSet.csv, `class/video,class,...`."""
    files = [folder / n for n in ("moments_categories.txt", "trainingSet.csv", "validationSet.csv")]
    with annotation_errors(files[0]):
        given = [row for row in csv.reader(lines(files[0])) if row]
        labels = {name: int(label) for name, label in given}
    result: list[dict[str, int]] = []
    for file in files[1:]:
        result.append({})
        for number, row in rows(file, csv.reader(lines(file))):
            with annotation_errors(file, number):
                if row:
                    result[-1][key_of(row[0])] = labels[row[0].rpartition("/")[0]]
    return Annotations(ordered(labels, files[0]), result[0], result[1], files)


def ucf101(folder: Path, split: int) -> Annotations:
    """classInd.txt, `label class` from 1; trainlist01.txt and testlist01.txt, `class/video ...`."""
    lists = (f"{name}list{split:02d}.txt" for name in ("train", "test"))
    files = [folder / name for name in ("classInd.txt", *lists)]
    with annotation_errors(files[0]):
        given = [line.split() for line in lines(files[0]) if line]
        labels = {name: int(label) - 1 for label, name in given}
    result: list[dict[str, int]] = []
    for file in files[1:]:
        result.append({})
        for number, line in enumerate(lines(file), 1):
            with annotation_errors(file, number):
                if line:
                    result[-1][key_of(line.split()[0])] = labels[line.split("/")[0]]
    return Annotations(ordered(labels, files[0]), result[0], result[1], files)


def hmdb51(folder: Path, split: int) -> Annotations:
    """`CLASS_test_split1.txt`, `video 1` to train, `video 2` to test, 0 neither; sorted classes."""
    end = f"_test_split{split}.txt"
    files = sorted(folder.glob(f"*{end}"))
    if not files:
        raise ValueError(f"--annotations: {folder} has no CLASS{end}")
    result: dict[str, dict[str, int]] = {"0": {}, "1": {}, "2": {}}
    names = [file.name[: -len(end)] for file in files]
    for label, (name, file) in enumerate(zip(names, files)):
        for number, line in enumerate(lines(file), 1):
            with annotation_errors(file, number):
                if line:
                    video, part = line.split()
                    result[part][key_of(f"{name}/{video}")] = label
    return Annotations(names, result["1"], result["2"], files)


READERS = {
    "kinetics": kinetics,
    "sthv2": sthv2,
    "sthv1": sthv1,
    "jester": sthv1,
    "moments": moments,
    "ucf101": ucf101,
    "hmdb51": hmdb51,
}
FRAMES = ("sthv1", "jester")  # distributed as folders of JPEG frames


def read(dataset: str, folder: Path, split: int) -> Annotations:
    """Raises ValueError, naming file and line, where a file is missing or not as distributed."""
    if not folder.is_dir():
        raise ValueError(f"--annotations: {folder} is no folder")
    result = READERS[dataset](folder, split)
    odd = next((name for name in result.names if not name.isprintable()), None)
    if odd is not None:
        raise ValueError(
            f"--annotations: class {format_value(odd)} of {result.files[0]} cannot be printed"
        )
    return result


def key_of(path: str) -> str:
    """`folder/name`, without the extension."""
    return path.rpartition(".")[0] or path


def by_name(train: dict, val: dict, files: list[Path], names: Sequence[str] = ()) -> Annotations:
    """From classes' names to labels, in the order given or else sorted."""
    names = list(names) or sorted({*train.values(), *val.values()})
    labels = {name: label for label, name in enumerate(names)}
    odd = next((n for n in (*train.values(), *val.values()) if n not in labels), None)
    if odd is not None:
        raise ValueError(f"--annotations: {odd!r} is no class of {files[0]}")
    train, val = ({key: labels[name] for key, name in part.items()} for part in (train, val))
    return Annotations(names, train, val, files)


def ordered(labels: dict[str, int], file: Path) -> list[str]:
    """The names in the order of their labels, which must be 0, 1, 2, ..."""
    names = sorted(labels, key=labels.get)
    if not names or [labels[name] for name in names] != list(range(len(names))):
        raise ValueError(f"--annotations: the labels in {file} do not count up from the first")
    return names


def pairs(file: Path, mark: str) -> dict[str, str]:
    result = {}
    for number, line in enumerate(lines(file), 1):
        if line:
            with annotation_errors(file, number):
                key, name = line.split(mark)
                result[key] = filled(name)
    return result


def filled(text: Any) -> str:
    if not text:
        raise ValueError
    return text


def one(folder: Path, pattern: str) -> Path:
    """The one file of the folder with such a name."""
    result = sorted(folder.glob(pattern))
    if len(result) != 1:
        raise ValueError(f"--annotations: {folder} must have one {pattern}, not {len(result)}")
    return result[0]


def read_json(file: Path) -> Any:
    with annotation_errors(file):
        return json.loads("\n".join(lines(file)))


def lines(file: Path) -> list[str]:
    return [line.strip() for line in read_text(file, f"--annotations: {file}").split("\n")]


def header(file: Path) -> list[str]:
    with annotation_errors(file, 1):
        return next(csv.reader(lines(file)), [])


def rows(file: Path, reader: Any) -> Iterator[tuple[int, Any]]:
    """(number of the line, row) of a reader of the module csv."""
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"--annotations: {file}, line {reader.line_num} is not csv: {error}"
            ) from None
        if row is None:
            return
        yield reader.line_num, row


@contextmanager
def annotation_errors(file: Path, number: int = 0) -> Iterator[None]:
    """What is not as distributed becomes a ValueError that names the file, and the line."""
    try:
        yield
    except Exception as error:  # a file can make Python and its readers raise almost anything
        if str(error).startswith("--annotations"):
            raise
        position = f"{file}, line {number}" if number else str(file)
        why = f": {error} is unknown" if isinstance(error, KeyError) else ""
        raise ValueError(f"--annotations: {position} is not in the official form{why}") from None
