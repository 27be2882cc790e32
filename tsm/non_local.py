"""The non-local block: embedded Gaussian attention over all positions of all frames.

Axes: (N, C, T, H, W). Names as in the original: `g.0`, `theta`, `phi.0`, `W.0`, `W.1`.
"""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn import kernels
from utils.nn.conv3d import PointwiseConv3d
from utils.nn.layers import BatchNorm3d


class NonLocal(nn.Cell):
    """x + W(softmax(theta^T phi) g); W ends in a batch norm whose scale
    is initialised to zero, so the block starts as the identity.
    """

    def __init__(self, channels: int):
        super().__init__()
        inter = channels // 2
        # In the order of the original: AllReduce splits count parameters in this order.
        self.g = nn.SequentialCell(PointwiseConv3d(channels, inter, bias=True), SpatialMaxPool())
        self.W = nn.SequentialCell(
            PointwiseConv3d(inter, channels, bias=True), BatchNorm3d(channels, "zeros")
        )
        self.theta = PointwiseConv3d(channels, inter, bias=True)
        self.phi = nn.SequentialCell(PointwiseConv3d(channels, inter, bias=True), SpatialMaxPool())
        self.score = kernels.current().matmul()
        self.blend = kernels.current().matmul(transpose=True)

    def construct(self, x: Tensor) -> Tensor:
        n, _, t, h, w = x.shape
        theta = flatten(self.theta(x)).swapaxes(1, 2)  # (N, T*H*W, C/2)
        # (N, C/2, T*H*W/4)
        phi = flatten(self.phi(x))
        g = flatten(self.g(x))
        # (N, queries, keys) in float32: the products are not scaled and too large for float16.
        f = self.score(ops.cast(theta, mstype.float32), ops.cast(phi, mstype.float32))
        f = ops.cast(ops.softmax(f, axis=-1), g.dtype)
        y = self.blend(f, g).swapaxes(1, 2)
        return x + self.W(y.reshape(n, -1, t, h, w))


class SpatialMaxPool(nn.Cell):
    """Max pooling 2x2 of each frame; an odd last row or column is dropped."""

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = x[:, :, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, t, h // 2, 2, w // 2, 2)
        return ops.maximum(
            ops.maximum(x[:, :, :, :, 0, :, 0], x[:, :, :, :, 0, :, 1]),
            ops.maximum(x[:, :, :, :, 1, :, 0], x[:, :, :, :, 1, :, 1]),
        )


def flatten(x: Tensor) -> Tensor:
    """(N, C, T, H, W) -> (N, C, T*H*W)."""
    return x.reshape(x.shape[0], x.shape[1], -1)


class WithNonLocal(nn.Cell):
    """A residual block over frames (N*T, C, H, W), then the non-local block over the clip."""

    def __init__(self, block: nn.Cell, non_local: NonLocal, segments: int):
        super().__init__()
        self.block = block
        self.nl = non_local
        self.segments = segments

    def construct(self, x: Tensor) -> Tensor:
        x = self.block(x)
        nt, c, h, w = x.shape
        x = x.reshape(-1, self.segments, c, h, w).swapaxes(1, 2)  # (N, C, T, H, W)
        return self.nl(x).swapaxes(1, 2).reshape(nt, c, h, w)
