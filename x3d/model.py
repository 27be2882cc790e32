"""X3D: a small 2-D network expanded along time, width and depth (arXiv:2004.04730).

Axes: the input is (N, 3, T, H, W). Training returns raw scores (N, classes). Evaluation returns
probabilities (N, classes): the softmax of every position, averaged over the positions. Cells keep
the names of PySlowFast.
Source: facebookresearch/SlowFast, commit 287ec007.

Departures from the source: uint8 clips are normalised in the network; drop-connect, which no
recipe of the source uses, is left out. `depthwise_impl: dense` is the network of the Ascend port.

Between its depthwise convolutions the network merges time and height, (N, C, T*H, W): all other
operators are 2-D, and no data is copied. With `keep_time` it merges nothing and all convolutions
are 3-D: the form for engines that run ONNX, which copy the data when axes are merged.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import initializer

from utils.nn import kernels
from utils.nn.conv3d import (
    Conv3d,
    DepthwiseConv3d,
    FrameConv,
    PointwiseConv3d,
    merge_time_height,
    split_time_height,
)
from utils.nn.dropout import Dropout
from utils.nn.layers import BatchNorm2d, Normalize, ReLU, SiLU, dense

MEAN = (0.45,) * 3
STD = (0.225,) * 3
WIDTH_FACTOR = 2.0
BOTTLENECK = 2.25
FIRST_WIDTH = 12
HEAD_WIDTH = 2048
BLOCKS = (1, 2, 5, 3)  # blocks of stages s2 to s5, before the depth factor
SQUEEZE = 0.0625  # width of squeeze and excitation


def round_width(width: float, factor: float, minimum: int = 1, divisor: int = 1) -> int:
    """Rounds width * factor to a multiple of `divisor`, at most a tenth below it."""
    exact = width * factor
    rounded = max(minimum, int(exact + divisor / 2) // divisor * divisor)
    return int(rounded + divisor if rounded < 0.9 * exact else rounded)


def round_repeats(count: int, factor: float) -> int:
    return math.ceil(factor * count)


def compute_stage_widths() -> list[int]:
    """Output channels of s2 to s5."""
    widths = [FIRST_WIDTH]
    for _ in range(3):
        widths.append(round_width(widths[-1], 2.0, 1, 8))
    return [round_width(width, WIDTH_FACTOR) for width in widths]


class Form(NamedTuple):
    """How blocks are computed: arguments of X3D."""

    depthwise_impl: str
    recompute: bool
    keep_time: bool


class SE(nn.Cell):
    """Squeeze and excitation: multiplies channels by gates computed from all channel means."""

    def __init__(self, channels: int):
        super().__init__()
        squeezed = round_width(channels, SQUEEZE, 8, 8)
        self.fc1 = PointwiseConv3d(channels, squeezed, bias=True)
        self.fc2 = PointwiseConv3d(squeezed, channels, bias=True)
        self.relu = ReLU()
        self.channel_means = kernels.current().channel_means()
        self.scale_channels = kernels.current().scale_channels()

    def construct(self, x: Tensor) -> Tensor:
        if x.ndim == 5:
            mean = ops.ReduceMean(True)(ops.cast(x, mstype.float32), (2, 3, 4))
            return x * self.compute_gate(ops.cast(mean, x.dtype))
        return self.scale_channels(x, self.compute_gate(self.channel_means(x)))

    def compute_gate(self, mean: Tensor) -> Tensor:
        return ops.sigmoid(self.fc2(self.relu(self.fc1(mean))))


class Branch(nn.Cell):
    """1x1x1, depthwise 3x3x3, [SE], Swish, 1x1x1; input and output are (N, C, T*H, W)."""

    def __init__(self, cin: int, inner: int, cout: int, stride: int, excite: bool, form: Form):
        super().__init__()
        self.keep_time = form.keep_time
        self.a = build_pointwise_conv(cin, inner, 1, form)
        self.a_bn = BatchNorm2d(inner)
        self.b = build_depthwise_conv(inner, (3, 3, 3), stride, form.depthwise_impl)
        self.b_bn = BatchNorm2d(inner)
        self.se = SE(inner) if excite else None
        self.c = build_pointwise_conv(inner, cout, 1, form)
        self.c_bn = BatchNorm2d(cout, gamma="zeros")
        self.a_relu = ReLU()
        self.b_relu = SiLU()
        # Their activations are a third of a block's memory and cheap to recompute.
        for cell in (self.se, self.b_relu):
            if cell is not None and form.recompute:
                cell.recompute()

    def construct(self, x: Tensor, t: int) -> Tensor:
        x = self.a_relu(self.a_bn(self.a(x)))
        x = self.b(x if self.keep_time else split_time_height(x, t))
        x = self.b_bn(x if self.keep_time else merge_time_height(x))
        x = self.b_relu(x if self.se is None else self.se(x))
        return self.c_bn(self.c(x))


class Block(nn.Cell):
    """A residual block; input and output are (N, C, T*H, W)."""

    def __init__(self, cin: int, cout: int, stride: int, excite: bool, form: Form):
        super().__init__()
        self.branch1 = self.branch1_bn = None
        if cin != cout or stride != 1:
            self.branch1 = build_pointwise_conv(cin, cout, stride, form)
            self.branch1_bn = BatchNorm2d(cout)
        inner = int(BOTTLENECK * cout)
        self.branch2 = Branch(cin, inner, cout, stride, excite, form)
        self.relu = ReLU()

    def construct(self, x: Tensor, t: int) -> Tensor:
        shortcut = x
        if self.branch1 is not None:
            shortcut = self.branch1_bn(self.branch1(x, t))
        return self.relu(shortcut + self.branch2(x, t))


class Stage(nn.SequentialCell):
    """Blocks, one after the other; input and output are (N, C, T*H, W)."""

    def construct(self, x: Tensor, t: int) -> Tensor:
        for block in self.cell_list:
            x = block(x, t)
        return x


def build_pointwise_conv(cin: int, cout: int, stride: int, form: Form) -> nn.Cell:
    """A 1x1x1 convolution, called with the clips and their number of frames."""
    if form.keep_time:
        return Conv3d(cin, cout, (1, 1, 1), stride)
    return PointwiseConv3d(cin, cout, stride=stride)


def build_depthwise_conv(channels: int, kernel: tuple, stride: int, impl: str) -> nn.Cell:
    """A depthwise convolution; with `impl` dense the full convolution of the Ascend port."""
    if impl == "dense":
        return Conv3d(channels, channels, kernel, stride)
    return DepthwiseConv3d(channels, kernel, stride, impl)


class Stem(nn.Cell):
    """A spatial 3x3, then a depthwise temporal 5x1x1; (N, 3, T, H, W) to (N, C, T*H, W)."""

    def __init__(self, width: int, impl: str, keep_time: bool):
        super().__init__()
        self.keep_time = keep_time
        self.conv_xy = Conv3d(3, width, (1, 3, 3), 2) if keep_time else FrameConv(3, width, 3, 2)
        self.conv = build_depthwise_conv(width, (5, 1, 1), 1, impl)
        self.bn = BatchNorm2d(width)
        self.relu = ReLU()

    def construct(self, x: Tensor) -> Tensor:
        x = self.conv(self.conv_xy(x))
        return self.relu(self.bn(x if self.keep_time else merge_time_height(x)))


class Head(nn.Cell):
    """Average-pools windows of the size of a training clip, stride 1; classifies every position."""

    def __init__(
        self, cin: int, inner: int, num_classes: int, window: tuple, dropout: float, form: Form
    ):
        """`window` is (frames, height, width) of a training clip's feature map."""
        super().__init__()
        self.keep_time = form.keep_time
        self.conv_5 = build_pointwise_conv(cin, inner, 1, form)
        self.conv_5_bn = BatchNorm2d(inner)
        self.conv_5_relu = ReLU()
        self.lin_5_relu = ReLU()
        self.lin_5 = PointwiseConv3d(inner, HEAD_WIDTH)
        self.dropout = Dropout(dropout, HEAD_WIDTH)  # a training clip has one position
        self.projection = dense(HEAD_WIDTH, num_classes, std=0.01)
        self.window = window

    def construct(self, x: Tensor, t: int) -> Tensor:
        x = self.conv_5_relu(self.conv_5_bn(self.conv_5(x)))
        x = x if self.keep_time else split_time_height(x, t)
        x = merge_time_height(average_windows(x, self.window))
        x = self.lin_5_relu(self.lin_5(x))
        n, c = x.shape[:2]
        x = self.dropout(x.reshape(n, c, -1).transpose(0, 2, 1))  # (N, positions, C)
        scores = self.projection(x)  # (N, positions, classes)
        if self.training:
            return scores.reshape(n, -1)
        return ops.softmax(scores, -1).mean(1)


def average_windows(x: Tensor, window: tuple[int, int, int]) -> Tensor:
    """Average pooling over windows (t, h, w), stride 1.

    Returns (N, C, T - t + 1, H - h + 1, W - w + 1).
    """
    if x.shape[2:] == window:
        n, c = x.shape[:2]
        return x.reshape(n * c, -1).mean(-1).reshape(n, c, 1, 1, 1)
    for axis, size in zip((2, 3, 4), window):
        count = x.shape[axis] - size + 1
        total = ops.narrow(x, axis, 0, count)
        for start in range(1, size):
            total = total + ops.narrow(x, axis, start, count)
        x = total / size
    return x


def build_stage(cin: int, cout: int, depth: int, form: Form) -> Stage:
    """Blocks `pathway0_res0`, `pathway0_res1`, ...; every second has squeeze and excitation."""
    blocks = OrderedDict()
    for i in range(depth):
        stride = 2 if i == 0 else 1
        blocks[f"pathway0_res{i}"] = Block(cin if i == 0 else cout, cout, stride, i % 2 == 0, form)
    return Stage(blocks)


class X3D(nn.Cell):
    """Clips (N, 3, T, H, W), uint8 or normalised float32; the module documents the outputs.

    `frames` and `crop` are those of training: they fix the window of the head. Clips of evaluation
    may have more frames and larger crops. `depthwise_impl` is the form of the depthwise
    convolutions: one of `utils.nn.conv3d.FORMS`, or `dense`: no groups, which is another network.
    `stem_impl` is the same for the stem. `zero_init`: the scale of the last norm of a block is
    initialised to zero, so the block starts as its shortcut. `recompute`: the backward pass
    recomputes squeeze and excitation and the Swish instead of storing their activations.
    `keep_time`: the module documents it; for evaluation, after `fuse_conv_bn`.
    """

    def __init__(
        self,
        num_classes: int,
        frames: int,
        crop: int,
        depth_factor: float = 2.2,
        dropout: float = 0.5,
        depthwise_impl: str = "grouped",
        stem_impl: str = "grouped",
        zero_init: bool = True,
        recompute: bool = True,
        keep_time: bool = False,
    ):
        super().__init__()
        widths = compute_stage_widths()
        stem = round_width(FIRST_WIDTH, WIDTH_FACTOR)
        self.normalize = Normalize(MEAN, STD, 3, axis=1, rank=5)
        form = Form(depthwise_impl, recompute, keep_time)
        stem_cell = Stem(stem, stem_impl, keep_time)
        self.s1 = nn.SequentialCell(OrderedDict(pathway0_stem=stem_cell))
        before = [stem, *widths[:-1]]
        depths = [round_repeats(count, depth_factor) for count in BLOCKS]
        stages = [build_stage(*sizes, form) for sizes in zip(before, widths, depths)]
        self.s2, self.s3, self.s4, self.s5 = stages
        side = math.ceil(crop / 32)
        inner = int(BOTTLENECK * widths[-1])
        self.head = Head(widths[-1], inner, num_classes, (frames, side, side), dropout, form)
        for _, cell in self.cells_and_names():
            if isinstance(cell, Branch) and not zero_init:
                cell.c_bn.gamma.set_data(initializer("ones", cell.c_bn.gamma.shape))

    def construct(self, clip: Tensor) -> Tensor:
        x = self.s1(self.normalize(clip))
        t = clip.shape[2]
        for stage in (self.s2, self.s3, self.s4, self.s5):
            x = stage(x, t)
        return self.head(x, t)
