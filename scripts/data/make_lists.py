#!/usr/bin/env python3
r"""Makes the lists of a data set: from annotations, or from class folders.

    python scripts/data/make_lists.py --dataset NAME --annotations DIR --videos ROOT --out LISTS
                                 [--names txt|csv] [--split 1|2|3] [--uncut] [--overwrite]
    python scripts/data/make_lists.py --videos DIR --out LISTS [--names txt|csv|images]
        [--test 0.2] [--val 0.1] [--group PATTERN] [--seed 0] [--overwrite]

NAME: kinetics (400, 600, 700), sthv1, sthv2 (Something-Something), jester, moments, diving48,
activitynet, ucf101, hmdb51; the last two have three splits. DIR holds their annotations as
distributed. The command looks for the videos in all folders below ROOT. It writes LISTS/train.txt
and val.txt or, with `--names csv`, train.csv, val.csv and a copy of val.csv as test.csv;
missing.txt: annotated videos that do not exist; unlisted.txt: videos without an annotation.

`--uncut`, for kinetics: the videos are whole ones with the names YOUTUBEID.*, and the lists have
their segments, lines `path start end label` (docs/segments.md).

Without NAME: DIR/CLASS/VIDEO gives train.txt and test.txt (or the same csv); `--test` is the
fraction of every class in the test list; the only video of a class is for training. `--test 1`
makes the test list alone, of all videos. `--val` makes a third list, val.txt, for the validation
during training (without it val.csv is a copy of test.csv). Of equal files (`twins` counts the
groups) only the first is listed; `others` are files without the extension of a video, `system`
hidden files and an operating system's, as `__MACOSX`.
`--names images`, for resnet50: DIR has images; the command makes folders of links,
LISTS/train/CLASS/IMAGE, LISTS/test and LISTS/val.

`--group PATTERN` keeps videos of one source in one list: cut from one film, of one person or one
camera. The first group of this regular expression, in the path CLASS/VIDEO, names the source, as in
--group 'v_\w+_(g\d+)'. `sources` counts them. Of ten or more, each list gets two at least.

labels.txt has the class names in the order of their labels. A list that exists with other lines is
replaced only with `--overwrite`. This command opens no video (`scripts/data/check_videos.py` does).
The last line of stdout is one JSON object of counts and lists. Sources and folders of the data
sets: docs/data_preparation.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Annotated, Literal, Optional

from scripts.data.prepare.class_folders import (
    find_sources,
    get_class,
    link_images,
    scan_class_folders,
    split_classes,
)
from scripts.data.prepare.public_annotations import (
    FRAMES,
    READERS,
    match_videos,
    read_public_annotations,
)
from utils import cli
from utils.data.annotation_file import describe_numbered
from utils.files import check_inputs, check_target, report_write_errors, write_text
from utils.messages import join_names, print_line
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, describe_left_out

CSV_NAMES = ("train.csv", "test.csv", "val.csv")
MAX_SHOWN = 5  # names in a line


def main(
    *,
    videos: Path,
    out: Path,
    names: Literal["txt", "csv", "images"] = "txt",
    dataset: Optional[Literal[tuple(READERS)]] = None,
    overwrite: bool = False,
    **options,
) -> None:
    if dataset and names == "images":
        raise ValueError("--names images takes no --dataset; see sort_imagenet.py")
    refused = ("test", "val", "group", "seed") if dataset else ("annotations", "split", "uncut")
    if set(refused) & set(options):
        word = "without" if dataset else "with"
        raise ValueError(f"the options {', '.join(refused)} go {word} --dataset")
    root = videos.resolve()
    links: dict[str, list[str]] = {}
    if dataset:
        lists = CSV_NAMES if names == "csv" else ("train.txt", "val.txt")
        counts, files, inputs = list_public_data_set(root, lists, dataset, **options)
    else:
        counts, files = list_own_videos(root, names, **options)
        lists = tuple(name for name in files if name != "labels.txt")
        inputs = []
    if names == "images":
        links = {name: files.pop(name) for name in lists}
    new = {}
    for name, lines in files.items():
        text = "".join(f"{line}\n" for line in lines)
        path = out / name
        check_inputs([path], inputs)
        if not path.is_file() or path.read_bytes() != text.encode(errors="surrogateescape"):
            check_target(path, option="--out", overwrite=overwrite)
            new[path] = text
    with report_write_errors(out, "--out"):
        link_images(root, out=out, classes=files["labels.txt"], lists=links)
        for path, text in new.items():
            write_text(path, text)
    paths = [str((out / name).resolve()) for name in lists]
    print(json.dumps({"root": str(root), **counts, "lists": paths}))


def list_public_data_set(
    root: Path,
    lists: tuple[str, ...],
    dataset: str,
    *,
    annotations: Optional[Path] = None,
    split: Literal[1, 2, 3] = 1,
    uncut: bool = False,
) -> tuple[dict, dict, list]:
    """The counts for the last line of stdout, {file: lines}, and the files that were read."""
    if not annotations:
        raise ValueError("missing --annotations: the folder of the official annotation files")
    official = read_public_annotations(dataset, annotations, split)
    if uncut and not official.segments:
        raise ValueError(f"--uncut goes with kinetics: {dataset} has no annotated segments")
    if not uncut:
        official = official._replace(segments={})
    result = match_videos(official, root, frames=dataset in FRAMES)
    for path in result["doubles"]:
        print_line(f"a second file of one video, not listed: {path}")
    files = {name: result["train" if "train" in name else "val"] for name in lists}
    files["labels.txt"] = official.names
    files.update({"missing.txt": result["missing"], "unlisted.txt": result["others"]})
    counts = {name: len(lines) for name, lines in result.items()}
    return {"classes": len(official.names), **counts}, files, official.files


def list_own_videos(
    root: Path,
    names: str,
    *,
    test: Annotated[float, cli.number_between(cli.TINY, 1, float)] = 0.2,
    val: cli.NonNegativeFloat = 0.0,
    group: str = "",
    seed: cli.Seed = 0,
) -> tuple[dict, dict]:
    """The counts for the last line of stdout, and {file or folder of images: lines}."""
    if val and test + val >= 1:
        raise ValueError(f"--test {test} and --val {val} leave no video for training")
    kind = "images" if names == "images" else "videos"
    result = scan_class_folders(root, IMAGE_SUFFIXES if kind == "images" else VIDEO_SUFFIXES)
    classes = sorted(result.classes)
    listed = [video for videos in result.classes.values() for video in videos]
    sources = find_sources(listed, group) if group else None
    if test == 1:
        splits = {"test": split_classes(result, fractions={}, seed=seed)["train"]}
    else:
        fractions = {"test": test, "val": val} if val else {"test": test}
        splits = split_classes(result, fractions=fractions, seed=seed, sources=sources)
    tested = splits["test"]
    if not tested:
        raise ValueError("--test: every class is of one video or source; a test list needs two")
    ending = "" if names == "images" else f".{names}"
    files = {f"{name}{ending}": splits[name] for name in splits}
    if names == "csv" and test < 1 and not val:
        files["val.csv"] = tested
    if result.twins:
        contrary = sum(len({*map(get_class, group)}) > 1 for group in result.twins)
        shown = join_names([" = ".join(group) for group in result.twins], MAX_SHOWN)
        what = f"groups of equal files, {contrary} of them in several classes; the first counts"
        print_line(f"{len(result.twins)} {what}: {shown}")
    labels = {int(line.rsplit(" ", 1)[1]) for line in tested}
    single = [name for label, name in enumerate(classes) if label not in labels]
    if single:
        print_line(f"classes that no test covers: {join_names(single, MAX_SHOWN)}; add videos")
    for line in filter(None, (describe_left_out(result.scan, kind), describe_numbered(classes))):
        print_line(line)
    counts = {"classes": len(classes), **{name: len(splits[name]) for name in splits}}
    counts.update(others=len(result.scan.others), system=len(result.scan.system))
    counts["twins"] = len(result.twins)
    counts |= {"sources": len(set(sources.values()))} if sources else {}
    return counts, {**files, "labels.txt": classes}


if __name__ == "__main__":
    cli.run_command(main, __doc__, list_public_data_set, list_own_videos)
