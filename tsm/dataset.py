"""Videos to clips: list -> frames -> crops -> MindData.

Training yields (clip, label): uint8 (N, T, C, size, size) and int32 (N,).
Evaluation yields (clips, label, valid): uint8 (N, V, T, C, size, size) with V views, int32 (N,),
bool (N,); what fills the last batch, and what cannot be read, is not valid.

A video is opened and decoded once, whatever the number of clips and crops.
"""

import random

import numpy as np

from tsm import sampling, transforms
from utils.data import video_dataset
from utils.data.annotation_file import ListFile, Record, swapped
from utils.data.packed import reader
from utils.data.sampler import TrainSampler, sample_rng
from utils.runtime import Runtime
from utils.video.decoders import FrameFolder, FrameSource

SPLITS = ("train", "test")


def read_records(cfg, split: str) -> list[Record]:
    """The lines of the train or test list, every one checked; ValueError names bad ones."""
    return reader.read_records(list_files(cfg)[SPLITS.index(split)], cfg.data.packed)


def list_files(cfg) -> list[ListFile]:
    """The yaml's train and test list."""
    data, classes = cfg.data, cfg.model.num_classes
    flow = data.modality == "flow"
    form = (data.root, data.source, classes, data.image_tmpl, flow, data.max_pixels)
    names = (data.train_list, data.test_list)
    return [ListFile(name, data.root / name, *form) for name in names]


def train_sampler(cfg, records: list[Record], rt: Runtime) -> TrainSampler:
    return video_dataset.train_sampler(cfg, records, rt)


def open_record(record: Record, data):
    """The frames of one line of a list, whatever they are stored as."""
    if data.source == "frames" and record.place is None:
        flow = data.modality == "flow"
        form = (data.image_tmpl, flow, data.max_pixels)
        return FrameFolder(record.path, record.num_frames, *form)
    return reader.open_record(record, data)


def frame_numbers(
    video: FrameSource, data, split: str, dense: bool, clips: int = 1, rng=None
) -> np.ndarray:
    """The frames that `split` samples (clips * T * L,)."""
    length = data.frames_per_segment
    offsets = sampling.sample(split, len(video), data.segments, length, dense, clips, rng)
    return sampling.frames_read(offsets, len(video), length)


class TrainSource(video_dataset.TrainVideos):
    """One random clip of a video."""

    def list_class_settings(self) -> list:
        return [(list_files(self.cfg)[0], self.data)]

    def frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        dense = self.data.sampling == "dense"
        with open_record(record, self.data) as video:
            numbers = frame_numbers(video, self.data, "train", dense, rng=rng)
            frames, order = video.frames_once(numbers)
        return frames if len(frames) == len(order) else frames[order]

    def row(self, record: Record, rng: np.random.RandomState) -> tuple[np.ndarray, np.int32]:
        data = self.data
        frames = self.frames(record, rng)
        dice = random.Random(int(rng.randint(2**31)))
        clip, flipped = transforms.train_clip(
            frames, data.frames_per_segment, data.crop, data.scales, dice, data.flip
        )
        return clip, np.int32(swapped(record.label, data.swap_labels if flipped else ()))

    def blank(self) -> tuple[np.ndarray, np.int32]:
        return np.zeros(clip_shape(self.data, self.data.crop), np.uint8), np.int32(0)


class EvalVideos(video_dataset.EvalVideos):
    """`split` is "test", with the views of `cfg.eval`, or "val", the original's look while
    training: one clip, one crop.
    """

    def __init__(self, records: list[Record], cfg, rt: Runtime, split: str = "test"):
        self.split = split
        if split == "val":
            self.clips, self.crops, self.dense = 1, 1, cfg.data.sampling == "dense"
        else:
            self.clips, self.crops, self.dense = cfg.eval.clips, cfg.eval.crops, cfg.dense_test
        shape = (self.clips * self.crops, *clip_shape(cfg.data, cfg.test_crop))
        super().__init__(records, cfg, rt, shape)

    def views(self, record: Record, sample: int) -> np.ndarray:
        rng = sample_rng(self.cfg.run.seed, 0, sample)  # dense validation draws its window
        sampled = (self.cfg.data, self.split, self.dense, self.clips, rng)
        with open_record(record, self.cfg.data) as video:
            frames, order = video.frames_once(frame_numbers(video, *sampled))
        return cut_views(frames, order, self.cfg, self.clips, self.crops)


def cut_views(frames: np.ndarray, order: np.ndarray, cfg, clips: int, crops: int) -> np.ndarray:
    """(V, T, C, crop, crop): all clips of the first crop, then of the second, ...

    `order` (clips * T * L,) says which of the frames stands where.
    """
    data, size = cfg.data, cfg.test_crop
    return transforms.test_clips(frames, clips, data.segments, data.resize, size, crops, order)


def clip_shape(data, size: int) -> tuple[int, int, int, int]:
    """(T, C, size, size) of one clip."""
    channels = (3 if data.modality == "rgb" else 2) * data.frames_per_segment
    return data.segments, channels, size, size


def eval_data(cfg, rt: Runtime):
    """The evaluation of the yaml's test list."""
    return EvalVideos(read_records(cfg, "test"), cfg, rt).dataset()


def one_clip(data) -> tuple[int, ...]:
    """A training sample is one clip."""
    return clip_shape(data, data.crop)


def targets_of(cfg, labels: np.ndarray) -> np.ndarray:
    """Labels are the targets."""
    return labels
