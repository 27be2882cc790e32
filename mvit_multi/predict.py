"""Inference-time views of one video for each head: the same frames and crops as in evaluation."""

from typing import Any

import numpy as np

from mvit_multi.dataset import choose_test_frames, cut_views, get_annotation_file
from utils.evaluate.predict import Head, Window


class HeadSelector:
    """The network with the output of one head only; all heads share one compiled graph."""

    def __init__(self, net: Any, dataset_index: int):
        self.net = net
        self.dataset_index = dataset_index

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def __call__(self, clip: Any) -> Any:
        return self.net(clip)[self.dataset_index]


class DatasetHead(Head):
    """The classes of one data set, with the views of its settings."""

    raw_scores = False

    def __init__(self, cfg: Any, dataset_index: int):
        settings = cfg.data.sets[dataset_index]
        self.data = cfg.data
        self.dataset_index = dataset_index
        self.settings = settings
        self.name = settings.name
        self.builtin_names = settings.labels
        self.classes = settings.num_classes
        self.names_file = get_annotation_file(cfg, dataset_index, "labels").path.with_suffix(".txt")
        self.clips = settings.clips
        self.crops = settings.crops

    def frame_indices(self, window: Window) -> np.ndarray:
        return choose_test_frames(window, self.data, self.settings, self.clips)

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return cut_views(frames, positions, self.data, self.settings, self.crops)

    def select_output(self, net: Any) -> HeadSelector:
        return HeadSelector(net, self.dataset_index)
