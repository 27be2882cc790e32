"""What the folder of ResNet provides; utils/networks.py documents the methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from resnet50.config import Config
from utils.networks import CamCells, Network

if TYPE_CHECKING:
    from mindspore import nn

    from resnet50.convert import ResNetNames
    from resnet50.dataset import EvalImages, TrainImages
    from resnet50.golden_case import ResNetCase
    from resnet50.labels import ImageLabelSpace
    from resnet50.readers import ImageRecord, Images
    from utils.data.sampler import TrainSampler
    from utils.evaluate.label_space import LabelSpace
    from utils.export.export import ExportSpec
    from utils.predict.stream import LiveScorer, Timing
    from utils.runtime import Runtime
    from utils.scoring.scorer import Scorer
    from utils.train.trainer import TrainSetup
    from utils.video.reader import FrameReader


class ResNetNetwork(Network[Config]):
    """ResNet on images."""

    name = "resnet50"
    config = Config
    classifier = r"^fc\."

    def build_model(self, **settings: Any) -> nn.Cell:
        from resnet50.model import build_network

        return build_network(**settings)

    def build_train_setup(self, cfg: Config, rt: Runtime, sampler: TrainSampler) -> TrainSetup:
        from resnet50.train import build

        return build(cfg, rt, sampler)

    def read_records(self, cfg: Config, split: str) -> Images:
        from resnet50.dataset import read_records

        return read_records(cfg, split)

    def build_train_sampler(self, cfg: Config, records: Images, rt: Runtime) -> TrainSampler:
        from resnet50.dataset import build_train_sampler

        return build_train_sampler(cfg, records, rt)

    def build_train_rows(
        self, cfg: Config, records: Images, sampler: TrainSampler, epochs: int, skip: int
    ) -> TrainImages:
        from resnet50.dataset import TrainImages

        return TrainImages(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)

    def build_eval_rows(self, cfg: Config, rt: Runtime) -> dict[int, EvalImages]:
        from resnet50.dataset import EvalImages

        return {0: EvalImages(self.read_records(cfg, "test"), cfg, rt)}

    def get_input_shape(self, cfg: Config) -> tuple[int, ...]:
        from resnet50.dataset import get_clip_shape

        return get_clip_shape(cfg.data, cfg.data.crop)

    def build_targets(self, cfg: Config, labels: np.ndarray) -> np.ndarray:
        from resnet50.mixup import mix_targets

        if not cfg.data.mixes:
            return super().build_targets(cfg, labels)
        return mix_targets(labels, cfg.data, np.random.RandomState(0))

    def list_label_spaces(self, cfg: Config) -> list[ImageLabelSpace]:
        from resnet50.labels import ImageLabelSpace

        return [ImageLabelSpace(cfg)]

    def open_frames(self, cfg: Config, path: str) -> FrameReader:
        from resnet50.labels import ImageFile

        return ImageFile(path)

    def open_record(self, cfg: Config, record: ImageRecord) -> FrameReader:
        from utils.video.array_frames import ArrayFrames

        return ArrayFrames(record.read(), 0.0, is_image=True)

    def build_live_scorer(
        self,
        cfg: Config,
        scorer: Scorer,
        heads: Sequence[LabelSpace],
        timing: Timing,
        load: Callable[[], nn.Cell],
    ) -> LiveScorer:
        from utils.predict.stream import ImageScorer

        return ImageScorer(scorer, heads[0], timing)

    def describe_export(self, cfg: Config) -> ExportSpec:
        from resnet50.dataset import get_clip_shape
        from utils.export.export import ExportSpec

        return ExportSpec(get_clip_shape(cfg.data, cfg.test_crop), "scores")

    def get_parameter_names(self) -> ResNetNames:
        from resnet50.convert import ResNetNames

        return ResNetNames()

    def find_cam_cells(self, net: nn.Cell) -> CamCells:
        """The last stage; an image counts as one frame."""
        return CamCells(net.layer4, scores=[net.fc], arrange=np.asarray)

    def build_golden_case(self, case: dict[str, Any], depthwise_impl: str = "frames") -> ResNetCase:
        from resnet50.golden_case import ResNetCase

        return ResNetCase(case, depthwise_impl)


NETWORK = ResNetNetwork()
