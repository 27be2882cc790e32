"""The temporal shift: moves channels one frame along the time axis (arXiv:1811.08383).

Axes: the input is (N*T, C, H, W) for N clips of T segments. Clips do not exchange channels. The
shift is `TemporalShift` of `utils/nn/kernels/plain.py`, or the same operator of another back end.
"""

from mindspore import Tensor, nn, ops

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


class Shift(nn.Cell):
    """Shifts channels, then applies `net`: a convolution (`blockres`) or a whole block (`block`).

    1/div of the channels come from each neighbouring frame; with `online` from the previous only.
    """

    def __init__(self, net: nn.Cell, segments: int, div: int, online: bool = False):
        super().__init__()
        self.net = net
        self.segments = segments
        self.online = online
        convs = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d))
        # Not read from x.shape: in a graph with a dynamic batch MindSpore 2.10 then computes wrong
        # numbers.
        self.fold = next(convs).in_channels // div
        self.shift = kernels.current().temporal_shift(segments, self.fold)

    def construct(self, x: Tensor) -> Tensor:
        if self.online:
            return self.net(shift_past(x, self.segments, self.fold))
        return self.net(self.shift(x))

    def stream(self, x: Tensor, previous: Tensor) -> tuple:
        """Processes one frame (1, C, H, W); `previous` are the channels of the frame before it.

        Returns the output, and the channels to pass in with the next frame.
        """
        next_previous = x[:, : self.fold]
        return self.net(ops.cat((previous, x[:, self.fold :]), axis=1)), next_previous


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
