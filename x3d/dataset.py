"""Video data of X3D: annotation file -> frames -> crops -> MindData batches.

Training yields (clip, label): uint8 (N, 3, T, crop, crop) and int32 (N,), or, with mixup or cutmix,
float32 (N, 3 or 7) (`utils.data.mixing`). Evaluation yields (clips, label, valid): uint8
(N, V, 3, T, crop, crop) with V views, int32 (N,), bool (N,). `valid` is false for unreadable videos
and for the padding of the last batch. A video is opened and decoded once for all its views.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Union

import numpy as np

from utils.data.annotation_file import Record
from utils.data.loader import build_pipeline
from utils.data.rows import EvalRows, Row, Rows, TrainVideoRows
from utils.runtime import Runtime
from utils.video.reader import Clip, Timeline
from utils.video.transforms import arrange_views, cut_crops
from x3d import sampling, transforms
from x3d.config import Config, Data


def choose_clip_frames(video: Timeline, data: Data, relative_start: float) -> np.ndarray:
    """The frame indices (T,) of a clip. `relative_start`: 0 is the first start, 1 the last."""
    fps = video.fps or data.fps
    span = sampling.compute_clip_span(data.frames, stride=data.stride, fps=fps, target_fps=data.fps)
    start = sampling.compute_start(relative_start, len(video), span)
    return sampling.spread_frame_indices(start, span=span, frames=data.frames, length=len(video))


class TrainVideos(TrainVideoRows):
    """One random clip of a video."""

    cfg: Config
    data: Data

    def choose_frames(
        self, video: Timeline, record: Record, rng: np.random.RandomState
    ) -> np.ndarray:
        return choose_clip_frames(video, self.data, rng.uniform())

    def make_row(self, record: Record, rng: np.random.RandomState) -> Row:
        data = self.data
        with self.open_video(record) as video:
            frames = Clip(video, self.choose_frames(video, record, rng))
            clip, mirrored = transforms.make_train_clip(
                frames, scales=data.scales, crop=data.crop, flip=data.flip, rng=rng
            )
        clip = self.augment(clip, channel_axis=0, rng=rng)
        return clip, self.make_target(record.label, data.swap_labels if mirrored else ())


class EvalVideos(EvalRows):
    """All views of each video.

    `split` is "test" (the clips and crops of `cfg.eval`) or "val" (for validation during training:
    one clip from the middle, one centre crop).
    """

    cfg: Config

    def __init__(self, records: list[Record], cfg: Config, rt: Runtime, split: str = "test"):
        self.split = split
        if split == "val":
            cfg = replace(cfg, eval=replace(cfg.eval, clips=1, crops=1, crop=0))
        self.clips = cfg.eval.clips
        self.crops = cfg.eval.crops
        clip_shape = cfg.get_clip_shape(cfg.test_crop)
        super().__init__(records, cfg=cfg, rt=rt, clip_shape=clip_shape)

    def make_views(self, record: Record, sample: int) -> np.ndarray:
        with self.open_video(record) as video:
            if self.split == "val":
                indices = choose_clip_frames(video, self.cfg.data, 0.5)[None]
            else:
                indices = choose_test_frames(video, self.cfg)
            return arrange_views(*video.read(indices, partial(cut_test_crops, cfg=self.cfg)))


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> Any:
    """The batches of rows in their order as MindData's `GeneratorDataset`, for `Model.train`.

    MindData queues the finished batches and feeds the device. The rows are made by our own workers
    (`data.workers`) in an order that depends on the seed only, because threads of MindData make 0.1
    to 0.2 of as many rows a second: utils/data/loader.py. One pass over the rows of a training is
    all remaining epochs of the run.
    """
    return build_pipeline(rows, cfg.data, workers)


def choose_test_frames(video: Timeline, cfg: Config) -> np.ndarray:
    """The frame indices (K, T) of the K clips of a test."""
    starts = np.arange(cfg.eval.clips) / cfg.eval.clips
    return np.stack([choose_clip_frames(video, cfg.data, start) for start in starts])


def cut_test_crops(frames: np.ndarray, cfg: Config) -> np.ndarray:
    """The crops of the frames of a test: uint8 (n, crops, 3, crop, crop)."""
    side = cfg.test_crop if cfg.eval.crops == 3 else cfg.data.scales[0]
    return cut_crops(frames, side=side, crop=cfg.test_crop, crops=cfg.eval.crops)
