#!/usr/bin/env python3
"""Packs a folder of class folders of images into MindRecord files, for faster reading.

    python scripts/data/pack_images.py --source data/imagenet/train
        --target data/imagenet.mindrecord [--shards 1] [--classes data/imagenet/train] [--overwrite]

Labels count the class folders of --classes, the folder of the training images, in the order of
their names. By default it is the folder `train` beside SOURCE, if that exists, else SOURCE. With
several shards the files are TARGET0, TARGET1, ...; `data.train` names the first. The last line of
stdout is one JSON object: target, shards, classes, images.
"""

import sys
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import re

from mindspore.mindrecord import FileWriter

from utils import cli
from utils.files import check_target, make_drafts
from utils.log import Progress
from utils.messages import join_names, print_line
from utils.video.media_files import MAX_SHOWN, list_class_folders, list_images

SCHEMA = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "file": {"type": "string"}}
IMAGES_PER_WRITE = 256


def main(
    *,
    source: Path,
    target: Path,
    shards: cli.PositiveInt = 1,
    classes: Optional[Path] = None,
    overwrite: bool = False,
) -> None:
    old = re.compile(rf"{re.escape(target.name)}\d*(\.db)?")
    for file in target.parent.glob("*"):
        if old.fullmatch(file.name):
            check_target(file, overwrite=overwrite)
    for option, folder in (("--source", source), ("--classes", classes or source)):
        if not folder.is_dir():
            raise ValueError(f"{option}: {folder} is not a folder")
    train = source.resolve().with_name("train")
    names = list_class_folders(classes or (train if train.is_dir() else source))
    images = []  # (file, label) in the order of the folders and names
    left_out = sorted({*os.listdir(source)} - {*list_class_folders(source)})
    for folder in list_class_folders(source):
        files, others = list_images(source / folder)
        left_out += [os.path.join(folder, name) for name in others]
        if files and folder not in names:
            raise ValueError(f"--source: {source} has a class folder {folder}, --classes has not")
        images += [(os.path.join(folder, name), names.index(folder)) for name in files]
    if not images:
        raise ValueError(f"--source: {source} has no class folder with images")
    if left_out:
        shown = join_names(left_out, MAX_SHOWN)
        print_line(f"{source}: no images of a class ({len(left_out)}): {shown}")
    try:
        with make_drafts(target.parent) as drafts:
            writer = FileWriter(str(drafts / target.name), shard_num=shards)
            writer.add_schema(SCHEMA, "images and labels")
            starts = range(0, len(images), IMAGES_PER_WRITE)
            for start in Progress(starts, "packing", unit=f"batches of {IMAGES_PER_WRITE} images"):
                part = images[start : start + IMAGES_PER_WRITE]
                # MindRecord's parallel writer forks processes, which once waited for each other
                # for ever.
                rows = [((source / file).read_bytes(), label, file) for file, label in part]
                writer.write_raw_data([dict(zip(SCHEMA, row)) for row in rows])
            writer.commit()
            for file in drafts.iterdir():
                file.replace(target.with_name(file.name))
    except (OSError, RuntimeError) as error:  # RuntimeError: MindRecord's writer
        raise ValueError(str(error)) from None
    result = {"target": str(target), "shards": shards, "classes": len(names)}
    print(json.dumps({**result, "images": len(images)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
