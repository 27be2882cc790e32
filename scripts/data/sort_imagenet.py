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

from scripts.data.prepare.public_annotations import annotation_errors, number_lines, read_rows
from utils import cli
from utils.files import report_write_errors

TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def main(*, annotations: Path, images: Path, out: Path) -> None:
    read = read_development_kit if annotations.is_dir() else read_kaggle_csv
    classes = read(annotations)
    existing = {name: wnid for name, wnid in classes.items() if (images / name).is_file()}
    if not existing:
        raise ValueError(f"--images: {images} has none of the images; one is {min(classes)}")
    with report_write_errors(out, "--out"):
        for wnid in set(existing.values()):
            (out / wnid).mkdir(parents=True, exist_ok=True)
        for name, wnid in existing.items():
            if not (out / wnid / name).exists():
                link_image(images / name, out / wnid / name)
    result = {"classes": len(set(existing.values())), "images": len(existing)}
    print(json.dumps({**result, "missing": len(classes) - len(existing)}))


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

    def parse(row: dict) -> tuple[str, str]:
        wnid = row["PredictionString"].split()[0]
        return f"{check_name(row['ImageId'])}.JPEG", check_name(wnid)

    result = read_rows(file, parse, csv.DictReader)
    if not result:
        raise ValueError(f"--annotations: {file} names no images")
    return result


def check_name(name: str) -> str:
    """The name, which becomes a part of a path; ValueError if it could lead to another folder."""
    if not re.fullmatch(r"\w+", name):
        raise ValueError
    return name


def read_development_kit(folder: Path) -> dict[str, str]:
    """Line k of the ground truth is the ILSVRC2012_ID of image k; meta.mat has its WordNet id."""
    file = folder / "meta.mat"
    truth = folder / TRUTH
    if not file.is_file():
        raise ValueError(f"--annotations: {file} does not exist")
    with annotation_errors(file):
        synsets = loadmat(str(file), squeeze_me=True)["synsets"]
        names = {int(row["ILSVRC2012_ID"]): check_name(str(row["WNID"])) for row in synsets}
    result = {}
    for number, line in number_lines(truth):
        with annotation_errors(truth, number):
            if line:
                result[f"ILSVRC2012_val_{number:08d}.JPEG"] = names[int(line)]
    return result


if __name__ == "__main__":
    cli.run_command(main, __doc__)
