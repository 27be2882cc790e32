"""Annotation files of public video data sets, and lists of the annotated videos below a folder.

Every reader takes the folder of the annotation files as they are distributed. It returns the class
names in the order of their labels and, for `train` and `val`, the key and label of each video. A
key is the end of a video's path without its extension: `name`, or `folder/name` if the data set
uses one name in several folders.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, NamedTuple, Optional

from utils.files import read_text
from utils.messages import format_value, print_line
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, has_suffix, walk_files
from utils.video.reader import Segment

KINETICS_SPLITS = {"train": "train", "val": "val", "validate": "val"}
KINETICS_COLUMNS = {"label", "youtube_id", "time_start", "time_end", "split"}
FRAME = re.compile(r"(?:.*\D)?([0-9]+)\.\w+")


class Annotations(NamedTuple):
    """`train`, `val`: {key: label}; `files`: the annotation files.

    `segments`: {key: (key of the uncut video, start and end in seconds)}, if they are annotated.
    """

    names: list[str]
    train: dict[str, int]
    val: dict[str, int]
    files: list[Path]
    segments: Mapping[str, tuple[str, Segment]] = MappingProxyType({})


def read_kinetics(folder: Path, split: int) -> Annotations:
    """CSV files with the columns label, youtube_id, time_start, time_end, split; sorted classes."""
    result: dict[str, list[tuple[str, str]]] = {"train": [], "val": []}
    segments: dict[str, tuple[str, Segment]] = {}
    files = [file for file in sorted(folder.glob("*.csv")) if read_header(file) >= KINETICS_COLUMNS]
    for file in files:
        for number, row in iterate_csv(file, csv.DictReader):
            if row["split"] == "test":  # some releases have no labels for it
                continue
            with annotation_errors(file, number):
                span = Segment(float(row["time_start"]), float(row["time_end"]))
                key = f"{row['youtube_id']}_{int(span.start):06d}_{int(span.end):06d}"
                segments[key] = (row["youtube_id"], span)
                result[KINETICS_SPLITS[row["split"]]].append((key, require_value(row["label"])))
    if not files:
        columns = ", ".join(sorted(KINETICS_COLUMNS))
        raise ValueError(f"--annotations: {folder} has no csv with {columns}")
    train, val = (collect(pairs, f"{folder}, {name}") for name, pairs in result.items())
    return convert_names_to_labels(train, val, files)._replace(segments=segments)


def read_sthv2(folder: Path, split: int) -> Annotations:
    """labels.json, train.json, validation.json, with or without `something-something-v2-`."""
    files = [find_one(folder, f"*{name}.json") for name in ("labels", "train", "validation")]
    with annotation_errors(files[0]):
        labels = {name: int(str(label)) for name, label in read_json(files[0]).items()}
    result = []
    brackets = str.maketrans("", "", "[]")
    for file in files[1:]:
        with annotation_errors(file):
            rows = read_json(file)
            pairs = [(str(r["id"]), labels[r["template"].translate(brackets)]) for r in rows]
            result.append(collect(pairs, str(file)))
    return Annotations(order_names(labels, files[0]), train=result[0], val=result[1], files=files)


def read_json(file: Path) -> Any:
    return json.loads("\n".join(read_lines(file)))


def read_sthv1(folder: Path, split: int) -> Annotations:
    """`*-labels.csv`, one class a line; `*-train.csv`, `*-validation.csv`, `id;class`; sorted."""

    def parse(line: str) -> tuple[str, str]:
        key, name = line.split(";")
        return key, require_value(name)

    files = [find_one(folder, f"*{name}.csv") for name in ("labels", "train", "validation")]
    names = sorted(line for line in read_lines(files[0]) if line)
    train, val = (read_rows(file, parse) for file in files[1:])
    return convert_names_to_labels(train, val=val, files=files, names=names)


def read_moments(folder: Path, split: int) -> Annotations:
    """moments_categories.txt, `class,label`; trainingSet.csv, `class/video,class,...`."""
    files = [folder / n for n in ("moments_categories.txt", "trainingSet.csv", "validationSet.csv")]
    with annotation_errors(files[0]):
        rows = [row for row in csv.reader(read_lines(files[0])) if row]
        labels = {name: int(label) for name, label in rows}

    def parse(row: list[str]) -> tuple[str, int]:
        return strip_extension(row[0]), labels[row[0].rpartition("/")[0]]

    train, val = (read_rows(file, parse, csv.reader) for file in files[1:])
    return Annotations(order_names(labels, files[0]), train=train, val=val, files=files)


def read_ucf101(folder: Path, split: int) -> Annotations:
    """classInd.txt, `label class` from 1; trainlist01.txt and testlist01.txt, `class/video ...`."""
    lists = (f"{name}list{split:02d}.txt" for name in ("train", "test"))
    files = [folder / name for name in ("classInd.txt", *lists)]
    with annotation_errors(files[0]):
        rows = [line.split() for line in read_lines(files[0]) if line]
        labels = {name: int(label) - 1 for label, name in rows}

    def parse(line: str) -> tuple[str, int]:
        return strip_extension(line.split()[0]), labels[line.split("/")[0]]

    train, val = (read_rows(file, parse) for file in files[1:])
    return Annotations(order_names(labels, files[0]), train=train, val=val, files=files)


def read_hmdb51(folder: Path, split: int) -> Annotations:
    """`CLASS_test_split1.txt`: `video 1` is train, `video 2` test, `video 0` neither; sorted."""
    end = f"_test_split{split}.txt"
    files = sorted(folder.glob(f"*{end}"))
    if not files:
        raise ValueError(f"--annotations: {folder} has no CLASS{end}")
    result: dict[str, list[tuple[str, int]]] = {"0": [], "1": [], "2": []}
    names = [file.name[: -len(end)] for file in files]
    for label, (name, file) in enumerate(zip(names, files)):
        for number, line in number_lines(file):
            with annotation_errors(file, number):
                if line:
                    video, part = line.split()
                    result[part].append((strip_extension(f"{name}/{video}"), label))
    train, val = (collect(result[part], f"{folder}, {part} of *{end}") for part in "12")
    return Annotations(names, train=train, val=val, files=files)


def read_diving48(folder: Path, split: int) -> Annotations:
    """Diving48_vocab.json, words of classes; Diving48_V2_train.json, V2_test: vid_name, label."""
    files = [folder / f"Diving48_{name}.json" for name in ("vocab", "V2_train", "V2_test")]
    with annotation_errors(files[0]):
        names = ["+".join(words) for words in read_json(files[0])]
    parts = []
    for file in files[1:]:
        with annotation_errors(file):
            pairs = [(row["vid_name"], int(row["label"])) for row in read_json(file)]
            rows = collect(pairs, str(file))
            if not all(0 <= label < len(names) for label in rows.values()):
                raise ValueError
            parts.append(rows)
    return Annotations(names, train=parts[0], val=parts[1], files=files)


def read_activitynet(folder: Path, split: int) -> Annotations:
    """activity_net.v1-3.min.json; sorted classes. A whole video has the class of its first action.

    The subset `testing` has no labels.
    """
    file = find_one(folder, "activity_net*.json")
    parts: dict[str, dict[str, str]] = {"training": {}, "validation": {}, "testing": {}}
    with annotation_errors(file):
        for name, video in read_json(file)["database"].items():
            if video["annotations"]:
                label = require_value(video["annotations"][0]["label"])
                parts[video["subset"]][f"v_{name}"] = label
    return convert_names_to_labels(parts["training"], parts["validation"], [file])


READERS = {
    "kinetics": read_kinetics,
    "sthv2": read_sthv2,
    "sthv1": read_sthv1,
    "jester": read_sthv1,
    "moments": read_moments,
    "ucf101": read_ucf101,
    "hmdb51": read_hmdb51,
    "diving48": read_diving48,
    "activitynet": read_activitynet,
}
FRAMES = ("sthv1", "jester")  # distributed as folders of JPEG frames


def read_public_annotations(dataset: str, folder: Path, split: int) -> Annotations:
    """Reads the annotations of one of READERS; `split` counts from 1 (UCF101, HMDB51).

    Raises ValueError with the file and line if a file is missing or not as distributed.
    """
    if not folder.is_dir():
        raise ValueError(f"--annotations: {folder} is not a folder")
    result = READERS[dataset](folder, split)
    both = [key for key in result.val if key in result.train]
    if both:
        print_line(f"videos in both lists, train and val ({len(both)}), for example {both[0]}")
    odd = next((name for name in result.names if not name.isprintable()), None)
    if odd is not None:
        raise ValueError(
            f"--annotations: class {format_value(odd)} of {result.files[0]} cannot be printed"
        )
    return result


class VideoLists(NamedTuple):
    """Lines of the lists, and what did not match."""

    train: list[str]
    val: list[str]
    missing: list[str]  # lines `split key label` of annotated videos that do not exist
    others: list[str]  # paths without an annotation
    doubles: list[str]  # paths of further files of a listed video


def match_videos(
    annotations: Annotations, root: Path, frames: bool, uncut: bool = False
) -> VideoLists:
    """Looks for the annotated videos (or, with `frames`, folders of JPEG frames) below `root`.

    With `uncut`, it looks for the uncut videos, and the lines have start and end of the segments.
    Raises ValueError if `root` has none of them.
    """
    names = {key: key for key in (*annotations.train, *annotations.val)}
    times = dict.fromkeys(names, "")
    if uncut:
        names = {key: annotations.segments[key][0] for key in names}
        times = {key: f"{annotations.segments[key][1]} " for key in names}
    keys = dict.fromkeys(names.values())
    with_folder = any("/" in key for key in keys)
    files = find_frame_folders(root) if frames else find_videos(root, with_folder)
    train = []
    val = []
    missing = []
    for name, part, lines in (("train", annotations.train, train), ("val", annotations.val, val)):
        for key, label in part.items():
            if names[key] in files:
                lines.append(f"{files[names[key]][0]} {times[key]}{label}")
            else:
                missing.append(f"{name} {key} {label}")
    if not train and not val:
        example = f"a {'folder' if frames else 'video'} {next(iter(keys), 'nothing')}"
        raise ValueError(
            f"--videos: {root} has none of the {len(keys)} annotated videos; the first is {example}"
        )
    odd = next((line for line in (*train, *val) if "\n" in line), None)
    if odd:
        raise ValueError(f"--videos: {format_value(odd)} has a line break in its name; rename it")
    others = sorted(path for key, paths in files.items() if key not in keys for path in paths)
    doubles = sorted(path for key in keys for path in files.get(key, ())[1:])
    return VideoLists(train, val=val, missing=missing, others=others, doubles=doubles)


def find_videos(root: Path, with_folder: bool) -> dict[str, list[str]]:
    """{key: paths below `root`} of all videos; `with_folder`: a key includes the last folder."""
    result: dict[str, list[str]] = defaultdict(list)
    for folder, names in walk_data(root):
        for name in names:
            if has_suffix(name, VIDEO_SUFFIXES):
                key = f"{folder.name}/{name}" if with_folder else name
                result[strip_extension(key)].append(str(folder / name))
    return result


def find_frame_folders(root: Path) -> dict[str, list[str]]:
    """{name: [`path num_frames`]} of all folders whose frames count up from 0 or 1."""
    result: dict[str, list[str]] = defaultdict(list)
    gaps = []
    for folder, names in walk_data(root):
        images = [name for name in names if has_suffix(name, IMAGE_SUFFIXES)]
        numbers = {int(hit.group(1)) for hit in map(FRAME.fullmatch, images) if hit}
        first = min(numbers, default=0)
        if numbers and first < 2 and max(numbers) - first == len(numbers) - 1:
            result[folder.name].append(f"{folder} {len(numbers)}")
        elif numbers:
            gaps.append(str(folder))
    if gaps:
        what = "folders left out, whose frames do not count up from 0 or 1 without a gap"
        print_line(f"{what} ({len(gaps)}), for example {gaps[0]}")
    return result


def walk_data(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """(folder below `root`, its file names) as `walk_files`; prints what it leaves out."""
    system: list[str] = []
    for folder, names in walk_files(root, system):
        yield Path(folder), names
    if system:
        what = "hidden or system files and folders, left out"
        print_line(f"{what} ({len(system)}), for example {system[0]}")


def strip_extension(path: str) -> str:
    return path.rpartition(".")[0] or path


def convert_names_to_labels(
    train: dict[str, str], val: dict[str, str], files: list[Path], names: Sequence[str] = ()
) -> Annotations:
    """Annotations from {key: class name}; labels count `names`, or all class names sorted."""
    names = list(names) or sorted({*train.values(), *val.values()})
    labels = {name: label for label, name in enumerate(names)}
    odd = next((n for n in (*train.values(), *val.values()) if n not in labels), None)
    if odd is not None:
        raise ValueError(f"--annotations: {odd!r} is not a class of {files[0]}")
    train_labels, val_labels = (
        {key: labels[name] for key, name in part.items()} for part in (train, val)
    )
    return Annotations(names, train=train_labels, val=val_labels, files=files)


def order_names(labels: dict[str, int], file: Path) -> list[str]:
    """The names in the order of their labels, which must be 0, 1, 2, ..."""
    names = sorted(labels, key=labels.get)
    if not names or [labels[name] for name in names] != list(range(len(names))):
        raise ValueError(f"--annotations: the labels in {file} do not count up from the first")
    return names


def read_rows(file: Path, parse: Callable, csv_reader: Optional[Callable] = None) -> dict[str, Any]:
    """{key: value} of lines or rows of csv, each by `parse`; empty ones are skipped."""
    result = []
    for number, row in iterate_csv(file, csv_reader) if csv_reader else number_lines(file):
        if row:
            with annotation_errors(file, number):
                result.append(parse(row))
    return collect(result, str(file))


def collect(pairs: Sequence[tuple[str, Any]], name: str) -> dict[str, Any]:
    """{key: value}; of a key with several values the last. Prints how many keys occur twice."""
    result: dict[str, Any] = {}
    repeated: dict[str, bool] = {}  # whether the values differ
    for key, value in pairs:
        if key in result:
            repeated[key] = repeated.get(key, False) or result[key] != value
        result[key] = value
    contrary = [key for key, differs in repeated.items() if differs]
    if repeated:
        print_line(f"{name}: videos twice ({len(repeated)}), for example {next(iter(repeated))}")
    if contrary:
        what = "with several labels, of which the last counts"
        print_line(f"{name}: videos {what} ({len(contrary)}), for example {contrary[0]}")
    return result


def require_value(text: Any) -> str:
    """The text of a field; ValueError if it is missing or empty."""
    if not text:
        raise ValueError
    return text


def find_one(folder: Path, pattern: str) -> Path:
    """The only file of the folder whose name matches."""
    result = sorted(folder.glob(pattern))
    if len(result) != 1:
        raise ValueError(f"--annotations: {folder} must have one {pattern}, not {len(result)}")
    return result[0]


def read_lines(file: Path) -> list[str]:
    return [line.strip() for line in read_text(file, f"--annotations: {file}").split("\n")]


def number_lines(file: Path) -> Iterator[tuple[int, str]]:
    return enumerate(read_lines(file), 1)


def read_header(file: Path) -> set[str]:
    with annotation_errors(file, 1):
        return set(next(csv.reader(read_lines(file)), []))


def iterate_csv(file: Path, reader_class: Callable) -> Iterator[tuple[int, Any]]:
    """(line number, row) by `csv.reader` or `csv.DictReader`."""
    reader = reader_class(read_lines(file))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        position = f"{file}, line {reader.line_num}"
        raise ValueError(f"--annotations: {position} is not csv: {error}") from None


@contextmanager
def annotation_errors(file: Path, number: int = 0) -> Iterator[None]:
    """Turns an error in a file that is not as distributed into a ValueError with file and line."""
    try:
        yield
    except Exception as error:  # a file can make Python and its readers raise almost anything
        if str(error).startswith("--"):
            raise
        position = f"{file}, line {number}" if number else str(file)
        why = f": {error} is unknown" if isinstance(error, KeyError) else ""
        raise ValueError(f"--annotations: {position} is not in the official form{why}") from None
