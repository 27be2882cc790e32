"""The exported TSM: shape of a clip, output, Cells of an ONNX file in place of the network's."""

from typing import Union

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore import numpy as mnp
from mindspore.ops import constexpr

from tsm.config import Config
from tsm.model import TSM
from tsm.resnet import ResNet
from tsm.shift import Shift
from utils.inference.export import ExportSpec
from utils.nn.amp import Float32Output


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


class OnlineTSM(nn.Cell):
    """Streaming inference: (frame (1, C, H, W), *buffers) -> (scores (1, classes), *buffers).

    The caller passes the shifted channels from one frame to the next as buffers. The scores equal
    those of the offline network with `online=True` frame by frame; a test checks that.

    `net` is a TSM built with `online=True`, of any amp level; scores and buffers are float32.
    `initial_buffers` returns the buffers of the first frame, all zero.
    """

    def __init__(self, net: Union[TSM, Float32Output]):
        super().__init__(auto_prefix=False)
        net = net.net if isinstance(net, Float32Output) else net
        self.net = net
        trunk = net.base_model
        # `stem_halvings`: layers of stride 2 before the blocks.
        if isinstance(trunk, ResNet):
            before = [trunk.conv1, trunk.bn1, trunk.norm_relu.relu, trunk.maxpool]
            after = []
            blocks = [*trunk.layer1, *trunk.layer2, *trunk.layer3, *trunk.layer4]
            self.stem_halvings = 2
        else:
            *cells, last_cell = trunk.features
            before = cells[:1]
            blocks = cells[1:]
            after = [last_cell]
            self.stem_halvings = 1
        # Without auto_prefix=False the lists would rename the network's parameters.
        self.before = nn.CellList(before, auto_prefix=False)
        self.blocks = nn.CellList(blocks, auto_prefix=False)
        self.after = nn.CellList(after, auto_prefix=False)
        # In MobileNetV2, ResNet-101 and -152 only some blocks have a shift.
        self.shifted = tuple(isinstance(block.conv1, Shift) for block in blocks)

    def construct(self, frame: Tensor, *buffers) -> tuple:
        x = self.net.prepare_frames(frame.expand_dims(0))
        new_state = ()
        index = 0
        for cell in self.before:
            x = cell(x)
        for i, block in enumerate(self.blocks):
            if self.shifted[i]:
                y, keep = block.conv1.stream(x, buffers[index])
                x = block.forward_after_conv1(x, y)
                new_state = new_state + (ops.cast(keep, mstype.float32),)
                index = index + 1
            else:
                x = block(x)
        for cell in self.after:
            x = cell(x)
        scores = ops.cast(self.net.head(x.mean((2, 3))), mstype.float32)
        return (scores,) + new_state

    def initial_buffers(self, height: int, width: int) -> tuple:
        """Zeros (1, C // div, H, W), one array per shifted block, for frames of height x width."""
        sides = [height, width]
        for _ in range(self.stem_halvings):
            sides = [(side + 1) // 2 for side in sides]
        buffers = []
        for block, shifted in zip(self.blocks, self.shifted):
            if shifted:
                buffers.append(mnp.zeros((1, block.conv1.fold, *sides)))
            convs = [cell for _, cell in block.cells_and_names() if isinstance(cell, nn.Conv2d)]
            if any(conv.stride[0] == 2 for conv in convs):
                sides = [(side + 1) // 2 for side in sides]
        return tuple(buffers)


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
