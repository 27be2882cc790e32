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
    try:
        if annotations.is_dir():
            # Line k of the ground truth is the ILSVRC2012_ID of image k
            lines = read_lines(annotations / "ILSVRC2012_validation_ground_truth.txt")
            synsets = loadmat(str(annotations / "meta.mat"), squeeze_me=True)["synsets"]
            names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
            classes = {
                f"ILSVRC2012_val_{k:08d}.JPEG": names[int(line)] for k, line in enumerate(lines, 1)
            }
        else:  # of Kaggle, lines `ILSVRC2012_val_00000001,n01751748 111 108 230 366`
            rows = csv.DictReader(read_lines(annotations), strict=True)
            classes = {f"{r['ImageId']}.JPEG": r["PredictionString"].split()[0] for r in rows}
    except Exception as error:  # a file can make Python and its readers raise almost anything
        if str(error).startswith("--"):
            raise
        reason = f"{type(error).__name__}, {error}"
        raise ValueError(f"--annotations: {annotations} is not in its form: {reason}") from None
    for name in (name for pair in classes.items() for name in pair):
        if not re.fullmatch(r"\w[\w.]*", name):  # it could lead to another folder
            raise ValueError(f"--annotations: {annotations} has {name!r}, which is no name")
    existing = {name: wnid for name, wnid in classes.items() if (images / name).is_file()}
    if not existing:
        raise ValueError(f"--images: {images} has none of the {len(classes)} images")
    with report_write_errors(out, "--out"):
        for name, wnid in existing.items():
            target = out / wnid / name
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            file = os.path.realpath(images / name)  # a link to a relative link would lead elsewhere
            try:
                os.link(file, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                target.symlink_to(file)
    result = {"classes": len(set(existing.values())), "images": len(existing)}
    print(json.dumps({**result, "missing": len(classes) - len(existing)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
