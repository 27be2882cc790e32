"""Videos to clips: list -> frames -> crops -> MindData.

Training yields (clip, label): uint8 (N, 3, T, crop, crop) and int32 (N,). Evaluation yields
(clips, label, valid): uint8 (N, V, 3, T, crop, crop) with V views, int32 (N,), bool (N,); what
fills the last batch, and what cannot be read, is not valid. A video is opened and decoded once for
all its views.
"""

import numpy as np

from utils.data import video_dataset
from utils.data.annotation_file import ListFile, Record, swapped
from utils.data.packed import reader
from utils.data.sampler import TrainSampler
from utils.runtime import Runtime
from utils.video.decoders import FrameSource
from utils.video.transforms import test_views
from x3d import sampling, transforms

SPLITS = ("train", "test")


def read_records(cfg, split: str) -> list[Record]:
    """The lines of the train or test list, every one checked; ValueError names bad ones."""
    return reader.read_records(list_files(cfg)[SPLITS.index(split)], cfg.data.packed)


def list_files(cfg) -> list[ListFile]:
    """The yaml's train and test list."""
    data = cfg.data
    form = (data.root, "video", cfg.model.num_classes)
    names = (data.train_list, data.test_list)
    limit = {"max_pixels": data.max_pixels}
    return [ListFile(name, data.root / name, *form, **limit) for name in names]


def train_sampler(cfg, records: list[Record], rt: Runtime) -> TrainSampler:
    return video_dataset.train_sampler(cfg, records, rt)


def clip_indices(video: FrameSource, data, share_of_room: float) -> np.ndarray:
    """The frames of the clip that starts at a share of the room there is."""
    fps = video.fps or data.fps
    size = sampling.clip_size(data.frames, data.stride, fps, data.fps)
    start = sampling.start_at(share_of_room, len(video), size)
    return sampling.indices(start, size, data.frames, len(video))


class TrainSource(video_dataset.TrainVideos):
    """One random clip of a video."""

    def list_class_settings(self) -> list:
        return [(list_files(self.cfg)[0], self.data)]

    def frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        with reader.open_record(record, self.data) as video:
            return video.frames(clip_indices(video, self.data, rng.uniform()))

    def row(self, record: Record, rng: np.random.RandomState) -> tuple[np.ndarray, np.int32]:
        frames, data = self.frames(record, rng), self.data
        clip, mirrored = transforms.train_clip(frames, data.scales, data.crop, data.flip, rng)
        return clip, np.int32(swapped(record.label, data.swap_labels if mirrored else ()))

    def blank(self) -> tuple[np.ndarray, np.int32]:
        return np.zeros(clip_shape(self.data, self.data.crop), np.uint8), np.int32(0)


class EvalVideos(video_dataset.EvalVideos):
    """The clips and crops of `cfg.eval`."""

    def __init__(self, records: list[Record], cfg, rt: Runtime):
        views = cfg.eval.clips * cfg.eval.crops
        super().__init__(records, cfg, rt, (views, *clip_shape(cfg.data, cfg.test_crop)))

    def views(self, record: Record, sample: int) -> np.ndarray:
        with reader.open_record(record, self.cfg.data) as video:
            return cut_views(*video.frames_once(test_numbers(video, self.cfg)), self.cfg)


def test_numbers(video: FrameSource, cfg) -> np.ndarray:
    """The frames (K, T) of a test's clips."""
    shares = np.arange(cfg.eval.clips) / cfg.eval.clips
    return np.stack([clip_indices(video, cfg.data, share) for share in shares])


def cut_views(frames: np.ndarray, places: np.ndarray, cfg) -> np.ndarray:
    """(V, 3, T, crop, crop): the crops of the first clip, then of the second, ...

    `places` (K, T) says which of the frames stands where.
    """
    side = cfg.test_crop if cfg.eval.crops == 3 else cfg.data.scales[0]
    return test_views(frames, places, side, cfg.test_crop, cfg.eval.crops)


def clip_shape(data, size: int) -> tuple[int, int, int, int]:
    """(3, T, size, size) of one clip."""
    return 3, data.frames, size, size


def eval_data(cfg, rt: Runtime):
    """The evaluation of the yaml's test list."""
    return EvalVideos(read_records(cfg, "test"), cfg, rt).dataset()


def one_clip(data) -> tuple[int, ...]:
    """A training sample is one clip."""
    return clip_shape(data, data.crop)


def targets_of(cfg, labels: np.ndarray) -> np.ndarray:
    """Labels are the targets."""
    return labels
