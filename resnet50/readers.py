"""Readers of images: class folders, MindRecord files, CIFAR's binary files.

A reader yields (image, label) of the requested samples in their order. The image is encoded bytes,
or, for CIFAR, uint8 (32, 32, 3).
"""

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import mindspore.dataset as ds
import numpy as np

from resnet50.config import Data
from resnet50.images import decode_image, get_split_path, list_class_folders
from utils.evaluate.predict import Head
from utils.evaluate.report import Samples
from utils.video.reader import VideoError, read_bytes, reading

CIFAR = {
    "cifar10": (ds.Cifar10Dataset, {"train": "data_batch_1.bin", "test": "test_batch.bin"}),
    "cifar100": (ds.Cifar100Dataset, {"train": "train.bin", "test": "test.bin"}),
}
IMAGES = [".jpg", ".jpeg", ".png", ".bmp", ".JPG", ".JPEG", ".PNG", ".BMP"]


def open_reader(data: Data, split: str, samples: Sequence[int], workers: int):
    """A MindData dataset of the samples, with the columns image and label."""
    options = {"sampler": ds.SubsetSampler(list(samples)), "num_parallel_workers": workers}
    if data.is_cifar:
        rows = CIFAR[data.source][0](str(data.root), split, **options)
        if data.source == "cifar100":
            rows = rows.rename(["fine_label"], ["label"])
        return rows.project(["image", "label"])
    path = str(get_split_path(data, split))
    if data.source == "mindrecord":
        return ds.MindDataset(path, columns_list=["image", "label"], **options)
    return ds.ImageFolderDataset(path, extensions=IMAGES, **options)


def count_samples(data: Data, split: str, num_classes: int) -> int:
    """The number of images of a split. Raises ValueError if there are none, or too many classes."""
    if data.is_cifar:
        file = data.root / CIFAR[data.source][1][split]
        if not file.is_file():
            raise ValueError(f"data.root: {file} does not exist; name a folder of {data.source}")
        return CIFAR[data.source][0](str(data.root), split).get_dataset_size()
    path = get_split_path(data, split)
    setting = f"data.{split}: {path}"
    if data.source == "mindrecord":
        if not path.is_file():
            raise ValueError(f"{setting} does not exist")
        return ds.MindDataset(str(path), columns_list=["image", "label"]).get_dataset_size()
    if not path.is_dir():
        raise ValueError(f"{setting} is not a folder")
    classes = len(list_class_folders(path))
    if classes > num_classes:
        raise ValueError(f"{setting} has {classes} classes, model.num_classes is {num_classes}")
    try:
        count = ds.ImageFolderDataset(str(path), extensions=IMAGES).get_dataset_size()
    except RuntimeError:  # there is no folder in it, or no image
        count = 0
    if not count:
        raise ValueError(f"{setting} has no class folder with images")
    return count


class Images:
    """The names and pixels of single images of a split, by sample number.

    The files of class folders are counted at the first access. A list of all files is not kept: it
    would take 100 MB for ImageNet. MindData's reader of folders would list them all for one image.
    """

    def __init__(self, data: Data, split: str, count: int):
        self.data = data
        self.split = split
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, sample: int) -> str:
        """The file; in a MindRecord the name in its column `file`, or the sample number."""
        path = get_split_path(self.data, self.split)
        if self.data.source == "folder":
            return str(self.locate(sample)[0])
        ((name,),) = read_columns(path, ["file"], [sample]) or [(f"image {sample}",)]
        return f"{name} in {path}"

    def read(self, sample: int) -> tuple[np.ndarray, int]:
        """Pixels uint8 (H, W, 3) and the label. Raises VideoError if it cannot be decoded."""
        if self.data.source == "folder":
            path, label = self.locate(sample)
            with reading(path, "PIL"):
                image = np.frombuffer(read_bytes(path), np.uint8)
        else:
            rows = open_reader(self.data, self.split, [sample], 1)
            ((image, label),) = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
        try:
            return decode_image(image), int(label)
        except RuntimeError as error:
            raise VideoError(self[sample], "PIL", error) from None

    def locate(self, sample: int) -> tuple[Path, int]:
        """The file in a class folder, and its label."""
        folders, counts = self.folders
        ends = np.cumsum(counts)
        label = int(np.searchsorted(ends, sample, side="right"))
        files = list_image_names(folders[label])
        if len(files) != counts[label]:
            raise ValueError(f"data.{self.split}: {folders[label]} has changed during the run")
        return folders[label] / files[sample - ends[label]], label

    def find_unopenable(self) -> Iterator[tuple[int, str]]:
        """(sample, reason) of all files in class folders that cannot be opened.

        MindData opens them itself, and one such file ends its pipeline: a dangling link, or a file
        without read permission. This takes a system call per file.
        """
        if self.data.source != "folder":
            return
        files = (folder / name for folder in self.folders[0] for name in list_image_names(folder))
        for sample, file in enumerate(files):
            if not os.access(file, os.R_OK):
                yield sample, str(VideoError(file, "MindData", "it cannot be opened"))

    @functools.cached_property
    def folders(self) -> tuple[list[Path], list[int]]:
        """The class folders, and the number of images in each."""
        folders = list_class_folders(get_split_path(self.data, self.split))
        return folders, [len(list_image_names(folder)) for folder in folders]


def describe_samples(data: Data, split: str, count: int, head: Head) -> Samples:
    """The names and labels of the `count` images of a split, for a report.

    The name is the file's if it is stored, else the sample number. For CIFAR the labels are 0: the
    evaluation, which reads every image, fills them in.
    """
    path = get_split_path(data, split)
    paths = []
    labels = []
    if data.source == "folder":
        for label, folder in enumerate(list_class_folders(path)):
            files = list_image_names(folder)
            paths += [f"{folder.name}/{file}" for file in files]
            labels += [label] * len(files)
    elif data.source == "mindrecord":
        every = range(count)
        rows = read_columns(path, ["label", "file"], every) or read_columns(path, ["label"], every)
        labels = [label for label, *_ in rows]
        paths = [file for _, *files in rows for file in files]
    if len(paths) != count:
        paths = [str(k) for k in range(count)]
    if len(labels) != count:
        labels = [0] * count
    return Samples(paths, labels, head.list_names())


def list_image_names(folder: Path) -> list[str]:
    """The names of the images of a class folder, in MindData's order."""
    return sorted(file.name for file in folder.iterdir() if file.name.endswith(tuple(IMAGES)))


def read_columns(path: Path, names: list[str], samples: Sequence[int]) -> list[tuple]:
    """Values of a MindRecord's columns; empty if a column is missing: some have no `file`."""
    sampler = ds.SubsetSampler(list(samples))
    try:
        rows = ds.MindDataset(str(path), columns_list=names, sampler=sampler)
        rows = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
        return [tuple(value.item() for value in row) for row in rows]
    except RuntimeError:
        return []
