"""Videos of several data sets to clips: lists -> frames -> augmentation -> MindData.

Training yields (clip, target): uint8 (B, S, 3, T, crop, crop) with S copies of each video, and
float32 (B, S, 7) (`mixing.target_row`). Evaluation, one data set at a time, yields (clips, label,
valid): uint8 (B, V, 3, T, crop, crop) with V views, int32 (B,), bool (B,); what fills the last
batch, and what cannot be read, is not valid. A video is decoded once for all copies or views.
"""

from typing import Any, NamedTuple

import numpy as np

from mvit_multi import sampling, transforms
from mvit_multi.mixup import Mix, draw_mix, target_row
from mvit_multi.policy import parse_policy
from utils.data import video_dataset
from utils.data.annotation_file import ListFile, swapped
from utils.data.packed import reader
from utils.data.sampler import TrainSampler
from utils.runtime import Runtime
from utils.video.decoders import FrameSource
from utils.video.transforms import test_views

SPLITS = ("train", "val", "test")


class Sample(NamedTuple):
    """One video: which data set it is of, and its label there."""

    path: str
    which: int
    label: int
    place: Any = None  # of a packed list: the `utils.data.packed.reader.Place`


def list_file(cfg, which: int, split: str) -> ListFile:
    data, each = cfg.data, cfg.data.sets[which]
    name = f"{each.lists}/{split}.csv"
    path = (data.lists or data.root) / name
    form = (data.root / each.videos, "video", each.num_classes)
    return ListFile(name, path, *form, max_pixels=data.max_pixels)


def list_files(cfg) -> list[ListFile]:
    """All lists of the yaml that are there."""
    files = [list_file(cfg, k, split) for k in range(len(cfg.data.sets)) for split in SPLITS]
    return [file for file in files if file.path.is_file()] or files


def read_set(cfg, which: int, split: str) -> list[Sample]:
    """The lines of one set's list, every one checked; ValueError names bad ones."""
    records = reader.read_records(list_file(cfg, which, split), cfg.data.packed)
    return [Sample(record.path, which, record.label, record.place) for record in records]


def read_records(cfg, split: str) -> list[Sample]:
    """All sets' lists, one after the other; those of training `data.replicas` times."""
    samples = [sample for k in range(len(cfg.data.sets)) for sample in read_set(cfg, k, split)]
    return samples * (cfg.data.replicas if split == "train" else 1)


def train_sampler(cfg, samples: list[Sample], rt: Runtime) -> TrainSampler:
    return video_dataset.train_sampler(cfg, samples, rt)


class TrainSource(video_dataset.TrainVideos):
    """Copies of one random clip of a video, each augmented by itself."""

    columns = ("clip", "target")

    def __init__(self, samples: list[Sample], cfg, sampler: TrainSampler, epochs: int, skip: int):
        super().__init__(samples, cfg, sampler, epochs, skip)
        self.policy = parse_policy(self.data.rand_augment) if self.data.rand_augment else None

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        clips, targets = super().__getitem__(index)
        mix = self.mix((self.first + int(index)) // self.sampler.batch)
        targets[:, 2:] = (mix.share, *mix.box)
        return clips, targets

    def mix(self, batch: int) -> Mix:
        """How a batch of the tape is mixed: the same on all ranks."""
        data = self.data
        rng = np.random.RandomState([self.sampler.seed, 1, batch])
        return draw_mix(rng, data.crop, data.mixup, data.cutmix, data.mix_switch, data.mix_prob)

    def list_class_settings(self) -> list:
        sets = enumerate(self.data.sets)
        return [(list_file(self.cfg, index, "train"), settings) for index, settings in sets]

    def frames(self, sample: Sample, rng: np.random.RandomState) -> np.ndarray:
        data = self.data
        with reader.open_record(sample, data) as video:
            if data.sets[sample.which].sampling == "segments":
                return video.frames(sampling.segment_indices(data.frames, len(video), rng.uniform))
            span = span_of(video, data)
            start = rng.uniform() * max(len(video) - span, 0)
            return video.frames(sampling.timed_indices(start, span, data.frames, len(video)))

    def row(self, sample: Sample, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        data, each = self.data, self.data.sets[sample.which]
        frames, clips, targets = self.frames(sample, rng), [], []
        for _ in range(data.copies):
            clip, mirrored = transforms.train_clip(
                frames, data.crop, data.area, self.policy, data.erase, each.flip, rng
            )
            label = swapped(sample.label, each.swap_labels if mirrored else ())
            clips.append(clip)
            targets.append(target_row(sample.which, label, 1.0))
        return np.stack(clips), np.stack(targets)

    def blank(self) -> tuple[np.ndarray, np.ndarray]:
        copies = self.data.copies
        clips = np.zeros((copies, *one_clip(self.data)), np.uint8)
        return clips, np.stack([target_row(0, 0, 1.0)] * copies)


class EvalVideos(video_dataset.EvalVideos):
    """The clips and crops of one data set; `val`: every so many-th video, one clip, one crop."""

    def __init__(self, cfg, rt: Runtime, which: int, split: str = "test"):
        self.set = cfg.data.sets[which]
        self.clips, self.crops = self.set.clips, self.set.crops
        samples = read_set(cfg, which, split)
        if split == "val":
            self.clips = self.crops = 1
            samples = samples[:: cfg.eval.val_skip]
        super().__init__(samples, cfg, rt, (self.clips * self.crops, *one_clip(cfg.data)))

    def views(self, sample: Sample, number: int) -> np.ndarray:
        data = self.cfg.data
        with reader.open_record(sample, data) as video:
            frames, places = video.frames_once(test_numbers(video, data, self.set, self.clips))
        return cut_views(frames, places, data, self.set, self.crops)


def test_numbers(video: FrameSource, data, each, clips: int) -> np.ndarray:
    """The frames (clips, T) of a test of the data set `each`."""
    return np.stack([test_indices(video, data, each, k, clips) for k in range(clips)])


def cut_views(frames: np.ndarray, places: np.ndarray, data, each, crops: int) -> np.ndarray:
    """uint8 (V, 3, T, crop, crop): the crops of the first clip, then of the second, ...

    `places` (clips, T) says which of the frames stands where.
    """
    return test_views(frames, places, each.short_side, data.crop, crops)


def test_indices(video: FrameSource, data, each, clip: int, clips: int) -> np.ndarray:
    """The frames of one of the clips of a test."""
    length = len(video)
    if each.sampling == "segments":
        return sampling.segment_indices(data.frames, length)
    span = span_of(video, data)
    start = sampling.start_of_view(clip, clips, max(length - span, 0))
    return sampling.timed_indices(start, span, data.frames, length)


def span_of(video: FrameSource, data) -> float:
    """Source frames that a clip spans."""
    return sampling.clip_span(data.frames, data.stride, video.fps or data.fps, data.fps)


def one_clip(data) -> tuple[int, int, int, int]:
    """(3, T, crop, crop)."""
    return 3, data.frames, data.crop, data.crop


def clip_shape(data, size: int) -> tuple[int, ...]:
    """(S, 3, T, size, size): a row of a training batch."""
    return data.copies, 3, data.frames, size, size


def targets_of(cfg, labels: np.ndarray) -> np.ndarray:
    """float32 (B, S, 7) for labels (B,) of the first set, unmixed: for measuring."""
    rows = [[target_row(0, int(label), 1.0)] * cfg.data.copies for label in labels]
    return np.array(rows, np.float32)
