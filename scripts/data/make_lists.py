"""Makes the lists of a data set: from the annotations of a public one, or from class folders.

    python scripts/data/make_lists.py --dataset NAME --annotations DIR --videos ROOT --out LISTS
                                 [--names txt|csv] [--split 1|2|3] [--uncut]
    python scripts/data/make_lists.py --videos DIR --out LISTS [--names txt|csv] [--test 0.2]
        [--seed 0]

NAME: kinetics (400, 600, 700), sthv1, sthv2 (Something-Something), jester, moments, diving48,
activitynet, ucf101, hmdb51; the last two have three splits. DIR holds their annotations as
distributed. The command looks for the videos in all folders below ROOT. It writes LISTS/train.txt
and val.txt or, with `--names csv`, train.csv, val.csv and a copy of val.csv as test.csv;
missing.txt: annotated videos that do not exist; unlisted.txt: videos without an annotation.

`--uncut`, for kinetics: the videos are whole ones with the names YOUTUBEID.*, and the lists have
their segments, lines `path start end label` (docs/segments.md).

Without NAME: DIR/CLASS/VIDEO gives train.txt and test.txt (or the same csv); `--test` is the
fraction of every class in the test list; the only video of a class is for training. Of equal files
(`twins` counts the groups) only the first is listed; `others` are files without the extension of a
video.

labels.txt has the class names in the order of their labels. This command decodes no video:
`scripts/data/check_videos.py` does. The last line of stdout is one JSON object of counts and lists.
Sources and folders of the data sets: docs/data_preparation.md.
"""

import json
import sys
from pathlib import Path
from typing import Literal, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

from scripts.data.prepare.class_folders import scan_class_folders, split_classes
from scripts.data.prepare.public_annotations import (
    FRAMES,
    READERS,
    match_videos,
    read_public_annotations,
)
from utils import cli
from utils.files import report_write_errors, write_text
from utils.messages import join_names, print_line

CSV_NAMES = ("train.csv", "test.csv", "val.csv")
MAX_SHOWN = 5  # files without the extension of a video that are named
PUBLIC_OPTIONS = ("annotations", "split", "uncut")
FOLDER_OPTIONS = ("test", "seed")


def main(
    *,
    videos: Path,
    out: Path,
    names: Literal["txt", "csv"] = "txt",
    dataset: Optional[Literal[tuple(READERS)]] = None,
    **options,
) -> None:
    word, refused = ("without", FOLDER_OPTIONS) if dataset else ("with", PUBLIC_OPTIONS)
    if set(refused) & set(options):
        raise ValueError(f"--{' and --'.join(refused)} go {word} --dataset")
    root = videos.resolve()
    if not root.is_dir():
        raise ValueError(f"--videos: {root} is not a folder")
    lists = ("train.txt", "val.txt" if dataset else "test.txt") if names == "txt" else CSV_NAMES
    if dataset:
        counts, files = list_public_data_set(root, out=out, lists=lists, dataset=dataset, **options)
    else:
        counts, files = list_class_folders(root, lists, **options)
    with report_write_errors(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        for name, lines in files.items():
            write_text(out / name, "".join(f"{line}\n" for line in lines))
    paths = [str((out / name).resolve()) for name in lists]
    print(json.dumps({"root": str(root), **counts, "lists": paths}))


def list_public_data_set(
    root: Path,
    out: Path,
    lists: tuple[str, ...],
    dataset: str,
    *,
    annotations: Optional[Path] = None,
    split: Literal[1, 2, 3] = 1,
    uncut: bool = False,
) -> tuple[dict, dict]:
    """The counts for the last line of stdout, and {file: lines}."""
    if not annotations:
        raise ValueError("missing --annotations: the folder of the official annotation files")
    official = read_public_annotations(dataset, annotations, split)
    if uncut and not official.segments:
        raise ValueError(f"--uncut goes with kinetics: {dataset} has no annotated segments")
    result = match_videos(official, root=root, frames=dataset in FRAMES, uncut=uncut)
    files = {name: result.train if "train" in name else result.val for name in lists}
    files["labels.txt"] = official.names
    files.update({"missing.txt": result.missing, "unlisted.txt": result.others})
    for file in official.files:
        if file.resolve().parent == out.resolve() and file.name in files:
            raise ValueError(f"--out: {file} is one of the annotations; choose another folder")
    for path in result.doubles:
        print_line(f"a second file of one video, not listed: {path}")
    counts = {name: len(getattr(result, name)) for name in result._fields}
    return {"classes": len(official.names), **counts}, files


def list_class_folders(
    root: Path, lists: tuple[str, ...], *, test: float = 0.2, seed: cli.Seed = 0
) -> tuple[dict, dict]:
    """The counts for the last line of stdout, and {file: lines}."""
    if not 0 < test < 1:
        raise ValueError(f"--test must lie between 0 and 1, not {test}")
    result = scan_class_folders(root)
    train, tested = split_classes(result, test, seed)
    files = {name: train if "train" in name else tested for name in lists}
    for group in result.twins:
        print_line(f"equal files, listed once: {', '.join(group)}")
    if result.others:
        print_line(f"no videos, left out: {join_names(result.others, MAX_SHOWN)}")
    tested_labels = {int(line.rsplit(" ", 1)[1]) for line in tested}
    single = [name for k, name in enumerate(sorted(result.classes)) if k not in tested_labels]
    if single:
        names = join_names(single, MAX_SHOWN)
        advice = "add videos, or move its folder away"
        print_line(f"classes with one video, which no test covers: {names}; {advice}")
    for name in result.nested:
        advice = "is --videos one folder too high?"
        print_line(f"all videos of class {name} are in folders below it; {advice}")
    counts = {"classes": len(result.classes), "train": len(train), "test": len(tested)}
    counts.update(others=len(result.others), twins=len(result.twins))
    return counts, {**files, "labels.txt": sorted(result.classes)}


if __name__ == "__main__":
    cli.run_command(main, __doc__, list_public_data_set, list_class_folders)
