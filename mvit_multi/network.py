"""What the folder of the multi-dataset MViTv2 provides; utils/networks.py documents the methods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mvit_multi.config import Config
from utils.networks import CamCells, Network

if TYPE_CHECKING:
    from mvit_multi.convert import MViTNames
    from mvit_multi.dataset import EvalVideos, Sample, TrainVideos
    from mvit_multi.golden_case import MViTCase
    from mvit_multi.labels import DatasetLabelSpace
    from mvit_multi.model import MViT
    from utils.data.annotation_file import AnnotationFile
    from utils.data.sampler import TrainSampler
    from utils.export.export import ExportSpec
    from utils.runtime import Runtime
    from utils.train.trainer import TrainSetup


class MViTNetwork(Network[Config]):
    """MViTv2 on several data sets of videos at once."""

    name = "mvit_multi"
    config = Config
    classifier = r"^(head|expander)\."  # heads and expander of the data sets

    def build_model(self, **settings: Any) -> MViT:
        from mvit_multi.model import MViT

        return MViT(**settings)

    def build_train_setup(self, cfg: Config, rt: Runtime, sampler: TrainSampler) -> TrainSetup:
        from mvit_multi.train import build

        return build(cfg, rt, sampler)

    def list_annotation_files(self, cfg: Config) -> list[AnnotationFile]:
        from mvit_multi.dataset import list_annotation_files

        return list_annotation_files(cfg)

    def read_records(self, cfg: Config, split: str) -> list[Sample]:
        from mvit_multi.dataset import read_records

        return read_records(cfg, split)

    def build_train_rows(
        self, cfg: Config, records: list[Sample], sampler: TrainSampler, epochs: int, skip: int
    ) -> TrainVideos:
        from mvit_multi.dataset import TrainVideos

        return TrainVideos(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)

    def build_eval_rows(self, cfg: Config, rt: Runtime) -> dict[int, EvalVideos]:
        from mvit_multi.evaluation import build_eval_videos

        return build_eval_videos(cfg, rt)

    def get_input_shape(self, cfg: Config) -> tuple[int, ...]:
        from mvit_multi.dataset import get_input_shape

        return get_input_shape(cfg.data)

    def get_sample_shape(self, cfg: Config) -> tuple[int, ...]:
        return cfg.data.repeated_aug, *self.get_input_shape(cfg)

    def build_targets(self, cfg: Config, labels: np.ndarray) -> np.ndarray:
        """Targets float32 (N, S, 7) of clips of the first data set."""
        from mvit_multi.dataset import build_target_row

        rows = [[build_target_row(0, int(k), 1.0)] * cfg.data.repeated_aug for k in labels]
        return np.array(rows, np.float32)

    def list_label_spaces(self, cfg: Config) -> list[DatasetLabelSpace]:
        from mvit_multi.labels import DatasetLabelSpace

        return [DatasetLabelSpace(cfg, index) for index in range(len(cfg.data.sets))]

    def describe_export(self, cfg: Config) -> ExportSpec:
        from mvit_multi.model import ConcatHeads
        from utils.export.export import ExportSpec, describe_columns

        return ExportSpec(
            self.get_input_shape(cfg),
            output="probabilities",
            info={"columns": describe_columns(cfg.data.sets)},
            wrap=ConcatHeads,
        )

    def get_parameter_names(self) -> MViTNames:
        from mvit_multi.convert import MViTNames

        return MViTNames()

    def find_cam_cells(self, net: MViT) -> CamCells:
        """What the last block's attention reads; after it, one token may be all that counts."""
        from mvit_multi.heads import list_classifiers
        from mvit_multi.labels import arrange_tokens

        block = net.blocks[-1]
        arrange = partial(arrange_tokens, grid=block.grid)
        return CamCells(block.norm1, scores=list_classifiers(net.head), arrange=arrange)

    def build_golden_case(self, case: dict[str, Any], depthwise_impl: str = "frames") -> MViTCase:
        from mvit_multi.golden_case import MViTCase

        return MViTCase(case, depthwise_impl)


NETWORK = MViTNetwork()
