"""Inference-time views of one video: the same frames and crops as in evaluation."""

from typing import TYPE_CHECKING

import numpy as np

from utils.evaluate.label_space import ListSpace
from x3d.dataset import choose_test_frames, cut_test_crops

if TYPE_CHECKING:
    from utils.video.windows import Window


class X3DLabelSpace(ListSpace):
    """The classes of X3D, with the views of `cfg.eval`."""

    raw_scores = False  # the network returns probabilities

    def frame_indices(self, window: "Window") -> np.ndarray:
        return choose_test_frames(window, self.cfg)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        return cut_test_crops(frames, self.cfg)
