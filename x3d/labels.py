"""Inference-time views of one video: the same frames and crops as in evaluation."""

from typing import TYPE_CHECKING

import numpy as np

from utils.data.annotation_file import describe_list, find_labels
from utils.evaluate.label_space import LabelSpace
from x3d.config import Config
from x3d.dataset import choose_test_frames, cut_test_crops

if TYPE_CHECKING:
    from utils.video.windows import Window


class X3DLabelSpace(LabelSpace):
    """The classes of X3D, with the views of `cfg.eval`."""

    raw_scores = False  # the network returns probabilities

    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.classes = cfg.model.num_classes
        self.multi_label = cfg.has_several_labels
        self.builtin_names = cfg.data.labels
        self.test_list = describe_list(cfg, "test")
        self.names_file = find_labels(describe_list(cfg, "train"), self.test_list)
        self.clips = cfg.eval.clips
        self.crops = cfg.eval.crops

    def frame_indices(self, window: "Window") -> np.ndarray:
        return choose_test_frames(window, self.cfg)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        return cut_test_crops(frames, self.cfg)
