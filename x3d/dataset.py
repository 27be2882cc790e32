"""Videos to clips: list -> frames -> crops -> MindData.

Training yields (clip, label): uint8 (N, 3, T, crop, crop) and int32 (N,). Evaluation yields
(clips, label, valid): uint8 (N, V, 3, T, crop, crop) with V views, int32 (N,), bool (N,); what
fills the last batch, and what cannot be read, is not valid. A video is opened and decoded once for
all its views.
"""

import numpy as np

from utils.bad_videos import BadVideos
from utils.lists import Record, read_list
from utils.order import Order, sample_rng, share
from utils.pipeline import generator
from utils.runtime import Runtime
from utils.video import FrameSource, VideoError, open_video
from x3d import sampling, transforms

TRIES = 100  # other videos tried in place of one that cannot be read


def read_records(cfg, split: str) -> list[Record]:
    """The lines of the train or test list, every one checked; ValueError names bad ones."""
    data = cfg.data
    path = data.root / (data.train_list if split == "train" else data.test_list)
    return read_list(path, data.root, cfg.model.num_classes, "video")[0]


def train_order(cfg, records: list[Record], rt: Runtime) -> Order:
    return Order(len(records), cfg.data.batch, rt.rank, rt.size, rt.seed)


def clip_indices(video: FrameSource, data, share_of_room: float) -> np.ndarray:
    """The frames of the clip that starts at a share of the room there is."""
    fps = video.fps or data.fps
    size = sampling.clip_size(data.frames, data.stride, fps, data.fps)
    start = sampling.start_at(share_of_room, len(video), size)
    return sampling.indices(start, size, data.frames, len(video))


class TrainSource:
    """Random-access training clips; index 0 is the first of the tape after `skip` batches."""

    def __init__(self, records: list[Record], cfg, order: Order, epochs: int, skip: int):
        self.records, self.data, self.order = records, cfg.data, order
        self.first = skip * order.batch
        self.length = epochs * order.steps_per_epoch * order.batch - self.first
        self.bad = BadVideos([record.path for record in records])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        sample, epoch = self.order.at(self.first + int(index))
        rng = sample_rng(self.order.seed, epoch, sample)
        for _ in range(TRIES):
            if not self.bad.is_bad(sample):
                try:
                    record = self.records[sample]
                    return self.clip(record, rng), np.int32(record.label)
                except VideoError as error:
                    self.bad.add(sample, str(error))
            sample = rng.randint(len(self.records))
        # Nothing is readable: the run is about to stop, for bad_limit is below 1.
        return np.zeros(clip_shape(self.data, self.data.crop), np.uint8), np.int32(0)

    def decode(self, index: int) -> np.ndarray:
        """Only the frames of a clip, for measuring: the floor under `self[index]`."""
        sample, epoch = self.order.at(self.first + int(index))
        return self.frames(self.records[sample], sample_rng(self.order.seed, epoch, sample))

    def frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        with open_video(record.path, self.data.reader) as video:
            return video.frames(clip_indices(video, self.data, rng.uniform()))

    def clip(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        frames, data = self.frames(record, rng), self.data
        return transforms.train_clip(frames, data.scales, data.crop, data.flip, rng)


class EvalVideos:
    """Random-access evaluation: all views of one video."""

    def __init__(self, records: list[Record], cfg, rt: Runtime):
        self.records, self.cfg = records, cfg
        self.mine = share(len(records), cfg.eval.batch, rt.rank, rt.size)
        self.bad = BadVideos([record.path for record in records])

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.bool_]:
        sample = self.mine[int(index)]
        if sample is not None:
            record = self.records[sample]
            try:
                return self.views(record), np.int32(record.label), np.bool_(True)
            except VideoError as error:
                self.bad.add(sample, str(error))
        count = self.cfg.eval.clips * self.cfg.eval.crops
        shape = (count, *clip_shape(self.cfg.data, self.cfg.test_crop))
        return np.zeros(shape, np.uint8), np.int32(0), np.bool_(False)

    def views(self, record: Record) -> np.ndarray:
        """(V, 3, T, crop, crop): the crops of the first clip, then of the second, ..."""
        cfg = self.cfg
        with open_video(record.path, cfg.data.reader) as video:
            shares = np.arange(cfg.eval.clips) / cfg.eval.clips
            clips = np.stack([clip_indices(video, cfg.data, share) for share in shares])
            needed, places = np.unique(clips, return_inverse=True)
            frames = video.frames(needed)
        side = cfg.test_crop if cfg.eval.crops == 3 else cfg.data.scales[0]
        places = places.reshape(clips.shape)
        return transforms.test_views(frames, places, side, cfg.test_crop, cfg.eval.crops)


def clip_shape(data, size: int) -> tuple[int, int, int, int]:
    """(3, T, size, size) of one clip."""
    return 3, data.frames, size, size


def train_dataset(clips: TrainSource):
    """(clip, label) in batches: the rest of the run's tape; None where nothing is left."""
    if len(clips) == 0:
        return None
    rows = generator(clips, ["clip", "label"], clips.data, clips.data.batch)
    return rows.batch(clips.data.batch, drop_remainder=True)


def eval_dataset(videos: EvalVideos):
    """(clips, label, valid) in batches; the last is filled up."""
    batch = videos.cfg.eval.batch
    return generator(videos, ["clips", "label", "valid"], videos.cfg.data, batch).batch(batch)


def eval_data(cfg, rt: Runtime):
    """The evaluation of the yaml's test list."""
    return eval_dataset(EvalVideos(read_records(cfg, "test"), cfg, rt))
