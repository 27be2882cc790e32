"""The exported X3D: shape of a clip, output, Cells of an ONNX file in place of the network's."""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.inference.export import ExportSpec
from x3d.config import Config
from x3d.model import SE


def describe_export(cfg: Config) -> ExportSpec:
    return ExportSpec(
        cfg.get_clip_shape(cfg.test_crop),
        output="probabilities",
        info={"labels": cfg.model.labels},  # they decide the last activation
        cells={SE: MeanSE},
    )


class MeanSE(nn.Cell):
    """Squeeze and excitation without a Reshape, at which inference engines would copy the map."""

    def __init__(self, se: SE):
        super().__init__()
        self.se = se
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x: Tensor) -> Tensor:
        mean = self.mean(ops.cast(x, mstype.float32), (2, 3, 4))
        return x * self.se.compute_gate(ops.cast(mean, x.dtype))
