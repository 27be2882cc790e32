"""What the folder of TSM provides; utils/networks.py documents the methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from tsm.config import Config
from utils.networks import CamCells, Network

if TYPE_CHECKING:
    from mindspore import nn

    from tsm.convert import TSMNames
    from tsm.dataset import EvalVideos, TrainVideos
    from tsm.golden_case import TSMCase
    from tsm.labels import TSMLabelSpace
    from tsm.model import TSM
    from utils.data.annotation_file import AnnotationFile, Record
    from utils.data.sampler import TrainSampler
    from utils.evaluate.label_space import LabelSpace
    from utils.export.export import ExportSpec
    from utils.predict.stream import LiveScorer, Timing
    from utils.runtime import Runtime
    from utils.scoring.scorer import Scorer
    from utils.train.trainer import TrainSetup


class TSMNetwork(Network[Config]):
    """TSM on one data set of videos or frame folders."""

    name = "tsm"
    config = Config
    classifier = r"^(new_fc|base_model\.(fc|classifier))\."

    def build_model(self, **settings: Any) -> TSM:
        from tsm.model import TSM

        return TSM(**settings)

    def build_train_setup(self, cfg: Config, rt: Runtime, sampler: TrainSampler) -> TrainSetup:
        from tsm.train import build

        return build(cfg, rt, sampler)

    def list_annotation_files(self, cfg: Config) -> list[AnnotationFile]:
        from tsm.dataset import get_annotation_file

        return [get_annotation_file(cfg, split) for split in cfg.data.lists]

    def read_records(self, cfg: Config, split: str) -> list[Record]:
        from tsm.dataset import read_records

        return read_records(cfg, split)

    def build_train_rows(
        self, cfg: Config, records: list[Record], sampler: TrainSampler, epochs: int, skip: int
    ) -> TrainVideos:
        from tsm.dataset import TrainVideos

        return TrainVideos(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)

    def build_eval_rows(self, cfg: Config, rt: Runtime) -> dict[int, EvalVideos]:
        from tsm.dataset import EvalVideos

        return {0: EvalVideos(self.read_records(cfg, "test"), cfg, rt)}

    def get_input_shape(self, cfg: Config) -> tuple[int, ...]:
        from tsm.dataset import get_clip_shape

        return get_clip_shape(cfg.data, cfg.data.crop)

    def list_label_spaces(self, cfg: Config) -> list[TSMLabelSpace]:
        from tsm.labels import TSMLabelSpace

        return [TSMLabelSpace(cfg)]

    def build_live_scorer(
        self,
        cfg: Config,
        scorer: Scorer,
        heads: Sequence[LabelSpace],
        timing: Timing,
        load: Callable[[], nn.Cell],
    ) -> LiveScorer:
        if not cfg.model.online or timing.window is not None or timing.step is not None:
            return super().build_live_scorer(
                cfg, scorer=scorer, heads=heads, timing=timing, load=load
            )
        from tsm.streaming import OnlineScorer

        return OnlineScorer(cfg, timing, load)

    def describe_export(self, cfg: Config) -> ExportSpec:
        from tsm.dataset import get_clip_shape
        from tsm.export_cells import split_convolution
        from tsm.shift import Shift
        from utils.export.export import ExportSpec

        shape = get_clip_shape(cfg.data, cfg.test_crop)
        return ExportSpec(shape, "scores", cells={Shift: split_convolution})

    def get_parameter_names(self) -> TSMNames:
        from tsm.convert import TSMNames

        return TSMNames()

    def find_cam_cells(self, net: TSM) -> CamCells:
        """The last stage, whose batch are the frames of the clip."""
        from tsm.mobilenet import MobileNetV2

        trunk = net.base_model
        is_mobile = isinstance(trunk, MobileNetV2)
        layer = trunk.features if is_mobile else trunk.layer4
        scores = net.new_fc
        if scores is None:
            scores = trunk.classifier if is_mobile else trunk.fc
        return CamCells(layer, scores=[scores], arrange=np.asarray)

    def build_golden_case(self, case: dict[str, Any], depthwise_impl: str = "frames") -> TSMCase:
        from tsm.golden_case import TSMCase

        return TSMCase(case, depthwise_impl)


NETWORK = TSMNetwork()
