"""Image data of ResNet: readers -> decoder -> random view or test view -> batches.

Training yields (image, target): uint8 (N, 3, crop, crop) and labels int32 (N,), or, with mixup or
cutmix, float32 (N, 3 or 7) (`utils.data.mixing`). Evaluation yields (image, label, valid): uint8
(N, 1, 3, S, S) with S = `cfg.test_crop`, int32 (N,), bool (N,). `valid` is false for unreadable
images and for the padding of the last batch.
"""

from typing import Any, Union

import numpy as np

from resnet50.config import Config, Data
from resnet50.readers import ImageRecord, Images
from resnet50.transforms import make_test_view, make_train_view
from utils.data.loader import build_pipeline
from utils.data.rows import EvalRows, Rows, TrainRows
from utils.data.sampler import TrainSampler, build_sampler
from utils.runtime import Runtime


def build_train_sampler(cfg: Config, records: Images, rt: Runtime) -> TrainSampler:
    labels = ((0, label) for label in records.labels.tolist())
    return build_sampler(cfg, rt, len(records), labels, copies=cfg.data.repeats)


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
