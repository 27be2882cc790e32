"""How X3D looks at one video, as its evaluation does."""

from typing import Any

import numpy as np

from utils.evaluate.video_inference import Head, Part
from utils.video.decoders import open_video
from utils.video.reader import FrameSource
from x3d.dataset import cut_views, list_annotation_files, test_numbers


class X3DHead(Head):
    raw = False  # the mean over positions of each position's softmax

    def __init__(self, cfg: Any):
        self.cfg, self.classes, self.shipped = cfg, cfg.model.num_classes, cfg.data.labels
        self.beside = list_annotation_files(cfg)[1].path.with_name("labels.txt")
        self.clips, self.crops = cfg.eval.clips, cfg.eval.crops

    def numbers(self, part: Part) -> np.ndarray:
        return test_numbers(part, self.cfg)

    def cut(self, frames: np.ndarray, places: np.ndarray) -> np.ndarray:
        return cut_views(frames, places, self.cfg)


def build_heads(cfg: Any) -> list[Head]:
    return [X3DHead(cfg)]


def open_source(path: str, cfg: Any) -> FrameSource:
    return open_video(path, cfg.data.reader, cfg.data.max_pixels)
