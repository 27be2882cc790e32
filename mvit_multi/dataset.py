"""Video data of several data sets: annotation files -> frames -> augmentation -> MindData batches.

Training yields (clip, target): uint8 (B, S, 3, T, crop, crop) with S clips of each video, and
float32 (B, S, 7) (`build_target_row`). Evaluation, one data set at a time, yields (clips,
label, valid): uint8 (B, V, 3, T, crop, crop) with V views, int32 (B,), bool (B,). `valid` is false
for unreadable videos and for the padding of the last batch. A video is decoded once for all its
clips or views.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Union, cast

import numpy as np

from mvit_multi import sampling, transforms
from mvit_multi.config import Config, Data, DatasetSettings
from utils.data.annotation_file import AnnotationFile, Record, VideoList, read_list, swap_labels
from utils.data.loader import build_pipeline
from utils.data.mixing import NO_BOX, draw_mix
from utils.data.rows import EvalRows, Rows, Share, TrainVideoRows
from utils.evaluate.label_space import LabelSpace, list_own_names
from utils.runtime import Runtime
from utils.video.reader import Clip, Timeline
from utils.video.transforms import arrange_views, cut_crops

SPLITS = ("train", "val", "test")


def build_target_row(dataset_index: int, label: int, lam: float, box: tuple = NO_BOX) -> np.ndarray:
    """A target, float32 (7,): data set index, label, lambda, box (y0, y1, x0, x1)."""
    return np.array([dataset_index, label, lam, *box], np.float32)


def get_annotation_file(cfg: Config, dataset_index: int, split: str) -> AnnotationFile:
    data = cfg.data
    settings = cfg.data.sets[dataset_index]
    name = f"{settings.lists}/{split}.csv"
    return AnnotationFile(
        name,
        path=(data.lists or data.root) / name,
        root=data.root / settings.videos,
        source=data.source,
        num_classes=settings.num_classes,
        image_tmpl=data.image_tmpl,
        folder_fps=data.folder_fps,
        max_pixels=data.max_pixels,
    )


def list_annotation_files(cfg: Config) -> list[AnnotationFile]:
    """All annotation files of the recipe that exist; if none does, all of them."""
    count = range(len(cfg.data.sets))
    files = [get_annotation_file(cfg, k, split) for k in count for split in SPLITS]
    return [file for file in files if file.path.is_file()] or files


def read_dataset_records(
    cfg: Config, dataset_index: int, split: str, class_names: Sequence[str] = ()
) -> VideoList:
    """The samples of one split of one data set. Raises ValueError for bad lines."""
    file = get_annotation_file(cfg, dataset_index, split)._replace(class_names=class_names)
    records = read_list(file)
    return VideoList((r._replace(dataset_index=dataset_index) for r in records), records.root)


def read_records(cfg: Config, split: str, spaces: Sequence[LabelSpace] = ()) -> VideoList:
    """The samples of all data sets in order."""
    names = list_own_names(spaces, len(cfg.data.sets))
    samples = (s for k, own in enumerate(names) for s in read_dataset_records(cfg, k, split, own))
    return VideoList(samples, cfg.data.root)


class TrainVideos(TrainVideoRows):
    """Several clips of one random sequence of frames of a video, each with its own augmentation."""

    cfg: Config
    data: Data
    columns = ("clip", "target")

    def write_mix(self, target: np.ndarray, step: int, row: int) -> None:
        """Writes the mixing of the batch of a step, the same on all ranks, into a row's targets."""
        data = self.data
        rng = np.random.RandomState([self.sampler.seed, 1, step])
        mix = draw_mix(rng, size=data.crop, mixup=data.mixup, cutmix=data.cutmix)
        target[:, 2:] = (mix.lam, *mix.box)

    def list_shares(self, targets: np.ndarray) -> list[list[Share]]:
        rows = targets.reshape(-1, targets.shape[-1])
        return [
            [(int(a[0]), int(a[1]), a[2]), (int(b[0]), int(b[1]), 1 - a[2])]
            for a, b in zip(rows, rows[::-1])  # as `MixClips` mixes them
        ]

    def choose_frames(
        self, video: Timeline, sample: Record, rng: np.random.RandomState
    ) -> np.ndarray:
        data = self.data
        length = len(video)
        if data.sets[sample.dataset_index].sampling == "segments":
            return sampling.sample_by_segments(data.frames, length, rng.uniform)
        span = sampling.compute_clip_span(data.frames, data.stride, video.fps or data.fps, data.fps)
        start = rng.uniform() * max(length - span, 0)
        return sampling.sample_by_time(start, span=span, frames=data.frames, length=length)

    def make_row(self, sample: Record, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        settings = self.data.sets[sample.dataset_index]
        with self.open_video(sample) as video:
            frames = Clip(video, self.choose_frames(video, sample, rng))
            clips, mirrored = transforms.make_train_clips(
                frames, self.data, flip=settings.flip, rng=rng
            )
        swapped = [settings.swap_labels if is_mirrored else () for is_mirrored in mirrored]
        labels = [cast(int, swap_labels(sample.label, pairs)) for pairs in swapped]
        return clips, np.stack([build_target_row(sample.dataset_index, k, 1.0) for k in labels])

    def example(self) -> tuple[np.ndarray, np.ndarray]:
        clips = np.zeros((self.copies, *self.cfg.get_clip_shape(self.data.crop)), np.uint8)
        return clips, np.stack([build_target_row(0, 0, 1.0)] * self.copies)


class EvalVideos(EvalRows):
    """All views of each video of one data set.

    `split` is "test" (the views of the data set's settings) or "val" (every `eval.val_skip`-th
    video, one clip, one crop).
    """

    cfg: Config

    def __init__(
        self,
        cfg: Config,
        rt: Runtime,
        dataset_index: int,
        split: str = "test",
        class_names: Sequence[str] = (),
    ):
        self.settings = cfg.data.sets[dataset_index]
        self.clips = self.settings.clips
        self.crops = self.settings.crops
        samples = read_dataset_records(cfg, dataset_index, split, class_names)
        if split == "val":
            self.clips = self.crops = 1
            samples = VideoList(samples[:: cfg.eval.val_skip], samples.root)
        super().__init__(samples, cfg=cfg, rt=rt, clip_shape=cfg.get_clip_shape(cfg.data.crop))

    def make_views(self, record: Record, sample: int) -> np.ndarray:
        data = self.cfg.data
        with self.open_video(record) as video:
            indices = choose_test_frames(video, data=data, settings=self.settings, clips=self.clips)
            side = self.settings.short_side
            cut = partial(cut_crops, side=side, crop=data.crop, crops=self.crops)
            return arrange_views(*video.read(indices, cut))


def build_eval_rows(
    cfg: Config, rt: Runtime, spaces: Sequence[LabelSpace] = (), split: str = "test"
) -> dict[int, EvalVideos]:
    """The data sets of `eval.sets` in a test, all in validation."""
    names = (split == "test" and cfg.eval.sets) or [settings.name for settings in cfg.data.sets]
    chosen = [k for k, settings in enumerate(cfg.data.sets) if settings.name in names]
    class_names = list_own_names(spaces, len(cfg.data.sets))
    return {k: EvalVideos(cfg, rt, k, split, class_names[k]) for k in chosen}


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> Any:
    """The batches of rows in their order as MindData's `GeneratorDataset`, for `Model.train`.

    MindData queues the finished batches and feeds the device. The rows are made by our own workers
    (`data.workers`) in an order that depends on the seed only, because threads of MindData make 0.1
    to 0.2 of as many rows a second: utils/data/loader.py. One pass over the rows of a training is
    all remaining epochs of the run.
    """
    return build_pipeline(rows, cfg.data, workers)


def choose_test_frames(
    video: Timeline, data: Data, settings: DatasetSettings, clips: int
) -> np.ndarray:
    """The frame indices (clips, T) of a test, by the data set's `settings`."""
    length = len(video)
    indices = []
    for clip in range(clips):
        if settings.sampling == "segments":
            indices.append(sampling.sample_by_segments(data.frames, length))
            continue
        span = sampling.compute_clip_span(data.frames, data.stride, video.fps or data.fps, data.fps)
        start = sampling.compute_view_start(clip, clips, max(length - span, 0))
        indices.append(sampling.sample_by_time(start, span=span, frames=data.frames, length=length))
    return np.stack(indices)
