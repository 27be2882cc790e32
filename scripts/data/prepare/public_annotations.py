"""Annotation files of public video data sets, and lists of the annotated videos below a folder.

Every reader takes the folder of the annotation files as they are distributed, and the split. It
returns the class names in the order of their labels, the key and class of each video of `train` and
of `val`, the files. A key is the end of a video's path without its extension: `name`, or
`folder/name` if the data set uses one name in several folders.
"""

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from utils.files import read_text
from utils.messages import print_line
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, has_suffix, walk_files
from utils.video.reader import Segment

KINETICS_SPLITS = {"train": "train", "val": "val", "validate": "val"}
KINETICS_COLUMNS = {"label", "split", "time_end", "time_start", "youtube_id"}
FRAME = re.compile(r"(?:.*\D)?([0-9]+)\.\w+")
Pairs = list[tuple[str, str]]  # (key, class)


class Annotations(NamedTuple):
    """`train`, `val`: {key: label}; `files`: the annotation files.

    `segments`: {key: (key of the uncut video, `start end ` in seconds)}, if they are annotated.
    """

    names: list[str]
    train: dict[str, int]
    val: dict[str, int]
    files: list[Path]
    segments: dict[str, tuple[str, str]]


def read_kinetics(folder: Path, split: int) -> tuple:
    """CSV files with the columns label, youtube_id, time_start, time_end, split; sorted classes."""
    parts: dict[str, Pairs] = {"train": [], "val": []}
    segments = {}
    files = []
    for file in sorted(folder.glob("*.csv")):
        rows = csv.DictReader(read_lines(file))
        if not KINETICS_COLUMNS.issubset(rows.fieldnames or ()):
            continue
        files.append(file)
        for row in rows:
            if row["split"] == "test":  # some releases have no labels for it
                continue
            span = Segment(float(row["time_start"]), float(row["time_end"]))
            key = f"{row['youtube_id']}_{int(span.start):06d}_{int(span.end):06d}"
            segments[key] = (row["youtube_id"], f"{span} ")
            parts[KINETICS_SPLITS[row["split"]]].append((key, row["label"]))
    names = sorted({name for pairs in parts.values() for _, name in pairs})
    return names, parts["train"], parts["val"], files, segments


def read_sthv2(folder: Path, split: int) -> tuple:
    """labels.json, train.json, validation.json, with or without `something-something-v2-`."""
    files = [find_one(folder, f"*{name}.json") for name in ("labels", "train", "validation")]
    labels, *parts = map(read_json, files)
    names = order_names({name: int(str(label)) for name, label in labels.items()})
    brackets = str.maketrans("", "", "[]")
    train, val = ([(str(r["id"]), r["template"].translate(brackets)) for r in p] for p in parts)
    return names, train, val, files


def read_sthv1(folder: Path, split: int) -> tuple:
    """`*-labels.csv`, one class a line; `*-train.csv`, `*-validation.csv`, `id;class`; sorted."""
    files = [find_one(folder, f"*{name}.csv") for name in ("labels", "train", "validation")]
    names, *parts = map(read_lines, files)
    train, val = ([line.split(";") for line in part] for part in parts)
    return sorted(names), train, val, files


def read_moments(folder: Path, split: int) -> tuple:
    """moments_categories.txt, `class,label`; trainingSet.csv, `class/video,class,...`."""
    files = [folder / n for n in ("moments_categories.txt", "trainingSet.csv", "validationSet.csv")]
    labels, *parts = ([*csv.reader(read_lines(file))] for file in files)
    names = order_names({name: int(label) for name, label in labels})
    return names, *map(pair_with_folders, parts), files


def read_ucf101(folder: Path, split: int) -> tuple:
    """classInd.txt, `label class` from 1; trainlist01.txt and testlist01.txt, `class/video ...`."""
    lists = (f"{name}list{split:02d}.txt" for name in ("train", "test"))
    files = [folder / name for name in ("classInd.txt", *lists)]
    labels, *parts = ([line.split() for line in read_lines(file)] for file in files)
    names = order_names({name: int(label) - 1 for label, name in labels})
    return names, *map(pair_with_folders, parts), files


def pair_with_folders(rows: list[list[str]]) -> Pairs:
    """The pairs of rows that begin with `class/video`."""
    return [(strip_extension(path), path.rpartition("/")[0]) for path, *_ in rows]


def read_hmdb51(folder: Path, split: int) -> tuple:
    """`CLASS_test_split1.txt`: `video 1` is train, `video 2` test, `video 0` neither; sorted."""
    end = f"_test_split{split}.txt"
    files = sorted(folder.glob(f"*{end}"))
    parts: dict[str, Pairs] = {"0": [], "1": [], "2": []}
    names = [file.name[: -len(end)] for file in files]
    for name, file in zip(names, files):
        for video, part in map(str.split, read_lines(file)):
            parts[part].append((strip_extension(f"{name}/{video}"), name))
    return names, parts["1"], parts["2"], files


def read_diving48(folder: Path, split: int) -> tuple:
    """Diving48_vocab.json, words of classes; Diving48_V2_train.json, V2_test: vid_name, label."""
    files = [folder / f"Diving48_{name}.json" for name in ("vocab", "V2_train", "V2_test")]
    vocabulary, *parts = map(read_json, files)
    names = ["+".join(words) for words in vocabulary]
    name_of = dict(enumerate(names))
    train, val = ([(row["vid_name"], name_of[int(row["label"])]) for row in p] for p in parts)
    return names, train, val, files


def read_activitynet(folder: Path, split: int) -> tuple:
    """activity_net.v1-3.min.json; sorted classes. A whole video has the class of its first action.

    The subset `testing` has no labels.
    """
    file = find_one(folder, "activity_net*.json")
    parts: dict[str, Pairs] = {"training": [], "validation": [], "testing": []}
    for name, video in read_json(file)["database"].items():
        if video["annotations"]:
            parts[video["subset"]].append((f"v_{name}", video["annotations"][0]["label"]))
    names = sorted({name for pairs in parts.values() for _, name in pairs})
    return names, parts["training"], parts["validation"], [file]


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

    Raises ValueError if a file is missing or not as distributed.
    """
    try:
        names, *pairs, files, segments = (*READERS[dataset](folder, split), {})[:5]
        labels = {name: label for label, name in enumerate(names)}
        train, val = ({key: labels[name] for key, name in part} for part in pairs)
    except Exception as error:  # a file can make Python and its readers raise almost anything
        if str(error).startswith("--"):
            raise
        reason = f"{dataset}: {type(error).__name__}, {error}"
        raise ValueError(f"--annotations: {folder} is not in the form of {reason}") from None
    return Annotations(names, train, val, files, segments)


def match_videos(annotations: Annotations, root: Path, frames: bool) -> dict[str, list[str]]:
    """Looks for the annotated videos (or, with `frames`, folders of JPEG frames) below `root`.

    Returns lines `path label` or, of segments, `path start end label` for `train` and `val`;
    `missing`: lines `split key label` of annotated videos that do not exist; `others`: paths
    without an annotation; `doubles`: paths of further files of a listed video. Raises ValueError
    if `root` has none of the videos.
    """
    parts = {"train": annotations.train, "val": annotations.val}
    videos = {
        key: annotations.segments.get(key, (key, "")) for part in parts.values() for key in part
    }
    keys = dict.fromkeys(video for video, _ in videos.values())
    files = find_videos(root, frames, with_folder=any("/" in key for key in keys))
    result: dict[str, list[str]] = {"train": [], "val": [], "missing": []}
    for name, part in parts.items():
        for key, label in part.items():
            video, times = videos[key]
            if video in files:
                result[name].append(f"{files[video][0]} {times}{label}")
            else:
                result["missing"].append(f"{name} {key} {label}")
    if not result["train"] + result["val"]:
        raise ValueError(f"--videos: {root} has none of the {len(keys)} annotated videos")
    others = sorted(path for key, paths in files.items() if key not in keys for path in paths)
    doubles = sorted(path for key in keys for path in files.get(key, ())[1:])
    return {**result, "others": others, "doubles": doubles}


def find_videos(root: Path, frames: bool, with_folder: bool = False) -> dict[str, list[str]]:
    """{key: paths below `root`} of all videos; `with_folder`: a key includes the last folder.

    With `frames`, {name: [`path num_frames`]} of all folders whose frames count up from 0 or 1.
    """
    result: dict[str, list[str]] = defaultdict(list)
    gaps = []
    for folder, names in walk_files(root, []):
        if not frames:
            for path in (Path(folder, name) for name in names if has_suffix(name, VIDEO_SUFFIXES)):
                key = f"{path.parent.name}/{path.name}" if with_folder else path.name
                result[strip_extension(key)].append(str(path))
            continue
        images = [name for name in names if has_suffix(name, IMAGE_SUFFIXES)]
        numbers = {int(hit.group(1)) for hit in map(FRAME.fullmatch, images) if hit}
        first = min(numbers, default=0)
        if numbers and first < 2 and max(numbers) - first == len(numbers) - 1:
            result[Path(folder).name].append(f"{Path(folder)} {len(numbers)}")
        elif numbers:
            gaps.append(folder)
    if gaps:
        where = f"({len(gaps)}), for example {gaps[0]}"
        print_line(f"folders left out, whose frames do not count up without a gap {where}")
    return result


def strip_extension(path: str) -> str:
    return path.rpartition(".")[0] or path


def order_names(labels: dict[str, int]) -> list[str]:
    """The names in the order of their labels, which must be 0, 1, 2, ..."""
    names = sorted(labels, key=labels.get)
    if not names or [labels[name] for name in names] != list(range(len(names))):
        raise ValueError("the labels do not count up from the first")
    return names


def find_one(folder: Path, pattern: str) -> Path:
    """The only file of the folder whose name matches."""
    result = sorted(folder.glob(pattern))
    if len(result) != 1:
        raise ValueError(f"--annotations: {folder} must have one {pattern}, not {len(result)}")
    return result[0]


def read_lines(file: Path) -> list[str]:
    """The lines of a file that are not empty."""
    lines = read_text(file, f"--annotations: {file}").split("\n")
    return [line.strip() for line in lines if line.strip()]


def read_json(file: Path) -> Any:
    return json.loads(read_text(file, f"--annotations: {file}"))
