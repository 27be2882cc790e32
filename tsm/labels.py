"""Inference-time views of one video: the same frames and crops as in evaluation."""

from typing import TYPE_CHECKING

import numpy as np

from tsm import transforms
from tsm.config import Config
from tsm.dataset import sample_frame_indices
from utils.evaluate.label_space import ListSpace

if TYPE_CHECKING:
    from utils.video.windows import Window

# {number of crops: index of the center crop that is not mirrored}
CENTER_CROP = {1: 0, 3: 2, 5: 4, 10: 8}


class TSMLabelSpace(ListSpace):
    """The classes of TSM, with the views of `cfg.eval`."""

    def __init__(self, cfg: Config):
        super().__init__(cfg)
        self.raw_scores = cfg.model.before_softmax

    def frame_indices(self, window: "Window") -> np.ndarray:
        return sample_frame_indices(
            window, data=self.cfg.data, split="test", dense=self.cfg.dense_test, clips=self.clips
        )

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        return transforms.cut_crops(
            frames, resize_to=self.cfg.data.resize, crop=self.cfg.test_crop, crops=self.crops
        )

    def make_views(self, crops: np.ndarray, order: np.ndarray) -> np.ndarray:
        segments = self.cfg.data.segments
        return transforms.arrange_views(crops, order=order, clips=self.clips, segments=segments)

    def group_by_clip(self, values: np.ndarray) -> np.ndarray:
        """The views are those of the first crop of all clips, then of the second, ..."""
        return values.reshape(self.crops, self.clips, *values.shape[1:]).swapaxes(0, 1)

    def select_middle_crops(self, views: np.ndarray) -> np.ndarray:
        return self.group_by_clip(views)[:, CENTER_CROP[self.crops]]

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        """The first frame of each segment; for flow its x component in grey."""
        channels = 1 if self.cfg.data.is_flow else 3
        center = self.select_middle_crops(views)[:, :, :channels].transpose(0, 1, 3, 4, 2)
        return center.repeat(4 - channels, axis=4)[..., :3]
