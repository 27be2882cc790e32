"""The temporal shift: moves channels one frame along the time axis (arXiv:1811.08383).

Axes: the input is (N*T, C, H, W) for N clips of T segments. Clips do not exchange channels. The
shift is `TemporalShift` of `utils/nn/kernels/plain.py`, or the same operator of another back end.
"""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from utils.nn import kernels


def shift_past(x: Tensor, segments: int, fold: int) -> Tensor:
    """The online form: takes `fold` channels from the previous frame, none from the next."""
    if fold == 0:
        return x
    nt, c, h, w = x.shape
    x = x.reshape(-1, segments, c, h, w)  # (N, T, C, H, W)
    zeros = ops.zeros_like(x[:, :1, :fold])
    from_previous = ops.cat((zeros, x[:, :-1, :fold]), axis=1)
    return ops.cat((from_previous, x[:, :, fold:]), axis=2).reshape(nt, c, h, w)


@constexpr
def mark_inside(nt: int, segments: int, fold: int) -> Tensor:
    """(N*T, 2 fold, 1, 1): 0 if the shifted channel comes from outside the clip, else 1."""
    inside = np.ones((nt // segments, segments, 2 * fold, 1, 1), np.float32)
    inside[:, -1, :fold] = inside[:, 0, fold:] = 0
    return Tensor(inside.reshape(nt, 2 * fold, 1, 1))


def convolve_shifted(x: Tensor, conv: nn.Conv2d, segments: int, fold: int) -> Tensor:
    """conv(shift(x)) for a 1x1 convolution, as the sum of two that copies only shifted channels.

    The engines that run ONNX are faster with this than with a copy of the whole input.
    """
    zeros = ops.zeros_like(x[:1, :fold])
    from_next = ops.cat((x[1:, :fold], zeros), axis=0)
    from_previous = ops.cat((zeros, x[:-1, fold : 2 * fold]), axis=0)
    inside = ops.cast(mark_inside(x.shape[0], segments, fold), x.dtype)
    shifted = ops.cat((from_next, from_previous), axis=1) * inside
    weight = ops.cast(conv.weight, x.dtype)
    moving = weight[:, : 2 * fold]
    staying = ops.cat((ops.zeros_like(moving), weight[:, 2 * fold :]), axis=1)
    return conv.conv2d(x, staying) + conv.conv2d(shifted, moving)


class Shift(nn.Cell):
    """Shifts channels, then applies `net`: a convolution (`blockres`) or a whole block (`block`).

    1/div of the channels come from each neighbouring frame; with `online` from the previous only.
    """

    def __init__(self, net: nn.Cell, segments: int, div: int, online: bool = False):
        super().__init__()
        self.net = net
        self.segments = segments
        self.online = online
        self.splits = False
        convs = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d))
        # Not read from x.shape: in a graph with a dynamic batch MindSpore 2.10 then computes wrong
        # numbers.
        self.fold = next(convs).in_channels // div
        self.shift = kernels.current().temporal_shift(segments, self.fold)

    def split_convolution(self) -> None:
        """Computes a shifted 1x1 convolution as in convolve_shifted from now on."""
        is_pointwise = isinstance(self.net, nn.Conv2d) and self.net.kernel_size == (1, 1)
        self.splits = is_pointwise and not self.online and self.fold > 0

    def construct(self, x: Tensor) -> Tensor:
        if self.splits:
            return convolve_shifted(x, self.net, self.segments, self.fold)
        if self.online:
            return self.net(shift_past(x, self.segments, self.fold))
        return self.net(self.shift(x))

    def stream(self, x: Tensor, previous: Tensor) -> tuple:
        """Processes one frame (1, C, H, W); `previous` are the channels of the frame before it.

        Returns the output, and the channels to pass in with the next frame.
        """
        kept = x[:, : self.fold]
        return self.net(ops.cat((previous, x[:, self.fold :]), axis=1)), kept


class TemporalPool(nn.Cell):
    """Maximum over frames 2j-1, 2j, 2j+1, then `net`: halves the number of frames."""

    def __init__(self, net: nn.Cell, segments: int):
        super().__init__()
        self.net = net
        self.segments = segments

    def construct(self, x: Tensor) -> Tensor:
        return self.net(temporal_max_pool(x, self.segments))


def temporal_max_pool(x: Tensor, segments: int) -> Tensor:
    """(N*T, C, H, W) -> (N*T/2, C, H, W): kernel 3, stride 2, padding 1 over time.

    Computed as maxima of shifted slices: every device supports them, and padding needs no infinity.
    """
    _, c, h, w = x.shape
    x = x.reshape(-1, segments // 2, 2, c, h, w)  # (N, T/2, even or odd, C, H, W)
    even = x[:, :, 0]
    odd = x[:, :, 1]
    previous = ops.cat((even[:, :1], odd[:, :-1]), axis=1)  # frame 0 stands for the padding
    return ops.maximum(ops.maximum(even, odd), previous).reshape(-1, c, h, w)
