"""Images of a split: class folders, lists, MindRecord files, CIFAR's binary files; their decoder.

`read_records` gives random access to the images and labels of a split. Names and labels are arrays:
lists of a million Python objects would be copied into every worker process.

The labels of class folders count the folders of the training, in the order of their names, and are
the same in every split. A training writes them into its run folder, a line each. So a test split
that lacks a class keeps the labels.
"""

import abc
import contextlib
import functools
import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple, Optional, Union

import numpy as np

from resnet50.config import Config, Data
from utils.data.annotation_file import (
    AnnotationFile,
    Label,
    describe_numbered,
    find_class_names,
    read_list,
)
from utils.evaluate.label_space import LabelSpace, list_own_names
from utils.files import read_text, report_write_errors, write_text
from utils.log import log
from utils.messages import format_value, join_names
from utils.runtime import Runtime
from utils.video.images import ArrayFrames, open_image
from utils.video.media_files import MAX_SHOWN, list_class_folders, list_images
from utils.video.reader import read_bytes, reading

FILE = "class_folders.txt"  # in the run folder, beside the checkpoints
# Files of the splits, and bytes before the pixels of an image; the last one is the label.
CIFAR = {
    "cifar10": ({"train": "data_batch_?.bin", "test": "test_batch.bin"}, 1),
    "cifar100": ({"train": "train.bin", "test": "test.bin"}, 2),
}
CIFAR_SHAPE = (3, 32, 32)
MAX_OPEN_SHARDS = 256  # files that a process keeps open


class ImageRecord(NamedTuple):
    """One image; `path` is its file, or says where it is; `load` gives the file's bytes."""

    path: str
    label: Label
    load: Callable[[], Union[bytes, np.ndarray]]
    # As of a whole video of a network for one data set
    segment: None = None
    dataset_index: int = 0

    def open(self, data: Data) -> ArrayFrames:
        """The image as a video of one frame."""
        return ArrayFrames(self.read(), 0.0, is_image=True)

    def read(self) -> np.ndarray:
        """Pixels uint8 (H, W, 3), as PIL decodes a file. Raises VideoError if it cannot."""
        with reading(self.path, "PIL"):
            image = self.load()
            if isinstance(image, np.ndarray):
                return image
            try:
                return open_image(image)
            except Exception as error:  # PIL raises errors of many classes for damaged files
                raise ValueError(f"not a readable image: {error}") from None


class Images(Sequence[ImageRecord]):
    """The images of a split. `names` are bytes, empty if the images have no names.

    `labels` are integers, or tuples if multi-label. `classes` is the class folder of
    each label, "" if that is not known.
    """

    names: np.ndarray
    labels: np.ndarray
    classes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def write_classes(self, run: Path, rt: Runtime) -> None:
        """Writes the class folders of a training into its folder, if all are known.

        Raises ValueError if a stopped run in the folder has other classes.
        """
        classes = [*self.classes]
        if line := describe_numbered(classes):
            log.info(line)
        if not classes or not all(classes):
            return
        odd = next((name for name in classes if "\n" in name), None)
        if odd:
            raise ValueError(f"data.train: {odd!r} has a line break in its name; rename it")
        if read_folder_names(run / FILE) not in ([], classes):
            raise ValueError(
                f"run.out: {run} holds a run with the class folders of {run / FILE}, and "
                "data.train has others now; choose another --run.out"
            )
        if rt.is_main_process:
            with report_write_errors(run / FILE):
                write_text(run / FILE, "".join(f"{name}\n" for name in classes))

    def list_names(self) -> list[str]:
        """The names for a report; without names the numbers of the images."""
        if not len(self.names):
            return [str(index) for index in range(len(self))]
        return [os.fsdecode(name) for name in self.names]

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """The ImageRecord of an image."""


class ImageFolder(Images):
    """Class folders; labels count `classes`, names are files. `left_out` are files and folders.

    Images are in the order of the folders and of the bytes of their names, as MindData's. Raises
    ValueError if a folder with images is none of `classes`.
    """

    def __init__(self, path: Path, classes: Sequence[str]):
        self.path = path
        self.classes = classes
        label_of = {name: label for label, name in enumerate(classes)}
        names: list[bytes] = []
        labels: list[int] = []
        folders = list_class_folders(path)
        self.left_out = sorted({*os.listdir(path)} - {*folders})
        for folder in folders:
            images, others = list_images(path / folder)
            self.left_out += [os.path.join(folder, name) for name in others]
            if images and folder not in label_of:
                raise ValueError(
                    f"{path} has a class folder {format_value(folder)}, which the training has "
                    f"not; its classes are {join_names([*classes], MAX_SHOWN)}: rename or move it"
                )
            names += [os.fsencode(os.path.join(folder, name)) for name in images]
            labels += [label_of.get(folder, 0)] * len(images)
        self.names = np.array(names, np.bytes_)
        self.labels = np.array(labels, np.int64)

    def __getitem__(self, index: Any) -> Any:
        path = os.path.join(self.path, os.fsdecode(self.names[index]))
        return ImageRecord(path, int(self.labels[index]), functools.partial(read_bytes, path))


class ImageList(Images):
    """The images of a list with lines `path label`; names are the paths below the root."""

    def __init__(self, file: AnnotationFile):
        records = read_list(file)
        self.root = file.root
        names = [os.path.relpath(record.path, file.root) for record in records]
        self.names = np.array([os.fsencode(name) for name in names], np.bytes_)
        self.labels = np.empty(len(records), object if file.multi_label else np.int64)
        self.labels[:] = [record.label for record in records]

    def __getitem__(self, index: Any) -> Any:
        path = os.path.join(self.root, os.fsdecode(self.names[index]))
        label = self.labels[index]
        label = label if isinstance(label, tuple) else int(label)
        return ImageRecord(path, label, functools.partial(read_bytes, path))


class MindRecord(Images):
    """A MindRecord with the columns `image` and `label`, and `file` for the names, if it is there.

    The images are read here, because `ds.MindDataset` has no random access: its sampler is a list
    of at most one epoch, a damaged image ends its pipeline, and a single image, as of a report,
    takes a pipeline of its own, 3 ms instead of 0.01. docs/measured/data_path.md has the figures.

    Each shard starts with a header in JSON. Its index, an SQLite file, has a row for every image:
    the page and the offsets in it, and by default the columns that are numbers or strings. A page
    starts at the file offset header_size + page_size * page.
    """

    def __init__(self, path: Path):
        self.path = path
        with reading(path, "MindRecord"):
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            self.shards = [str(path.parent / name) for name in header["shard_addresses"]]
            columns = ["PAGE_ID_BLOB", "PAGE_OFFSET_BLOB", "PAGE_OFFSET_BLOB_END"]
            indexed = [field["index_field"] for field in header["index_fields"]]
            columns += ["label_0"] * ("label" in indexed)
            columns += ["CAST(file_0 AS BLOB)"] * ("file" in indexed)
            shards = [read_index(Path(shard), columns) for shard in self.shards]
            page, start, end, *values = map(np.concatenate, zip(*shards))
            self.shard = np.repeat(np.arange(len(shards)), [len(shard[0]) for shard in shards])
            self.offset = header["header_size"] + header["page_size"] * page + start
            self.size = end - start
            self.labels = values.pop(0) if "label" in indexed else read_labels(path)
            self.names = values.pop() if "file" in indexed else np.zeros(0)
            # The class folder of each label, by the first image of the label
            labels, first = np.unique(self.labels, return_index=True)
            classes = [""] * (int(labels.max(initial=-1)) + 1)
            for label, index in zip(labels, first if len(self.names) else ()):
                if label >= 0:
                    classes[label] = os.path.dirname(os.fsdecode(self.names[index]))
            self.classes = classes
            # The position of the image among the columns of bytes.
            self.column = header["schema"][0]["blob_fields"].index("image")
            self.has_one_column = len(header["schema"][0]["blob_fields"]) == 1

    def __getitem__(self, index: Any) -> Any:
        name = os.fsdecode(self.names[index]) if len(self.names) else f"image {index}"
        load = functools.partial(self.load, index)
        return ImageRecord(f"{name} in {self.path}", int(self.labels[index]), load)

    def load(self, index: int) -> bytes:
        shard = open_shard(self.shards[self.shard[index]])
        data = os.pread(shard.fileno(), int(self.size[index]), int(self.offset[index]))[8:]
        if self.has_one_column:
            return data
        start = 0  # each column is preceded by its size
        for _ in range(self.column):
            start = start + 8 + int.from_bytes(data[start : start + 8], "big")
        size = int.from_bytes(data[start : start + 8], "big")
        return data[start + 8 : start + 8 + size]


class Cifar(Images):
    """CIFAR's binary files: for every image its label, then 32 x 32 pixels of each colour."""

    def __init__(self, files: Sequence[Path], label_bytes: int):
        self.path = files[0] if len(files) == 1 else files[0].parent
        size = label_bytes + int(np.prod(CIFAR_SHAPE))
        for file in files:
            if file.stat().st_size % size:
                raise ValueError(
                    f"data.root: {file} is damaged: its size is not a multiple of {size}"
                )
        data = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, size)
        self.labels = data[:, label_bytes - 1].astype(np.int64)
        self.pixels = data[:, label_bytes:].reshape(-1, *CIFAR_SHAPE)
        self.names = np.zeros(0)

    def __getitem__(self, index: Any) -> Any:
        path = f"image {index} in {self.path}"
        return ImageRecord(
            path, int(self.labels[index]), lambda: self.pixels[index].transpose(1, 2, 0)
        )


def read_records(cfg: Config, split: str, spaces: Sequence[LabelSpace] = ()) -> Images:
    """The images of a split, with the labels of the checkpoint whose names `spaces` have.

    Raises ValueError if there are none, labels out of range, or other classes than in training.
    """
    run = spaces[0].run_folder if spaces else None
    class_names = list_own_names(spaces, 1)[0]
    data = cfg.data
    num_classes = cfg.model.num_classes
    split = "test" if split == "val" and not data.val else split
    path = get_split_path(data, split)
    setting = f"data.{split}: {path}"
    if data.source == "list":
        file = describe_list(data, split, num_classes)
        several = cfg.has_several_labels
        return ImageList(file._replace(multi_label=several, class_names=class_names))
    images: Images
    if data.is_cifar:
        patterns, label_bytes = CIFAR[data.source]
        pattern = patterns["train" if split == "train" else "test"]
        files = sorted(data.root.glob(pattern))
        if not files:
            file = data.root / pattern.replace("?", "1")
            raise ValueError(f"data.root: {file} does not exist; name a folder of {data.source}")
        images = Cifar(files, label_bytes)
    elif data.source == "mindrecord":
        if not path.is_file():
            raise ValueError(f"{setting} does not exist")
        images = MindRecord(path)
        classes = find_classes(data, num_classes, split, run, class_names)
        for label, name in enumerate(images.classes):
            if name and label < len(classes) and classes[label] not in ("", name):
                raise ValueError(
                    f"{setting} has the label {label} for {format_value(name)}, the training for "
                    f"{format_value(classes[label])}: pack it again with "
                    "scripts/data/pack_images.py --classes and the folder of the training images"
                )
    elif path.is_dir():
        classes = find_classes(data, num_classes, split, run, class_names)
        images = open_folder(setting, path, classes, num_classes)
    else:
        raise ValueError(f"{setting} is not a folder")
    for label in (images.labels.min(), images.labels.max()):
        if not 0 <= label < num_classes:
            raise ValueError(
                f"model.num_classes: there is a label {label}, not one from 0 to {num_classes - 1}"
            )
    return images


def describe_list(data: Data, split: str, num_classes: int) -> AnnotationFile:
    """The list of a split. Its class names are in labels.txt beside it, or in `data.root`."""
    path = get_split_path(data, split)
    name = str(path.relative_to(data.root)) if path.is_relative_to(data.root) else str(path)
    file = AnnotationFile(name, path, data.root, source="video", num_classes=num_classes)
    return file if file.labels_path.is_file() else file._replace(labels=data.root / "labels.txt")


def open_folder(setting: str, path: Path, classes: list[str], num_classes: int) -> ImageFolder:
    if not classes:
        raise ValueError(
            f"{setting}: nothing says which of the {num_classes} classes (model.num_classes) its "
            "folders are: data.train has no class folders, and the checkpoint's folder has no "
            f"{FILE}, which a training writes there"
        )
    if len(classes) > num_classes:
        number = len(classes)
        raise ValueError(f"{setting} has {number} classes, model.num_classes is {num_classes}")
    images = ImageFolder(path, classes)
    if not len(images):
        raise ValueError(f"{setting} has no class folder with images")
    counts = np.bincount(images.labels, minlength=len(classes))
    odd = {
        "left out, no images in class folders": images.left_out,
        "classes without images": [classes[label] for label in np.flatnonzero(counts == 0)],
        "one class only": classes if len(classes) == 1 else [],
    }
    for what, names in odd.items():
        if names:
            log.info("%s: %s (%d): %s", path, what, len(names), join_names(names, MAX_SHOWN))
    return images


def find_classes(
    data: Data,
    num_classes: int,
    split: str = "test",
    run: Optional[Path] = None,
    class_names: Sequence[str] = (),
) -> list[str]:
    """The class folders in the order of their labels, the same for all splits; empty if unknown.

    They are those that a training wrote into its folder `run`; without it, the `class_names` of a
    checkpoint, if the folders have such names; without these, those of the training images; without
    these, the `num_classes` names in labels.txt beside it, or as many folders of the split, unless
    the checkpoint has other names than the built-in ones: its classes may have another order. A
    class of a pack without an image is "". Networks of mindspore-ai/models have 1001 classes for
    the 1000 of ImageNet.
    """
    train, path = (get_split_path(data, name) for name in ("train", split))
    if data.source == "folder":
        own = list_class_folders(path) if path.is_dir() else []
    elif data.source == "mindrecord":
        own = [*MindRecord(path).classes] if path.is_file() else []
    else:
        return []
    written = read_folder_names(run / FILE) if run else []
    if written:
        return written
    if own and {*filter(None, own)} <= {*class_names}:
        return [*class_names]
    if data.source == "mindrecord":
        return [*MindRecord(train).classes] if train.is_file() else []
    if train.is_dir():
        return list_class_folders(train)
    labels = train.with_name("labels.txt")
    listed = sorted(read_folder_names(labels))
    numbers = (num_classes, 1000 if num_classes == 1001 else num_classes)
    if len(listed) in numbers and set(own) <= set(listed):
        return listed
    if class_names and [*class_names] != find_class_names(None, data.labels, num_classes):
        return []
    return own if len(own) in numbers else []


def read_folder_names(path: Path) -> list[str]:
    """The lines of a file, each as it is: the name of a folder; empty if there is no file."""
    if not path.is_file():
        return []
    return read_text(path, str(path), "surrogateescape").removesuffix("\n").split("\n")


def get_split_path(data: Data, split: str) -> Path:
    """The folder or MindRecord file of a split."""
    return data.root / {"train": data.train, "test": data.test, "val": data.val}[split]


@functools.lru_cache(MAX_OPEN_SHARDS)
def open_shard(shard: str) -> BinaryIO:
    return open(shard, "rb", buffering=0)


def read_index(shard: Path, columns: Sequence[str]) -> list[np.ndarray]:
    """Columns of the index file of a MindRecord shard, in the order of its rows."""
    # immutable: SQLite neither locks the file nor writes beside it.
    address = f"{shard.resolve().as_uri()}.db?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as index:
        queries = [f"SELECT {column} FROM INDEXES ORDER BY ROW_ID" for column in columns]
        return [np.array([value for (value,) in index.execute(query)]) for query in queries]


def read_labels(path: Path) -> np.ndarray:
    """The labels of a MindRecord whose index leaves them out; slow, 20 s for a million."""
    import mindspore.dataset as ds

    rows: Any = ds.MindDataset(str(path), columns_list=["label"], shuffle=False)
    batches = rows.batch(1000).create_tuple_iterator(num_epochs=1, output_numpy=True)
    return np.concatenate([labels for (labels,) in batches])
