"""The temporal shift: channels that look one frame ahead and one behind (arXiv:1811.08383).

Axes: N clips of T segments arrive as (N*T, C, H, W); nothing crosses from one clip to the next.
"""

from mindspore import Tensor, nn, ops


def shift(x: Tensor, segments: int, fold: int) -> Tensor:
    """Takes `fold` channels from the next frame, and as many from the one before."""
    if fold == 0:
        return x
    nt, c, h, w = x.shape
    x = x.reshape(-1, segments, c, h, w)  # (N, T, C, H, W)
    blank = ops.zeros_like(x[:, :1, :fold])
    ahead = ops.cat((x[:, 1:, :fold], blank), axis=1)
    behind = ops.cat((blank, x[:, :-1, fold : 2 * fold]), axis=1)
    return ops.cat((ahead, behind, x[:, :, 2 * fold :]), axis=2).reshape(nt, c, h, w)


def shift_past(x: Tensor, segments: int, fold: int) -> Tensor:
    """The online form: `fold` channels from the frame before, nothing from the future."""
    if fold == 0:
        return x
    nt, c, h, w = x.shape
    x = x.reshape(-1, segments, c, h, w)  # (N, T, C, H, W)
    blank = ops.zeros_like(x[:, :1, :fold])
    behind = ops.cat((blank, x[:, :-1, :fold]), axis=1)
    return ops.cat((behind, x[:, :, fold:]), axis=2).reshape(nt, c, h, w)


class Shift(nn.Cell):
    """Shifts 1/div of the channels, then applies `net`.

    That is the convolution (`blockres`) or the whole block (`block`).
    """

    def __init__(self, net: nn.Cell, segments: int, div: int, online: bool = False):
        super().__init__()
        self.net = net
        self.segments, self.online = segments, online
        convs = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d))
        # Read from x in a graph with a free batch, MindSpore 2.10 computes wrong numbers.
        self.fold = next(convs).in_channels // div

    def construct(self, x: Tensor) -> Tensor:
        if self.online:
            return self.net(shift_past(x, self.segments, self.fold))
        return self.net(shift(x, self.segments, self.fold))

    def stream(self, x: Tensor, before: Tensor) -> tuple:
        """One frame (1, C, H, W) and the channels kept of the one before.

        Returns the output and the channels to keep for the next frame.
        """
        kept = x[:, : self.fold]
        return self.net(ops.cat((before, x[:, self.fold :]), axis=1)), kept


class TemporalPool(nn.Cell):
    """Maximum over frames 2j-1, 2j, 2j+1, then `net`: half as many frames go on."""

    def __init__(self, net: nn.Cell, segments: int):
        super().__init__()
        self.net = net
        self.segments = segments

    def construct(self, x: Tensor) -> Tensor:
        return self.net(temporal_max_pool(x, self.segments))


def temporal_max_pool(x: Tensor, segments: int) -> Tensor:
    """(N*T, C, H, W) -> (N*T/2, C, H, W): kernel 3, stride 2, padding 1 over time.

    Written with maxima of shifted views: every device has them, and padding needs no infinity.
    """
    _, c, h, w = x.shape
    x = x.reshape(-1, segments // 2, 2, c, h, w)  # (N, T/2, even or odd, C, H, W)
    even, odd = x[:, :, 0], x[:, :, 1]
    before = ops.cat((even[:, :1], odd[:, :-1]), axis=1)  # frame 0 has none: itself
    return ops.maximum(ops.maximum(even, odd), before).reshape(-1, c, h, w)
