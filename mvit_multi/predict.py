"""How each data set's head looks at one video, as its evaluation does."""

from typing import Any

import numpy as np
from mindspore import nn

from mvit_multi.dataset import cut_views, list_file, test_numbers
from mvit_multi.evaluation import OneHead
from utils.evaluate.video_inference import Head, Part
from utils.video.decoders import open_video
from utils.video.reader import FrameSource


class SetHead(Head):
    """One data set's."""

    raw = False

    def __init__(self, cfg: Any, which: int):
        self.data, self.which, self.set = cfg.data, which, cfg.data.sets[which]
        self.name, self.classes, self.shipped = self.set.name, self.set.num_classes, self.set.labels
        self.beside = list_file(cfg, which, "labels").path.with_suffix(".txt")
        self.clips, self.crops = self.set.clips, self.set.crops

    def numbers(self, part: Part) -> np.ndarray:
        return test_numbers(part, self.data, self.set, self.clips)

    def cut(self, frames: np.ndarray, places: np.ndarray) -> np.ndarray:
        return cut_views(frames, places, self.data, self.set, self.crops)

    def shares(self, net: nn.Cell, views: np.ndarray) -> np.ndarray:
        return super().shares(OneHead(net, self.which), views)


def build_heads(cfg: Any) -> list[Head]:
    return [SetHead(cfg, which) for which in range(len(cfg.data.sets))]


def open_source(path: str, cfg: Any) -> FrameSource:
    return open_video(path, cfg.data.reader, cfg.data.max_pixels)
