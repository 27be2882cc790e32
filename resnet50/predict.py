"""Inference on one image: the same view as in evaluation."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from resnet50 import readers, transforms
from resnet50.config import Config, Data
from utils.evaluate.predict import Head, Window
from utils.video.reader import FrameReader, read_bytes, reading

# The files of class names beside CIFAR's binary files.
CIFAR_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}


class ImageFile(FrameReader):
    """An image as a video of one frame. Reading raises VideoError if the file is not an image."""

    def __init__(self, path: str):
        super().__init__(Path(path), "PIL")
        self._length = 1

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        with reading(self.path, self.reader):
            image = readers.decode_image(read_bytes(self.path))
        yield image


class ImageHead(Head):
    """The classes of ResNet; its view is that of evaluation."""

    def __init__(self, cfg: Config):
        self.data = cfg.data
        self.classes = cfg.model.num_classes
        self.multi_label = cfg.has_several_labels
        self.crop = cfg.test_crop
        self.builtin_names = cfg.data.labels
        self.names_file = cfg.data.root / CIFAR_NAMES.get(cfg.data.source, "labels.txt")

    def find_names(self) -> Sequence[str]:
        return super().find_names() or list_folder_names(self.data, self.classes)

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.zeros(1, np.int64)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        views = [transforms.make_test_view(f, self.data.resize, self.crop) for f in frames]
        return np.stack(views)

    def make_views(self, crops: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return crops

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        return views[:, None].transpose(0, 1, 3, 4, 2)


def list_folder_names(data: Data, classes: int) -> Sequence[str]:
    """The names of the sorted class folders, which are the classes; empty for further classes."""
    if data.source != "folder":
        return ()
    for folder in (readers.get_split_path(data, split) for split in ("train", "test")):
        if folder.is_dir():
            names = [class_folder.name for class_folder in readers.list_class_folders(folder)]
            return [*names, *[""] * (classes - len(names))]
    return ()
