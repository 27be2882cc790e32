"""How TSM looks at one video, as its evaluation does."""

from pathlib import Path
from typing import Any

import numpy as np

from tsm.dataset import cut_views, frame_numbers, list_annotation_files
from utils.evaluate.video_inference import Head, Part
from utils.video.decoders import FrameFolder, count_frames, open_video
from utils.video.reader import FrameSource

MIDDLE = {1: 0, 3: 2, 5: 4, 10: 8}  # which of the crops lies in the middle, and is not mirrored


class TSMHead(Head):
    def __init__(self, cfg: Any):
        self.cfg, self.classes, self.shipped = cfg, cfg.model.num_classes, cfg.data.labels
        self.beside = list_annotation_files(cfg)[1].path.with_name("labels.txt")
        self.clips, self.crops = cfg.eval.clips, cfg.eval.crops
        self.raw = cfg.model.before_softmax

    def numbers(self, part: Part) -> np.ndarray:
        return frame_numbers(part, self.cfg.data, "test", self.cfg.dense_test, self.clips)

    def cut(self, frames: np.ndarray, places: np.ndarray) -> np.ndarray:
        return cut_views(frames, places, self.cfg, self.clips, self.crops)

    def pictures(self, views: np.ndarray) -> np.ndarray:
        """The first frame of each segment; of flow, x in grey."""
        first = MIDDLE[self.crops] * self.clips
        colours = 3 if self.cfg.data.modality == "rgb" else 1
        middle = views[first : first + self.clips, :, :colours].transpose(0, 1, 3, 4, 2)
        return middle.repeat(4 - colours, axis=4)[..., :3]


def build_heads(cfg: Any) -> list[Head]:
    return [TSMHead(cfg)]


def open_source(path: str, cfg: Any) -> FrameSource:
    """A video, or a folder of frames named by `data.image_tmpl`."""
    data = cfg.data
    if not Path(path).is_dir():
        if data.modality == "flow":
            raise ValueError(f"{path}: data.modality flow looks at folders of flow images")
        return open_video(path, data.reader, data.max_pixels)
    form = (data.image_tmpl, data.modality == "flow")
    return FrameFolder(path, count_frames(Path(path), *form), *form, data.max_pixels)
