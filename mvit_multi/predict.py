"""Inference-time views of one video for each head: the same frames and crops as in evaluation."""

from typing import Any

import numpy as np
from mindspore import nn

from mvit_multi.dataset import choose_test_frames, cut_views, get_annotation_file
from mvit_multi.evaluation import HeadSelector
from utils.evaluate.video_inference import Head, Part
from utils.video.decoders import open_video
from utils.video.reader import FrameSource


class DatasetHead(Head):
    """The classes of one data set, with the views of its settings."""

    raw = False

    def __init__(self, cfg: Any, dataset_index: int):
        settings = cfg.data.sets[dataset_index]
        self.data, self.dataset_index, self.settings = cfg.data, dataset_index, settings
        self.name, self.classes, self.shipped = settings.name, settings.num_classes, settings.labels
        self.beside = get_annotation_file(cfg, dataset_index, "labels").path.with_suffix(".txt")
        self.clips, self.crops = settings.clips, settings.crops

    def numbers(self, part: Part) -> np.ndarray:
        return choose_test_frames(part, self.data, self.settings, self.clips)

    def cut(self, frames: np.ndarray, order: np.ndarray) -> np.ndarray:
        return cut_views(frames, order, self.data, self.settings, self.crops)

    def probabilities(self, net: nn.Cell, views: np.ndarray) -> np.ndarray:
        return super().probabilities(HeadSelector(net, self.dataset_index), views)


def build_heads(cfg: Any) -> list[Head]:
    """One head for each data set."""
    return [DatasetHead(cfg, index) for index in range(len(cfg.data.sets))]


def open_source(path: str, cfg: Any) -> FrameSource:
    """Opens a video."""
    return open_video(path, cfg.data.reader, cfg.data.max_pixels)
