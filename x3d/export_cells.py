"""The Cells that an ONNX file of X3D has in place of those of the network."""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from x3d.model import SE


class MeanSE(nn.Cell):
    """Squeeze and excitation without a Reshape, at which inference engines would copy the map."""

    def __init__(self, se: SE):
        super().__init__()
        self.se = se
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x: Tensor) -> Tensor:
        mean = self.mean(ops.cast(x, mstype.float32), (2, 3, 4))
        return x * self.se.compute_gate(ops.cast(mean, x.dtype))
