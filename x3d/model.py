"""X3D: a small 2-D network expanded along time, width and depth (arXiv:2004.04730).

Axes: clips and maps are (N, C, T, H, W). Training returns logits (N, classes). Evaluation
returns probabilities (N, classes): the softmax of every position, averaged over the positions; with
`multi_label` the sigmoid.
Cells keep the names of PySlowFast.
Source: facebookresearch/SlowFast, commit 287ec007.

Differences from the source: uint8 clips are normalised in the network; drop-connect, which no
recipe of the source uses, is left out. `depthwise_impl: dense` is another network, the
PyTorch port for Ascend (README.md): full convolutions in the place of depthwise ones.

A `stride` applies to height and width; time is never strided.
"""

import math
from collections import OrderedDict
from typing import Union

from mindspore import Tensor, nn, ops
from mindspore.common.initializer import initializer

from utils.nn import kernels
from utils.nn.conv3d import Conv3d, DepthwiseConv3d, FrameConv, PointwiseConv3d
from utils.nn.dropout import Dropout
from utils.nn.layers import BatchNorm3d, CamCells, Normalize, ReLU, SiLU, dense

MEAN = (0.45,) * 3  # of pixels from 0 to 1
STD = (0.225,) * 3
WIDTH_FACTOR = 2.0
STAGE_GROWTH = 2.0  # width of a stage / width of the stage before
BOTTLENECK = 2.25  # inner width / output width of a block
FIRST_WIDTH = 12  # of the stem and of s2, before the width factor
HEAD_WIDTH = 2048
BLOCKS = (1, 2, 5, 3)  # blocks of stages s2 to s5, before the depth factor
SQUEEZE = 0.0625  # squeezed width / channels, in squeeze and excitation


def round_width(width: float, factor: float, minimum: int = 1, divisor: int = 1) -> int:
    """Rounds width * factor to a multiple of `divisor`: at least `minimum`, at most 10 % below."""
    exact = width * factor
    rounded = max(minimum, int(exact + divisor / 2) // divisor * divisor)
    return int(rounded + divisor if rounded < 0.9 * exact else rounded)


class SE(nn.Cell):
    """Squeeze and excitation: multiplies channels by gates computed from all channel means.

    (N, C, T, H, W) to the same; means and gates are (N, C, 1, 1, 1).
    """

    def __init__(self, channels: int):
        super().__init__()
        squeezed = round_width(channels, factor=SQUEEZE, minimum=8, divisor=8)
        self.fc1 = PointwiseConv3d(channels, squeezed, bias=True)
        self.fc2 = PointwiseConv3d(squeezed, channels, bias=True)
        self.relu = ReLU()
        self.channel_means = kernels.current().channel_means
        self.scale_channels = kernels.current().scale_channels

    def construct(self, x: Tensor) -> Tensor:
        return self.scale_channels(x, self.compute_gate(self.channel_means(x)))

    def compute_gate(self, mean: Tensor) -> Tensor:
        return ops.sigmoid(self.fc2(self.relu(self.fc1(mean))))


class Branch(nn.Cell):
    """1x1x1, ReLU, depthwise 3x3x3, [SE], Swish, 1x1x1; a batch norm after each convolution."""

    def __init__(
        self, cin: int, inner: int, cout: int, stride: int, excite: bool, impl: str, recompute: bool
    ):
        super().__init__()
        self.a = PointwiseConv3d(cin, inner)
        self.a_bn = BatchNorm3d(inner)
        self.b = build_depthwise_conv(inner, kernel=(3, 3, 3), stride=stride, impl=impl)
        self.b_bn = BatchNorm3d(inner)
        self.se = SE(inner) if excite else None
        self.c = PointwiseConv3d(inner, cout)
        self.c_bn = BatchNorm3d(cout, gamma="zeros")
        self.a_relu = ReLU()
        self.b_relu = SiLU()  # PySlowFast's name
        # The activations of SE and Swish are a third of a block's memory and cheap to recompute.
        for cell in (self.se, self.b_relu):
            if cell is not None and recompute:
                cell.recompute()

    def construct(self, x: Tensor) -> Tensor:
        x = self.a_relu(self.a_bn(self.a(x)))
        x = self.b_bn(self.b(x))
        x = self.b_relu(x if self.se is None else self.se(x))
        return self.c_bn(self.c(x))


class Block(nn.Cell):
    """A residual block: (N, cin, T, H, W) to (N, cout, T, H / stride, W / stride)."""

    def __init__(self, cin: int, cout: int, stride: int, excite: bool, impl: str, recompute: bool):
        super().__init__()
        self.branch1 = self.branch1_bn = None
        if cin != cout or stride != 1:
            self.branch1 = PointwiseConv3d(cin, cout, stride=stride)
            self.branch1_bn = BatchNorm3d(cout)
        inner = int(BOTTLENECK * cout)
        self.branch2 = Branch(cin, inner, cout, stride, excite, impl, recompute)
        self.relu = ReLU()

    def construct(self, x: Tensor) -> Tensor:
        shortcut = x if self.branch1 is None else self.branch1_bn(self.branch1(x))
        return self.relu(shortcut + self.branch2(x))


def build_depthwise_conv(channels: int, kernel: tuple, stride: int, impl: str) -> nn.Cell:
    """A depthwise convolution; with `impl` dense the full convolution of the Ascend port."""
    if impl == "dense":
        return Conv3d(channels, cout=channels, kernel=kernel, stride=stride)
    return DepthwiseConv3d(channels, kernel=kernel, stride=stride, impl=impl)


class Stem(nn.Cell):
    """A spatial 3x3, then a depthwise temporal 5x1x1."""

    def __init__(self, width: int, impl: str):
        super().__init__()
        self.conv_xy = FrameConv(3, cout=width, kernel=3, stride=2)
        self.conv = build_depthwise_conv(width, kernel=(5, 1, 1), stride=1, impl=impl)
        self.bn = BatchNorm3d(width)
        self.relu = ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(self.conv_xy(x))))


class Head(nn.Cell):
    """Averages every window of the size of a training clip's map, and classifies each position.

    A position is one window. A training clip has one; a larger clip of an evaluation has several,
    and the result is the mean of their probabilities.
    """

    def __init__(
        self,
        cin: int,
        inner: int,
        num_classes: int,
        window: tuple,
        dropout: float,
        multi_label: bool,
    ):
        """`window` is (frames, height, width) of a training clip's feature map."""
        super().__init__()
        self.multi_label = multi_label
        self.conv_5 = PointwiseConv3d(cin, inner)
        self.conv_5_bn = BatchNorm3d(inner)
        self.conv_5_relu = ReLU()
        self.lin_5_relu = ReLU()
        self.lin_5 = PointwiseConv3d(inner, HEAD_WIDTH)
        # Only training drops, and a training clip has one position.
        self.dropout = Dropout(dropout, size=HEAD_WIDTH)
        self.projection = dense(HEAD_WIDTH, num_classes, std=0.01)
        self.window = window

    def compute_features(self, x: Tensor) -> Tensor:
        """The features (N, positions, C) of a map."""
        x = self.conv_5_relu(self.conv_5_bn(self.conv_5(x)))
        x = self.lin_5_relu(self.lin_5(average_windows(x, self.window)))
        _, c, t, h, w = x.shape
        if self.training and t * h * w > 1:
            raise ValueError("a training clip must have frames, crop and crop of this X3D")
        # Only N may be free: with a second unknown size, MindSpore 2.10 infers wrong shapes.
        return x.reshape(-1, c, t * h * w).transpose(0, 2, 1)

    def construct(self, x: Tensor) -> Tensor:
        scores = self.projection(self.dropout(x))  # (N, positions, classes)
        if self.training:
            return scores.squeeze(1)
        scores = ops.sigmoid(scores) if self.multi_label else ops.softmax(scores, -1)
        return scores.mean(1)


def average_windows(x: Tensor, window: tuple[int, int, int]) -> Tensor:
    """Average pooling over windows (t, h, w), stride 1, one axis after the other.

    Returns (N, C, T - t + 1, H - h + 1, W - w + 1). Slices and sums, because devices lack 3-D
    average pools of free sizes.
    """
    if x.shape[2:] == window:
        n, c = x.shape[:2]
        return x.reshape(n * c, -1).mean(-1).reshape(n, c, 1, 1, 1)
    for axis, size in zip((2, 3, 4), window):
        count = x.shape[axis] - size + 1
        if count < 1:
            raise ValueError("a clip must have at least frames, crop and crop of this X3D")
        total = ops.narrow(x, axis, 0, count)
        for start in range(1, size):
            total = total + ops.narrow(x, axis, start, count)
        x = total / size
    return x


def build_stage(cin: int, cout: int, depth: int, impl: str, recompute: bool) -> nn.SequentialCell:
    """Blocks `pathway0_res0`, `pathway0_res1`, ...: those with even numbers have SE.

    The first halves height and width.
    """
    blocks = OrderedDict()
    for i in range(depth):
        blocks[f"pathway0_res{i}"] = Block(
            cin=cin if i == 0 else cout,
            cout=cout,
            stride=2 if i == 0 else 1,
            excite=i % 2 == 0,
            impl=impl,
            recompute=recompute,
        )
    return nn.SequentialCell(blocks)


class X3D(nn.Cell):
    """Clips (N, 3, T, H, W), uint8 or normalised float32; the module documents the outputs.

    `frames` and `crop` of training fix the window of the head. Clips of evaluation
    may have more frames and larger crops. `depthwise_impl` is the implementation of the depthwise
    convolutions. Those of `utils/nn/conv3d.py` compute the same with the same weights, at
    different speeds; `dense` has no groups, which is another network. `stem_impl` is the same for
    the stem. `zero_init`: the scale of the last norm of a block is
    initialised to zero, so the block starts as its shortcut. `recompute`: the backward pass
    recomputes squeeze and excitation and the Swish instead of storing their activations.
    `multi_label`: the probabilities of the classes are independent.
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
        multi_label: bool = False,
    ):
        super().__init__()
        widths = [FIRST_WIDTH]
        for _ in range(3):
            widths.append(round_width(widths[-1], factor=STAGE_GROWTH, minimum=1, divisor=8))
        widths = [round_width(width, WIDTH_FACTOR) for width in widths]  # s2 to s5: 24, 48, 96, 192
        stem = round_width(FIRST_WIDTH, WIDTH_FACTOR)
        self.normalize = Normalize(MEAN, std=STD, channels=3, axis=1, rank=5)
        self.s1 = nn.SequentialCell(OrderedDict(pathway0_stem=Stem(stem, stem_impl)))
        before = [stem, *widths[:-1]]
        depths = [math.ceil(depth_factor * count) for count in BLOCKS]
        self.s2, self.s3, self.s4, self.s5 = (
            build_stage(cin, cout=cout, depth=depth, impl=depthwise_impl, recompute=recompute)
            for cin, cout, depth in zip(before, widths, depths)
        )
        side = math.ceil(crop / 32)  # the stem and four stages halve it
        inner = int(BOTTLENECK * widths[-1])
        window = (frames, side, side)
        self.head = Head(widths[-1], inner, num_classes, window, dropout, multi_label)
        if not zero_init:
            for _, cell in self.cells_and_names():
                if isinstance(cell, Branch):
                    cell.c_bn.gamma.set_data(initializer("ones", cell.c_bn.gamma.shape))

    def construct(self, clip: Tensor, with_features: bool = False) -> Union[Tensor, tuple]:
        """Features (N, C), which are returned too if asked for, are those after `lin_5_relu`.

        They are the mean over the positions: a vector of one length for crops of any size.
        """
        x = clip if clip.ndim == 3 else self.compute_features(clip)
        scores = self.head(x)
        return (scores, x.mean(1)) if with_features else scores

    def compute_features(self, clip: Tensor) -> Tensor:
        """The features of the positions, (N, positions, C), which are taken for clips too."""
        x = self.s1(self.normalize(clip))
        for stage in (self.s2, self.s3, self.s4, self.s5):
            x = stage(x)
        return self.head.compute_features(x)

    def find_cam_cells(self) -> CamCells:
        """The last maps before the head averages them."""
        return CamCells(
            self.head.conv_5_relu,
            scores=[self.head.projection],
            arrange=lambda maps: maps[0].swapaxes(0, 1),
        )
