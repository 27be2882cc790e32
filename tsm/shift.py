"""The temporal shift: moves channels one frame along the time axis (arXiv:1811.08383).

Axes: the input is (N*T, C, H, W) for N clips of T segments. Clips do not exchange channels.

The shift, for `fold` = C / div: channels [0, fold) of a frame come from the next frame, channels
[fold, 2 fold) from the previous frame, the others stay. Outside the clip there are zeros. The
formula is `TemporalShift` in `utils/nn/kernels/plain.py`. `kernels.current()` gives that operator,
or the faster one of the device for which the network is built.
"""

from mindspore import Tensor, nn, ops

from utils.nn import kernels


def shift_past(x: Tensor, segments: int, fold: int) -> Tensor:
    """The shift of the online network: channels [0, fold) come from the previous frame.

    Input and output (N*T, C, H, W); zeros before the first frame.
    """
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
    The first convolution of `net` takes the input, so it has its number of channels.
    """

    def __init__(self, net: nn.Cell, segments: int, div: int, online: bool = False):
        super().__init__()
        self.net = net
        self.segments = segments
        self.online = online
        convs = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d))
        # `fold` must be a constant. If x.shape gave it, MindSpore 2.10 would compute wrong numbers
        # in a graph with a dynamic batch; a reshape by x.shape is correct there.
        self.fold = next(convs).in_channels // div
        self.shift = kernels.current().temporal_shift(segments, self.fold)

    def construct(self, x: Tensor) -> Tensor:
        if self.online:
            return self.net(shift_past(x, self.segments, self.fold))
        return self.net(self.shift(x))

    def stream(self, x: Tensor, previous: Tensor) -> tuple:
        """One frame of an online network: (1, C, H, W) -> the output of `net`, and a cache.

        `previous` (1, fold, H, W) is the cache of the frame before it, zeros for the first frame:
        its channels [0, fold).
        """
        cache = x[:, : self.fold]
        previous = ops.cast(previous, x.dtype)
        return self.net(ops.cat((previous, x[:, self.fold :]), axis=1)), cache


class TemporalPool(nn.Cell):
    """Halves the frames by the maximum over frames 2j-1, 2j, 2j+1, then applies `net`.

    Kernel 3, stride 2, padding 1 over time. Computed as maxima of shifted slices: every device
    supports them, and padding needs no infinity. `segments` is the number of frames before, and
    even.
    """

    def __init__(self, net: nn.Cell, segments: int):
        super().__init__()
        self.net = net
        self.segments = segments

    def construct(self, x: Tensor) -> Tensor:
        _, c, h, w = x.shape
        x = x.reshape(-1, self.segments // 2, 2, c, h, w)  # (N, T/2, even or odd, C, H, W)
        even = x[:, :, 0]
        odd = x[:, :, 1]
        previous = ops.cat((even[:, :1], odd[:, :-1]), axis=1)  # frame 0 stands for the padding
        pooled = ops.maximum(ops.maximum(even, odd), previous).reshape(-1, c, h, w)
        return self.net(pooled)  # of (N*T/2, C, H, W)
