#!/usr/bin/env python3
"""Sorts ImageNet's validation images into class folders, as the training images are.

    python scripts/data/sort_imagenet.py --annotations FILE_OR_DIR --images DIR --out DATA/val

FILE: LOC_val_solution.csv of Kaggle. Or DIR: the folder `data` of the development kit, with
ILSVRC2012_validation_ground_truth.txt and meta.mat. The folder --images has
ILSVRC2012_val_00000001.JPEG and so on. OUT gets OUT/n01440764/ILSVRC2012_val_00000293.JPEG, ... as
hard links, or from another disk as symbolic links: they need no further space, and no file is moved
or replaced. An interrupted command continues when it is run again. The last line of stdout is one
JSON object: classes, images, missing.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import csv
import errno
import json
import os
import re

from scipy.io import loadmat

from scripts.data.prepare.public_annotations import read_lines
from utils import cli
from utils.files import report_write_errors


def main(*, annotations: Path, images: Path, out: Path) -> None:
    read = read_development_kit if annotations.is_dir() else read_kaggle_csv
    try:
        classes = read(annotations)
    except Exception as error:  # a file can make Python and its readers raise almost anything
        if str(error).startswith("--"):
            raise
        raise ValueError(
            f"--annotations: {annotations} is not in the official form: {error}"
        ) from None
    odd = next((name for names in classes.items() for name in names if not is_name(name)), None)
    if odd is not None:
        raise ValueError(f"--annotations: {annotations} has {odd!r}, which is no name")
    existing = {name: wnid for name, wnid in classes.items() if (images / name).is_file()}
    if not existing:
        raise ValueError(f"--images: {images} has none of the {len(classes)} images")
    with report_write_errors(out, "--out"):
        for wnid in set(existing.values()):
            (out / wnid).mkdir(parents=True, exist_ok=True)
        for name, wnid in existing.items():
            if not (out / wnid / name).exists():
                link_image(images / name, out / wnid / name)
    result = {"classes": len(set(existing.values())), "images": len(existing)}
    print(json.dumps({**result, "missing": len(classes) - len(existing)}))


def is_name(name: str) -> bool:
    """Whether a part of a path cannot lead to another folder."""
    return re.fullmatch(r"\w[\w.]*", name) is not None


def link_image(image: Path, target: Path) -> None:
    file = os.path.realpath(image)  # a hard link to a relative link would lead elsewhere
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        target.symlink_to(file)


def read_kaggle_csv(file: Path) -> dict[str, str]:
    """{file name: WordNet id}; a line is `ILSVRC2012_val_00000001,n01751748 111 108 230 366`."""
    rows = csv.DictReader(read_lines(file), strict=True)
    return {f"{row['ImageId']}.JPEG": row["PredictionString"].split()[0] for row in rows}


def read_development_kit(folder: Path) -> dict[str, str]:
    """Line k of the ground truth is the ILSVRC2012_ID of image k; meta.mat has its WordNet id."""
    lines = read_lines(folder / "ILSVRC2012_validation_ground_truth.txt")
    synsets = loadmat(str(folder / "meta.mat"), squeeze_me=True)["synsets"]
    names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    return {f"ILSVRC2012_val_{k:08d}.JPEG": names[int(line)] for k, line in enumerate(lines, 1)}


if __name__ == "__main__":
    cli.run_command(main, __doc__)
