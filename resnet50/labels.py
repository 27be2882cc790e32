"""Inference on one image: the same view as in evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resnet50 import readers, transforms
from resnet50.config import Config
from utils.data.annotation_file import find_labels
from utils.evaluate.label_space import LabelSpace

if TYPE_CHECKING:
    from utils.video.windows import Window

# The files of class names beside CIFAR's binary files.
CIFAR_NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}


class ImageLabelSpace(LabelSpace):
    """The classes of ResNet; its view is that of evaluation."""

    def __init__(self, cfg: Config):
        self.data = cfg.data
        self.classes = cfg.model.num_classes
        self.multi_label = cfg.has_several_labels
        self.crop = cfg.test_crop
        self.builtin_names = cfg.data.labels
        self.names_file = cfg.data.root / CIFAR_NAMES.get(cfg.data.source, "labels.txt")
        if cfg.data.source == "list":
            lists = [readers.describe_list(cfg.data, k, self.classes) for k in ("train", "test")]
            self.names_file = find_labels(*lists)
            self.test_list = lists[-1]

    @property
    def test_path(self) -> Path:
        return self.data.root if self.data.is_cifar else readers.get_split_path(self.data, "test")

    @property
    def class_folders(self) -> Sequence[str]:
        run, names = self.run_folder, self.own_names
        return readers.find_classes(self.data, self.classes, run=run, class_names=names)

    def frame_indices(self, window: "Window") -> np.ndarray:
        return np.zeros(1, np.int64)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        views = [transforms.make_test_view(f, self.data.resize, self.crop) for f in frames]
        return np.stack(views)

    def make_views(self, crops: np.ndarray, order: np.ndarray) -> np.ndarray:
        return crops

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        return views[:, None].transpose(0, 1, 3, 4, 2)
