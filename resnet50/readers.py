"""Where images come from: class folders, MindRecord files, CIFAR's binary files.

A reader yields (image, label) for given sample numbers, in their order: encoded bytes, or, for
CIFAR, uint8 (32, 32, 3).
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import mindspore.dataset as ds
from PIL import Image

from utils.evaluate.report import Samples
from utils.evaluate.video_inference import Head

CIFAR = {
    "cifar10": (ds.Cifar10Dataset, {"train": "data_batch_1.bin", "test": "test_batch.bin"}),
    "cifar100": (ds.Cifar100Dataset, {"train": "train.bin", "test": "test.bin"}),
}
IMAGES = [".jpg", ".jpeg", ".png", ".bmp", ".JPG", ".JPEG", ".PNG", ".BMP"]
SMALL = 16_384  # bytes


def open_reader(data, split: str, samples: Sequence[int], workers: int):
    """A MindData dataset with the columns image and label."""
    options = {"sampler": ds.SubsetSampler(list(samples)), "num_parallel_workers": workers}
    if data.is_cifar:
        rows = CIFAR[data.source][0](str(data.root), split, **options)
        if data.source == "cifar100":
            rows = rows.rename(["fine_label"], ["label"])
        return rows.project(["image", "label"])
    path = str(split_path(data, split))
    if data.source == "mindrecord":
        return ds.MindDataset(path, columns_list=["image", "label"], **options)
    return ds.ImageFolderDataset(path, extensions=IMAGES, **options)


def split_path(data, split: str) -> Path:
    return data.root / (data.train if split == "train" else data.test)


def count_samples(data, split: str, num_classes: int) -> int:
    """The images of a split. Raises ValueError where there are none or labels are out of range."""
    if data.is_cifar:
        first = data.root / CIFAR[data.source][1][split]
        if not first.is_file():
            raise ValueError(f"data.root: {first} does not exist; name a folder of {data.source}")
        return CIFAR[data.source][0](str(data.root), split).get_dataset_size()
    path = split_path(data, split)
    setting = f"data.{split}: {path}"
    if data.source == "mindrecord":
        if not path.is_file():
            raise ValueError(f"{setting} does not exist")
        return ds.MindDataset(str(path), columns_list=["image", "label"]).get_dataset_size()
    if not path.is_dir():
        raise ValueError(f"{setting} is not a folder")
    folders = sum(folder.is_dir() for folder in path.iterdir())
    if folders > num_classes:
        raise ValueError(f"{setting} has {folders} classes, model.num_classes is {num_classes}")
    found = images_in(path)
    if not found:
        raise ValueError(f"{setting} has no class folder with images")
    for file in small_files(path):
        check_header(file)
    return found


def describe(data, split: str, count: int, head: Head) -> Samples:
    """What the `count` images of a split are called: by file, where that is known, or by number.

    Labels are known only once an image is read.
    """
    paths, names = [], head.told_names()
    if data.source == "folder":
        path = split_path(data, split)
        folders = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
        paths = [f"{name}/{file}" for name in folders for file in images_of(path / name)]
    elif data.source == "mindrecord":
        paths = file_column(split_path(data, split))
    known = paths if len(paths) == count else [str(k) for k in range(count)]
    return Samples(known, [0] * count, names)


def images_of(folder: Path) -> list[str]:
    """In MindData's order."""
    return sorted(file.name for file in folder.iterdir() if file.name.endswith(tuple(IMAGES)))


def file_column(path: Path) -> list[str]:
    """The column that scripts/data/pack_images.py adds; empty where there is none."""
    try:
        rows = ds.MindDataset(str(path), columns_list=["file"], shuffle=False)
        files = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
        return [str(file) for (file,) in files]
    except RuntimeError:
        return []


def images_in(folder: Path) -> int:
    try:
        return ds.ImageFolderDataset(str(folder), extensions=IMAGES).get_dataset_size()
    except RuntimeError:  # no folder in it, or no image
        return 0


def small_files(folder: Path) -> Iterator[str]:
    """Images so small that their header may be cut off."""
    for inner in os.scandir(folder):
        for file in os.scandir(inner.path) if inner.is_dir() else ():
            if file.name.endswith(tuple(IMAGES)) and file.stat().st_size < SMALL:
                yield file.path


def check_header(file: str) -> None:
    """Raises ValueError where it is no image, or one of more pixels than PIL takes."""
    try:
        Image.open(file).close()
    except Exception as error:  # PIL raises errors of many classes for damaged files
        raise ValueError(f"data.root: cannot read {file}: {error}") from None
