"""Streaming inference of TSM: probabilities after each frame of a stream.

The network reads each frame once and keeps the shifted channels of earlier frames as buffers
(`tsm/export_cells.py`). The scores of the last `data.segments` frames are averaged, like the
consensus of a clip, and then become probabilities.

The frame rate is training's: dense sampling takes every (64 / segments)-th frame; uniform
sampling spreads the segments over a video, here over three seconds, the length of a Jester video.
The demo of the original takes every second camera frame, averages 12 scores, and changes its answer
only after three equal results, with special rules for some gestures of Jester. `--fps 15` is close
to it; the rules are left out.

Streaming computes in float32, whatever `run.amp` is, by the engine of `run.engine`.
"""

from collections import deque
from typing import Callable

import numpy as np

from tsm import sampling, transforms
from tsm.config import Config
from tsm.labels import TSMLabelSpace
from utils.evaluate.scorer import Steps
from utils.inference.stream import FramePredictor, Timing

CLIP_SECONDS = 3.0  # assumed length of a clip of uniform sampling


class OnlinePredictor(FramePredictor):
    """The probabilities after each frame, by the steps of a TSM built with `online=True`.

    `open_steps` returns them for the shape (C, H, W) of a frame. Raises ValueError if the settings
    do not allow this.
    """

    def __init__(self, cfg: Config, timing: Timing, open_steps: Callable[[tuple], Steps]):
        if cfg.data.frames_read > 1:
            raise ValueError(
                "a stream frame by frame: data.frames_per_segment must be 1, data.modality rgb"
            )
        rate = timing.fps or compute_frame_rate(cfg, timing.source_fps)
        super().__init__(min(rate, timing.source_fps))
        self.steps = open_steps(cfg.get_clip_shape(cfg.test_crop)[1:])
        self.cfg = cfg
        self.label_space = TSMLabelSpace(cfg)
        self.recent_scores: deque = deque(maxlen=cfg.data.segments)
        self.restart()

    def restart(self) -> None:
        self.buffers = self.steps.buffers
        self.recent_scores.clear()

    def prepare(self, pixels: np.ndarray) -> list[np.ndarray]:
        resize_to = self.cfg.data.resize
        crop = self.cfg.test_crop
        return [transforms.cut_crops(pixels[None], resize_to=resize_to, crop=crop, crops=1)[0]]

    def score(self, view: np.ndarray) -> np.ndarray:
        scores, *self.buffers = self.steps.run(view, *self.buffers)  # (1, C, h, w)
        self.recent_scores.append(scores[0].astype(np.float64))
        mean = np.mean(self.recent_scores, axis=0)
        return self.label_space.compute_probs(mean)


def compute_frame_rate(cfg: Config, source_fps: float) -> float:
    """Frames per second of a training clip of a video with `source_fps` frames per second."""
    if cfg.data.sampling == "dense":
        return source_fps / (sampling.WINDOW // cfg.data.segments)
    return cfg.data.segments / CLIP_SECONDS
