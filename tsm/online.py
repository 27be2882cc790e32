"""The streaming form of TSM: one frame in, scores out, the shifted channels carried by hand.

Equal to the offline network built with `online=True` frame by frame; tested.
"""

from mindspore import Tensor, nn
from mindspore import numpy as mnp

from tsm.model import TSM
from tsm.resnet import ResNet
from tsm.shift import Shift


class OnlineTSM(nn.Cell):
    """(frame (1, C, H, W), *buffers) -> (scores (1, classes), *buffers).

    `net` is a TSM built with `online=True`. `initial_buffers` gives the zeros to start with.
    """

    def __init__(self, net: TSM):
        super().__init__(auto_prefix=False)
        self.net = net
        trunk = net.base_model
        if isinstance(trunk, ResNet):
            before, after = [trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool], []
            blocks = [*trunk.layer1, *trunk.layer2, *trunk.layer3, *trunk.layer4]
        else:
            *cells, last = trunk.features
            before, blocks, after = cells[:1], cells[1:], [last]
        self.classifier = trunk.fc if isinstance(trunk, ResNet) else trunk.classifier
        # Without auto_prefix=False the lists would rename the network's parameters.
        self.before = nn.CellList(before, auto_prefix=False)
        self.blocks = nn.CellList(blocks, auto_prefix=False)
        self.after = nn.CellList(after, auto_prefix=False)
        self.streamed = tuple(is_shifted(block) for block in blocks)
        self.halvings = (
            2 if isinstance(trunk, ResNet) else 1
        )  # of the image, in front of the blocks

    def construct(self, frame: Tensor, *buffers) -> tuple:
        x, kept, used = self.net.normalize(frame.expand_dims(0))[0], (), 0
        for cell in self.before:
            x = cell(x)
        for i, block in enumerate(self.blocks):
            if self.streamed[i]:
                y, keep = block.conv1.stream(x, buffers[used])
                x, kept, used = block.rest(x, y), kept + (keep,), used + 1
            else:
                x = block(x)
        for cell in self.after:
            x = cell(x)
        x = x.mean((2, 3))
        if self.classifier is not None:
            x = self.classifier(x)
        return (self.net.head(x),) + kept

    def initial_buffers(self, height: int, width: int) -> tuple:
        """Zeros, one array per shifted block, for frames of height x width."""
        return tuple(mnp.zeros(shape) for shape in self.buffer_shapes(height, width))

    def buffer_shapes(self, height: int, width: int) -> list[tuple]:
        """(1, C // div, H, W) of each shifted block's input."""
        for _ in range(self.halvings):
            height, width = halve(height), halve(width)
        shapes = []
        for block, streamed in zip(self.blocks, self.streamed):
            if streamed:
                shapes.append((1, block.conv1.fold, height, width))
            if any(cell.stride[0] == 2 for cell in convolutions(block)):
                height, width = halve(height), halve(width)
        return shapes


def halve(size: int) -> int:
    """What a layer of stride 2 leaves of an edge."""
    return (size + 1) // 2


def is_shifted(block: nn.Cell) -> bool:
    """MobileNetV2's blocks say so themselves: not every one has a residual connection."""
    return getattr(block, "shifted", True) and isinstance(block.conv1, Shift)


def convolutions(cell: nn.Cell) -> list[nn.Conv2d]:
    return [child for _, child in cell.cells_and_names() if isinstance(child, nn.Conv2d)]
