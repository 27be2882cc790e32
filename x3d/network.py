"""What the folder of X3D provides; utils/networks.py documents the methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utils.networks import CamCells, Network
from x3d.config import Config

if TYPE_CHECKING:
    from utils.data.annotation_file import AnnotationFile, Record
    from utils.data.sampler import TrainSampler
    from utils.export.export import ExportSpec
    from utils.runtime import Runtime
    from utils.train.trainer import TrainSetup
    from x3d.convert import X3DNames
    from x3d.dataset import EvalVideos, TrainVideos
    from x3d.golden_case import X3DCase
    from x3d.labels import X3DLabelSpace
    from x3d.model import X3D


class X3DNetwork(Network[Config]):
    """X3D on one data set of videos."""

    name = "x3d"
    config = Config
    classifier = r"^head\.projection\."

    def build_model(self, **settings: Any) -> X3D:
        from x3d.model import X3D

        return X3D(**settings)

    def build_train_setup(self, cfg: Config, rt: Runtime, sampler: TrainSampler) -> TrainSetup:
        from x3d.train import build

        return build(cfg, rt, sampler)

    def list_annotation_files(self, cfg: Config) -> list[AnnotationFile]:
        from x3d.dataset import get_annotation_file

        return [get_annotation_file(cfg, split) for split in cfg.data.lists]

    def read_records(self, cfg: Config, split: str) -> list[Record]:
        from x3d.dataset import read_records

        return read_records(cfg, split)

    def build_train_rows(
        self, cfg: Config, records: list[Record], sampler: TrainSampler, epochs: int, skip: int
    ) -> TrainVideos:
        from x3d.dataset import TrainVideos

        return TrainVideos(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)

    def build_eval_rows(self, cfg: Config, rt: Runtime) -> dict[int, EvalVideos]:
        from x3d.dataset import EvalVideos

        return {0: EvalVideos(self.read_records(cfg, "test"), cfg, rt)}

    def get_input_shape(self, cfg: Config) -> tuple[int, ...]:
        from x3d.dataset import get_clip_shape

        return get_clip_shape(cfg.data, cfg.data.crop)

    def list_label_spaces(self, cfg: Config) -> list[X3DLabelSpace]:
        from x3d.labels import X3DLabelSpace

        return [X3DLabelSpace(cfg)]

    def describe_export(self, cfg: Config) -> ExportSpec:
        from utils.export.export import ExportSpec
        from x3d.dataset import get_clip_shape
        from x3d.export_cells import MeanSE
        from x3d.model import SE

        shape = get_clip_shape(cfg.data, cfg.test_crop)
        return ExportSpec(
            shape,
            output="probabilities",
            info={"labels": cfg.model.labels},  # they decide the last activation
            cells={SE: MeanSE},
        )

    def get_parameter_names(self) -> X3DNames:
        from x3d.convert import X3DNames

        return X3DNames()

    def find_cam_cells(self, net: X3D) -> CamCells:
        """The last maps before the head averages them."""
        return CamCells(
            net.head.conv_5_relu,
            scores=[net.head.projection],
            arrange=lambda maps: maps[0].swapaxes(0, 1),
        )

    def build_golden_case(self, case: dict[str, Any], depthwise_impl: str = "frames") -> X3DCase:
        from x3d.golden_case import X3DCase

        return X3DCase(case, depthwise_impl)


NETWORK = X3DNetwork()
