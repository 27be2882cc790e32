"""Where images come from: class folders, MindRecord files, CIFAR's binary files.

A reader yields (image, label) for given sample numbers, in their order: encoded bytes, or, for
CIFAR, uint8 (32, 32, 3).
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import mindspore.dataset as ds
import numpy as np

from resnet50.images import full_view
from utils.evaluate.predict import Head
from utils.evaluate.report import Samples
from utils.video.reader import VideoError, read_bytes, reading

CIFAR = {
    "cifar10": (ds.Cifar10Dataset, {"train": "data_batch_1.bin", "test": "test_batch.bin"}),
    "cifar100": (ds.Cifar100Dataset, {"train": "train.bin", "test": "test.bin"}),
}
IMAGES = [".jpg", ".jpeg", ".png", ".bmp", ".JPG", ".JPEG", ".PNG", ".BMP"]


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
    result = images_in(path)
    if not result:
        raise ValueError(f"{setting} has no class folder with images")
    return result


class Images:
    """The images of a split one by one, by their numbers: their names and pixels.

    Class folders are counted when the first is asked for, and no list of all files is kept, which
    would take 100 MB for ImageNet. A MindData reader of folders lists them all for a single image.
    """

    def __init__(self, data, split: str, count: int):
        self.data, self.split, self.count = data, split, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, sample: int) -> str:
        """The name: a file's, with it in a MindRecord, or the number."""
        path = split_path(self.data, self.split)
        if self.data.source == "folder":
            return str(self.locate(sample)[0])
        ((name,),) = columns(path, ["file"], [sample]) or [(f"image {sample}",)]
        return f"{name} in {path}"

    def read(self, sample: int) -> tuple[np.ndarray, int]:
        """Pixels uint8 (H, W, 3) and the label. Raises VideoError where it cannot be decoded."""
        if self.data.source == "folder":
            path, label = self.locate(sample)
            with reading(path, "PIL"):
                image = np.frombuffer(read_bytes(path), np.uint8)
        else:
            rows = open_reader(self.data, self.split, [sample], 1)
            ((image, label),) = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
        try:
            return full_view(image), int(label)
        except RuntimeError as error:
            raise VideoError(self[sample], "PIL", error) from None

    def locate(self, sample: int) -> tuple[Path, int]:
        """The file in a class folder, and its label."""
        folders, counts = self.folders
        ends = np.cumsum(counts)
        label = int(np.searchsorted(ends, sample, side="right"))
        files = images_of(folders[label])
        if len(files) != counts[label]:
            raise ValueError(f"data.{self.split}: {folders[label]} has changed during the run")
        return folders[label] / files[sample - ends[label]], label

    @functools.cached_property
    def folders(self) -> tuple[list[Path], list[int]]:
        """The class folders, and how many images each has."""
        folders = class_folders(split_path(self.data, self.split))
        return folders, [len(images_of(folder)) for folder in folders]


def describe(data, split: str, count: int, head: Head) -> Samples:
    """What the `count` images of a split are called: by file, where that is known, or by number.

    CIFAR's labels are left to the evaluation, which reads every image.
    """
    path, paths, labels = split_path(data, split), [], []
    if data.source == "folder":
        for label, folder in enumerate(class_folders(path)):
            files = images_of(folder)
            paths += [f"{folder.name}/{file}" for file in files]
            labels += [label] * len(files)
    elif data.source == "mindrecord":
        every = range(count)
        rows = columns(path, ["label", "file"], every) or columns(path, ["label"], every)
        labels = [label for label, *_ in rows]
        paths = [file for _, *files in rows for file in files]
    if len(paths) != count:
        paths = [str(k) for k in range(count)]
    if len(labels) != count:
        labels = [0] * count
    return Samples(paths, labels, head.list_names())


def class_folders(path: Path) -> list[Path]:
    """In the order of the labels."""
    return sorted(folder for folder in path.iterdir() if folder.is_dir())


def images_of(folder: Path) -> list[str]:
    """In MindData's order."""
    return sorted(file.name for file in folder.iterdir() if file.name.endswith(tuple(IMAGES)))


def columns(path: Path, names: list[str], samples: Sequence[int]) -> list[tuple]:
    """Values of a MindRecord's columns; empty where it has not got all: some have no `file`."""
    sampler = ds.SubsetSampler(list(samples))
    try:
        rows = ds.MindDataset(str(path), columns_list=names, sampler=sampler)
        rows = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
        return [tuple(value.item() for value in row) for row in rows]
    except RuntimeError:
        return []


def images_in(folder: Path) -> int:
    try:
        return ds.ImageFolderDataset(str(folder), extensions=IMAGES).get_dataset_size()
    except RuntimeError:  # no folder in it, or no image
        return 0
