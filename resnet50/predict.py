"""How ResNet looks at one image, as its evaluation does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resnet50.images import centered, decode
from resnet50.readers import split_path
from utils.evaluate.predict import Head, Window
from utils.video.reader import FrameSource, read_bytes

# What CIFAR's binary files come with.
CIFAR_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}


class ImageFile(FrameSource):
    """An image as a video of one frame. Raises VideoError where it is none."""

    def __init__(self, path: Path):
        super().__init__(path, "PIL")
        self._length = 1

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        try:
            yield decode(np.frombuffer(read_bytes(self.path), np.uint8))
        except (OSError, RuntimeError) as error:
            raise self._error(error) from None


class ImageHead(Head):
    def __init__(self, cfg: Any):
        self.data, self.classes, self.builtin_names = (
            cfg.data,
            cfg.model.num_classes,
            cfg.data.labels,
        )
        self.names_file = cfg.data.root / CIFAR_NAMES.get(cfg.data.source, "labels.txt")

    def find_names(self) -> Sequence[str]:
        return super().find_names() or folder_names(self.data, self.classes)

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.zeros(1, np.int64)

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return centered(frames[0], self.data.resize, self.data.crop)[None]

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        return views[:, None].transpose(0, 1, 3, 4, 2)


def folder_names(data: Any, classes: int) -> Sequence[str]:
    """Those of the class folders, which sorted are the labels; empty for classes beyond them."""
    if data.source != "folder":
        return ()
    for folder in (split_path(data, "train"), split_path(data, "test")):
        if folder.is_dir():
            names = sorted(each.name for each in folder.iterdir() if each.is_dir())
            return [*names, *[""] * (classes - len(names))]
    return ()


def build_heads(cfg: Any) -> list[Head]:
    return [ImageHead(cfg)]


def open_source(path: str, cfg: Any) -> FrameSource:
    return ImageFile(Path(path))
