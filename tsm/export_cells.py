"""The exported TSM: shape of a clip, output, Cells of an ONNX file in place of the network's."""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from tsm.config import Config
from tsm.online import OnlineTSM
from tsm.shift import Shift
from utils.inference.export import ExportSpec


def describe_export(cfg: Config) -> ExportSpec:
    shape = cfg.get_clip_shape(cfg.test_crop)
    return ExportSpec(shape, "scores", cells={Shift: split_convolution})


def describe_online_export(cfg: Config) -> ExportSpec:
    """One step of a network with `model.online`."""
    shape = cfg.get_clip_shape(cfg.test_crop)[1:]
    return ExportSpec(
        shape,
        "scores",
        info={"online": "true"},
        wrap=OnlineTSM,
        list_buffers=lambda net: net.initial_buffers(*shape[1:]),
    )


class SplitShift(nn.Cell):
    """A shifted 1x1 convolution as the sum of two, which copies only the shifted channels.

    Inference engines for ONNX are faster with this than with a copy of the whole input.
    """

    def __init__(self, shift: Shift):
        super().__init__()
        self.net = shift.net
        self.segments = shift.segments
        self.fold = shift.fold

    def construct(self, x: Tensor) -> Tensor:
        fold = self.fold
        zeros = ops.zeros_like(x[:1, :fold])
        from_next = ops.cat((x[1:, :fold], zeros), axis=0)
        from_previous = ops.cat((zeros, x[:-1, fold : 2 * fold]), axis=0)
        inside = ops.cast(mark_inside(x.shape[0], self.segments, fold), x.dtype)
        shifted = ops.cat((from_next, from_previous), axis=1) * inside
        weight = ops.cast(self.net.weight, x.dtype)
        moving = weight[:, : 2 * fold]
        staying = ops.cat((ops.zeros_like(moving), weight[:, 2 * fold :]), axis=1)
        return self.net.conv2d(x, staying) + self.net.conv2d(shifted, moving)


def split_convolution(shift: Shift) -> nn.Cell:
    """A SplitShift if there is a 1x1 convolution to split, else the same Cell."""
    is_pointwise = isinstance(shift.net, nn.Conv2d) and shift.net.kernel_size == (1, 1)
    return SplitShift(shift) if is_pointwise and not shift.online and shift.fold else shift


@constexpr
def mark_inside(nt: int, segments: int, fold: int) -> Tensor:
    """(N*T, 2 fold, 1, 1): 0 if the shifted channel comes from outside the clip, else 1."""
    inside = np.ones((nt // segments, segments, 2 * fold, 1, 1), np.float32)
    inside[:, -1, :fold] = inside[:, 0, fold:] = 0
    return Tensor(inside.reshape(nt, 2 * fold, 1, 1))
