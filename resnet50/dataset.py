"""Image data of ResNet: readers -> decoder -> random view or test view -> batches.

Training yields (image, target): uint8 (N, 3, crop, crop) and labels int32 (N,), or, with mixup or
cutmix, float32 (N, 3 or 7) (`utils.data.mixing`). Evaluation yields (image, label, valid): uint8
(N, 1, 3, S, S) with S = `cfg.test_crop`, int32 (N,), bool (N,). `valid` is false for unreadable
images and for the padding of the last batch.
"""

from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from resnet50.config import Config, Data
from resnet50.readers import ImageRecord, Images
from resnet50.transforms import make_test_view, make_train_view
from utils.data.loader import build_pipeline
from utils.data.rows import EvalRows, Rows, TrainRows
from utils.data.sampler import TrainSampler, list_order
from utils.runtime import Runtime


def build_train_sampler(cfg: Config, records: Images, rt: Runtime) -> TrainSampler:
    order = list_order(cfg, rt, ((0, label) for label in records.labels.tolist()))
    if cfg.data.repeats == 1:
        return TrainSampler(len(records), **order)
    return RepeatingSampler(len(records), **order, copies=cfg.data.repeats)


@dataclass
class RepeatingSampler(TrainSampler):
    """Repeated augmentation (arXiv:1902.05509) as torchvision's `RASampler`.

    An epoch has as many samples as without it: `copies` of each of the first images of its
    permutation. The copies are neighbours in the order in which the ranks take samples in turns. So
    on enough ranks they are in the same step, each on another rank.
    """

    copies: int = 1

    def draw(self, epoch: int) -> np.ndarray:
        repeated = np.repeat(super().draw(epoch), self.copies)[: self.samples_per_epoch]
        return repeated.reshape(-1, self.batch, self.size).transpose(0, 2, 1).reshape(-1)

    def copy_at(self, position: int) -> int:
        taken = position % (self.steps_per_epoch * self.batch)  # by this rank in this epoch
        return (taken * self.size + self.rank) % self.copies


class TrainImages(TrainRows):
    """A random view of an image."""

    cfg: Config
    data: Data
    columns = ("image", "target")
    kind = "image"

    def make_row(self, record: ImageRecord, rng: np.random.RandomState) -> tuple:
        view = make_train_view(record.read(), self.data, rng)
        return view, self.make_target(record.label)


class EvalImages(EvalRows):
    """The test view of every image, in all splits."""

    cfg: Config
    kind = "image"

    def __init__(self, records: Images, cfg: Config, rt: Runtime, split: str = "test"):
        clip_shape = cfg.get_clip_shape(cfg.test_crop)
        super().__init__(records, cfg=cfg, rt=rt, clip_shape=clip_shape)

    def make_views(self, record: ImageRecord, sample: int) -> np.ndarray:
        return make_test_view(record.read(), self.cfg.data.resize, self.cfg.test_crop)[None]


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> Any:
    """The batches of rows in their order as MindData's `GeneratorDataset`, for `Model.train`.

    MindData queues the finished batches and feeds the device. The rows are made by our own workers
    (`data.workers`) in an order that depends on the seed only, because threads of MindData make 0.1
    to 0.2 of as many images a second: utils/data/loader.py. One pass over the rows of a training is
    all remaining epochs of the run.
    """
    return build_pipeline(rows, cfg.data, workers)
