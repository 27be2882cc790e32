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

import hashlib
import json
import os
import re

from mindspore.mindrecord import FileWriter

from resnet50.class_folders import list_class_folders
from resnet50.readers import ImageFolder, ImageRecord
from utils import cli
from utils.files import check_target, make_drafts
from utils.messages import print_line
from utils.progress import track

SCHEMA = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "file": {"type": "string"}}
IMAGES_PER_WRITE = 256


def write_shards(images: ImageFolder, target: Path, shards: int) -> None:
    """Writes the files; prints how many images are equal."""
    writer = FileWriter(str(target), shard_num=shards)
    writer.add_schema(SCHEMA, "images and labels")
    starts = range(0, len(images), IMAGES_PER_WRITE)
    first: dict[bytes, ImageRecord] = {}  # by the checksum of the image
    equal = []
    for start in track(starts, "packing", unit=f"batches of {IMAGES_PER_WRITE} images"):
        rows = []
        for index in range(start, min(start + IMAGES_PER_WRITE, len(images))):
            image = images[index]
            data = image.load()
            before = first.setdefault(hashlib.sha256(data).digest(), image)
            if before is not image:
                equal.append((before, image))
            name = os.fsdecode(images.names[index])
            rows.append({"image": data, "label": image.label, "file": name})
        # MindRecord's parallel writer forks processes, which once waited for each other for ever.
        writer.write_raw_data(rows)
    writer.commit()
    contrary = [(a, b) for a, b in equal if a.label != b.label]
    for what, pairs in (("images", equal), ("images with different labels", contrary)):
        if pairs:
            a, b = pairs[0]
            print_line(f"equal {what} ({len(pairs)}), for example {a.path} and {b.path}")


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
    images = ImageFolder(source, names)
    if not len(images):
        raise ValueError(f"--source: {source} has no class folder with images")
    for line in images.describe_rest():
        print_line(line)
    try:
        with make_drafts(target.parent) as drafts:
            write_shards(images, drafts / target.name, shards)
            for file in drafts.iterdir():
                file.replace(target.with_name(file.name))
    except (OSError, RuntimeError) as error:  # RuntimeError: MindRecord's writer
        raise ValueError(str(error)) from None
    result = {"target": str(target), "shards": shards, "classes": len(names)}
    print(json.dumps({**result, "images": len(images)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
