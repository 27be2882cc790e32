"""Streaming inference of TSM: one frame in, scores out.

The caller passes the shifted channels from one frame to the next as buffers. The scores equal those
of the offline network with `online=True` frame by frame; a test checks that.
"""

from typing import Union

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore import numpy as mnp

from tsm.model import TSM
from tsm.resnet import ResNet
from tsm.shift import Shift
from utils.nn.amp import Float32Output


class OnlineTSM(nn.Cell):
    """(frame (1, C, H, W), *buffers) -> (scores (1, classes), *buffers).

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
