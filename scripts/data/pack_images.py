"""Packs a folder of class folders of images into MindRecord files, for faster reading.

    python scripts/data/pack_images.py --source data/imagenet/train
        --target data/imagenet.mindrecord [--shards 1]

Labels count the class folders in the order of their names. With several shards the files are
TARGET0, TARGET1, ...; `data.train` names the first. The command never overwrites a target. The last
line of stdout is one JSON object: target, shards, classes, images.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import re

from mindspore.mindrecord import FileWriter

from utils import cli
from utils.progress import track

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
SCHEMA = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "file": {"type": "string"}}
IMAGES_PER_WRITE = 256


def list_images(source: Path) -> list[tuple[Path, int]]:
    """(file, label) in the order of the names. Raises ValueError if there is no image."""
    if not source.is_dir():
        raise ValueError(f"--source: {source} is not a folder")
    classes = sorted(folder for folder in source.iterdir() if folder.is_dir())
    result = [
        (file, label)
        for label, folder in enumerate(classes)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not result:
        raise ValueError(f"--source: {source} has no class folder with images")
    return result


def write_shards(images: list[tuple[Path, int]], target: Path, shards: int) -> None:
    writer = FileWriter(str(target), shard_num=shards)
    writer.add_schema(SCHEMA, "images and labels")
    starts = range(0, len(images), IMAGES_PER_WRITE)
    for start in track(starts, "packing", unit=f"batches of {IMAGES_PER_WRITE} images"):
        rows = [
            {"image": file.read_bytes(), "label": label, "file": f"{file.parent.name}/{file.name}"}
            for file, label in images[start : start + IMAGES_PER_WRITE]
        ]
        writer.write_raw_data(rows, parallel_writer=shards > 1)
    writer.commit()


def main(*, source: Path, target: Path, shards: cli.PositiveInt = 1) -> None:
    old = re.compile(rf"{re.escape(target.name)}\d*(\.db)?")
    for file in target.parent.glob("*"):
        if old.fullmatch(file.name):
            raise ValueError(f"--target: {file} exists; remove it first, with its .db file")
    images = list_images(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_shards(images, target, shards)
    except (OSError, RuntimeError) as error:  # RuntimeError: MindRecord's writer
        raise ValueError(str(error)) from None
    classes = images[-1][1] + 1
    result = {"target": str(target), "shards": shards, "classes": classes, "images": len(images)}
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
