"""Video data of TSM: annotation file -> frames -> crops -> MindData batches.

Training yields (clip, label): uint8 (N, T, C, size, size) and int32 (N,); multi-label
float32 (N, classes), with mixup or cutmix float32 (N, 3 or 7) (`utils.data.mixing`). With dropout
the trainer appends its factors, float32 (N, 1, K), as a third column.
Evaluation yields (clips, label, valid): uint8 (N, V, T, C, size, size) with V views, int32 (N,),
bool (N,). `valid` is false for unreadable videos and for the padding of the last batch.

A video is opened and decoded once for all its clips and crops.
"""

import random
from functools import partial
from typing import Any, Union

import numpy as np

from tsm import sampling, transforms
from tsm.config import Config, Data
from utils.data.annotation_file import Record
from utils.data.loader import build_pipeline
from utils.data.rows import EvalRows, Row, Rows, TrainVideoRows
from utils.data.sampler import sample_rng
from utils.runtime import Runtime
from utils.video.reader import Clip, Timeline


def sample_frame_indices(
    video: Timeline, data: Data, split: str, dense: bool, clips: int = 1, rng=None
) -> np.ndarray:
    """The frame indices that `split` samples, int64 (clips * T * L,). See `tsm/sampling.py`."""
    length = data.frames_read
    offsets = sampling.sample_segment_offsets(
        split, len(video), data.segments, length, dense=dense, clips=clips, rng=rng
    )
    return sampling.expand_segments(offsets, len(video), length)


class TrainVideos(TrainVideoRows):
    """One random clip of a video."""

    cfg: Config
    data: Data

    def choose_frames(
        self, video: Timeline, record: Record, rng: np.random.RandomState
    ) -> np.ndarray:
        dense = self.data.sampling == "dense"
        return sample_frame_indices(video, data=self.data, split="train", dense=dense, rng=rng)

    def make_row(self, record: Record, rng: np.random.RandomState) -> Row:
        data = self.data
        with self.open_video(record) as video:
            frames = Clip(video, self.choose_frames(video, record, rng))
            clip, flipped = transforms.make_train_clip(
                frames,
                frames_per_segment=data.frames_read,
                size=data.crop,
                scales=data.scales,
                rng=random.Random(int(rng.randint(2**31))),
                flip=data.flip,
            )
        frames = clip.reshape(-1, 2 if data.is_flow else 3, *clip.shape[2:])
        clip = self.augment(frames, channel_axis=1, rng=rng).reshape(clip.shape)
        return clip, self.make_target(record.label, data.swap_labels if flipped else ())


class EvalVideos(EvalRows):
    """All views of each video.

    `split` is "test" (the views of `cfg.eval`) or "val" (the original's transform for validation
    during training: one clip, one crop).
    """

    cfg: Config

    def __init__(self, records: list[Record], cfg: Config, rt: Runtime, split: str = "test"):
        self.split = split
        self.clips = cfg.eval.clips
        self.crops = cfg.eval.crops
        self.dense = cfg.dense_test
        self.size = cfg.test_crop
        if split == "val":
            self.clips = 1
            self.crops = 1
            self.dense = cfg.data.sampling == "dense"
            self.size = cfg.data.crop
        clip_shape = cfg.get_clip_shape(self.size)
        super().__init__(records, cfg=cfg, rt=rt, clip_shape=clip_shape)

    def make_views(self, record: Record, sample: int) -> np.ndarray:
        data = self.cfg.data
        # Dense validation: random windows, always the same
        rng = sample_rng(self.cfg.run.seed, 0, sample)
        with self.open_video(record) as video:
            indices = sample_frame_indices(
                video, data, split=self.split, dense=self.dense, clips=self.clips, rng=rng
            )
            cut = partial(
                transforms.cut_crops, resize_to=data.resize, crop=self.size, crops=self.crops
            )
            crops, order = video.read(indices, cut)
        return transforms.arrange_views(crops, order, clips=self.clips, segments=data.segments)


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> Any:
    """The batches of rows in their order as MindData's `GeneratorDataset`, for `Model.train`.

    MindData queues the finished batches and feeds the device. The rows are made by our own workers
    (`data.workers`) in an order that depends on the seed only, because threads of MindData make 0.1
    to 0.2 of as many rows a second: utils/data/loader.py. One pass over the rows of a training is
    all remaining epochs of the run.
    """
    return build_pipeline(rows, cfg.data, workers)
