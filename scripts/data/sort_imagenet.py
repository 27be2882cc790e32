"""Sorts ImageNet's validation images into a folder for each class, as training images are.

    python scripts/data/sort_imagenet.py --annotations FILE_OR_DIR --images DIR --out DATA/val

FILE: LOC_val_solution.csv, as Kaggle gives it; DIR: the folder `data` of the development kit, with
ILSVRC2012_validation_ground_truth.txt and meta.mat. DIR of images: ILSVRC2012_val_00000001.JPEG and
so on. OUT gets OUT/n01440764/ILSVRC2012_val_00000293.JPEG, ... as hard links: no further space,
nothing is moved. The same command goes on where it stopped. The last line of stdout is one JSON
object: classes, images, missing.
"""

import csv
import json
import os
import re
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from scipy.io import loadmat

from utils import cli
from utils.data.prepare.public_annotations import annotation_errors, lines, rows
from utils.files import report_write_errors

TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def main(*, annotations: Path, images: Path, out: Path) -> None:
    classes = from_kit(annotations) if annotations.is_dir() else from_csv(annotations)
    there = {name: kind for name, kind in classes.items() if (images / name).is_file()}
    if not there:
        raise ValueError(f"--images: {images} has none of the images; one is {min(classes)}")
    with report_write_errors(out, "--out"):
        for kind in set(there.values()):
            (out / kind).mkdir(parents=True, exist_ok=True)
        for name, kind in there.items():
            if not (out / kind / name).exists():
                os.link(images / name, out / kind / name)
    result = {"classes": len(set(there.values())), "images": len(there)}
    print(json.dumps({**result, "missing": len(classes) - len(there)}))


def from_csv(file: Path) -> dict[str, str]:
    """{file name: WordNet id}; a line is `ILSVRC2012_val_00000001,n01751748 111 108 230 366`."""
    result = {}
    for number, row in rows(file, csv.DictReader(lines(file))):
        with annotation_errors(file, number):
            result[f"{plain(row['ImageId'])}.JPEG"] = plain(row["PredictionString"].split()[0])
    if not result:
        raise ValueError(f"--annotations: {file} names no images")
    return result


def plain(name: str) -> str:
    """The name itself, of which a path is made; ValueError if it could lead to another folder."""
    if not re.fullmatch(r"\w+", name):
        raise ValueError
    return name


def from_kit(folder: Path) -> dict[str, str]:
    """Line k of the ground truth is the ILSVRC2012_ID of image k; meta.mat has its WordNet id."""
    file, truth = folder / "meta.mat", folder / TRUTH
    if not file.is_file():
        raise ValueError(f"--annotations: {file} does not exist")
    with annotation_errors(file):
        synsets = loadmat(str(file), squeeze_me=True)["synsets"]
        names = {int(one["ILSVRC2012_ID"]): plain(str(one["WNID"])) for one in synsets}
    result = {}
    for number, line in enumerate(lines(truth), 1):
        with annotation_errors(truth, number):
            if line:
                result[f"ILSVRC2012_val_{number:08d}.JPEG"] = names[int(line)]
    return result


if __name__ == "__main__":
    cli.run_command(main, __doc__)
