"""Video data of several data sets: annotation files -> frames -> augmentation -> MindData batches.

Training yields (clip, target): uint8 (B, S, 3, T, crop, crop) with S clips of each video, and
float32 (B, S, 7) (`build_target_row`). Evaluation, one data set at a time, yields (clips,
label, valid): uint8 (B, V, 3, T, crop, crop) with V views, int32 (B,), bool (B,). `valid` is false
for unreadable videos and for the padding of the last batch. A video is decoded once for all its
clips or views.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Union, cast

import numpy as np

from mvit_multi import sampling, transforms
from mvit_multi.config import Config, Data, DatasetSettings
from utils.data import records, videos
from utils.data.annotation_file import AnnotationFile, Record, swap_label
from utils.data.loader import prefetch_batches
from utils.data.mixing import NO_BOX, draw_mix
from utils.data.rows import Rows
from utils.evaluate.label_space import LabelSpace, list_own_names
from utils.runtime import Runtime
from utils.video.reader import Timeline
from utils.video.transforms import arrange_views, cut_crops

if TYPE_CHECKING:
    import mindspore.dataset as ds

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
) -> list[Record]:
    """The samples of one split of one data set. Raises ValueError for bad lines."""
    file = get_annotation_file(cfg, dataset_index, split)._replace(class_names=class_names)
    listed = records.read_split(cfg.data, file=file, split=split, seed=cfg.run.seed)
    return [record._replace(dataset_index=dataset_index) for record in listed]


def read_records(cfg: Config, split: str, spaces: Sequence[LabelSpace] = ()) -> list[Record]:
    """The samples of all data sets in order; in training repeated `data.dataset_repeats` times."""
    names = list_own_names(spaces, len(cfg.data.sets))
    samples = [s for k, own in enumerate(names) for s in read_dataset_records(cfg, k, split, own)]
    return samples * (cfg.data.dataset_repeats if split == "train" else 1)


class TrainVideos(videos.TrainVideos):
    """Several clips of one random sequence of frames of a video, each with its own augmentation."""

    cfg: Config
    data: Data
    columns = ("clip", "target")

    def write_mix(self, target: np.ndarray, step: int, row: int) -> None:
        """Writes the mixing of the batch of a step, the same on all ranks, into a row's targets."""
        data = self.data
        rng = np.random.RandomState([self.sampler.seed, 1, step])
        mix = draw_mix(
            rng,
            size=data.crop,
            mixup=data.mixup,
            cutmix=data.cutmix,
            switch=data.mix_switch,
            prob=data.mix_prob,
        )
        target[:, 2:] = (mix.lam, *mix.box)

    def list_flip_settings(self) -> list:
        sets = enumerate(self.data.sets)
        return [(get_annotation_file(self.cfg, k, "train"), settings) for k, settings in sets]

    def choose_frames(
        self, video: Timeline, sample: Record, rng: np.random.RandomState
    ) -> np.ndarray:
        data = self.data
        length = len(video)
        if data.sets[sample.dataset_index].sampling == "segments":
            return sampling.sample_by_segments(data.frames, length, rng.uniform)
        span = compute_span(video, data)
        start = rng.uniform() * max(length - span, 0)
        return sampling.sample_by_time(start, span=span, frames=data.frames, length=length)

    def make_row(self, sample: Record, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        settings = self.data.sets[sample.dataset_index]
        with self.open_clip(sample, rng) as frames:
            clips, mirrored = transforms.make_train_clips(
                frames, self.data, flip=settings.flip, rng=rng
            )
        swapped = [settings.swap_labels if is_mirrored else () for is_mirrored in mirrored]
        label = cast(int, sample.label)  # its lists have one label a video
        labels = [swap_label(label, pairs) for pairs in swapped]
        return clips, np.stack([build_target_row(sample.dataset_index, k, 1.0) for k in labels])

    def blank(self) -> tuple[np.ndarray, np.ndarray]:
        clips = np.zeros((self.copies, *get_input_shape(self.data)), np.uint8)
        return clips, np.stack([build_target_row(0, 0, 1.0)] * self.copies)


class EvalVideos(videos.EvalVideos):
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
            samples = samples[:: cfg.eval.val_skip]
        super().__init__(samples, cfg=cfg, rt=rt, clip_shape=get_input_shape(cfg.data))

    def make_views(self, record: Record, sample: int) -> np.ndarray:
        data = self.cfg.data
        with self.open_video(record) as video:
            indices = choose_test_frames(video, data=data, settings=self.settings, clips=self.clips)
            side = self.settings.short_side
            cut = partial(cut_crops, side=side, crop=data.crop, crops=self.crops)
            return arrange_views(*video.read(indices, cut))


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> "ds.GeneratorDataset":
    """The batches of rows in their order, as a MindData pipeline; `workers` is as `data.workers`.

    The shapes are those of the head of this file. One pass over `TrainVideos` is all remaining
    epochs of a run.
    """
    import mindspore.dataset as ds  # here: who only reads videos does not load MindSpore

    batches = prefetch_batches(rows, cfg.data, workers)
    return ds.GeneratorDataset(batches, list(rows.columns), shuffle=False)


def choose_test_frames(
    video: Timeline, data: Data, settings: DatasetSettings, clips: int
) -> np.ndarray:
    """The frame indices (clips, T) of a test; `settings` are those of the data set."""
    length = len(video)
    indices = []
    for clip in range(clips):
        if settings.sampling == "segments":
            indices.append(sampling.sample_by_segments(data.frames, length))
            continue
        span = compute_span(video, data)
        start = sampling.compute_view_start(clip, clips, max(length - span, 0))
        indices.append(sampling.sample_by_time(start, span=span, frames=data.frames, length=length))
    return np.stack(indices)


def compute_span(video: Timeline, data: Data) -> float:
    return sampling.compute_clip_span(
        data.frames, stride=data.stride, fps=video.fps or data.fps, target_fps=data.fps
    )


def get_input_shape(data: Data) -> tuple[int, int, int, int]:
    """The shape of one clip as the network reads it: (3, T, crop, crop)."""
    return 3, data.frames, data.crop, data.crop
