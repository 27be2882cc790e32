"""The streaming form of TSM: one frame in, scores out, the shifted channels carried by hand.

Equal to the offline network built with `online=True` frame by frame; tested.
"""

from mindspore import Tensor, nn
from mindspore import numpy as mnp

from tsm.model import TSM
from tsm.shift import Shift


class OnlineTSM(nn.Cell):
    """(frame (1, C, H, W), *buffers) -> (scores (1, classes), *buffers).

    `net` is a TSM built with `online=True`. `initial_buffers` gives the zeros to start with.
    """

    def __init__(self, net: TSM):
        super().__init__(auto_prefix=False)
        self.net = net
        trunk = net.base_model
        if hasattr(trunk, "layer1"):
            self.before = nn.SequentialCell(trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool)
            stages = (trunk.layer1, trunk.layer2, trunk.layer3, trunk.layer4)
            self.blocks = nn.CellList([block for stage in stages for block in stage])
            self.last = trunk.fc
        else:
            self.before = trunk.features[0]
            self.blocks = nn.CellList(list(trunk.features[1:]))
            self.last = trunk.classifier
        self.streamed = tuple(is_shifted(block) for block in self.blocks)

    def construct(self, frame: Tensor, *buffers) -> tuple:
        x = self.net.normalize(frame.expand_dims(0))[0]
        x, kept, used = self.before(x), (), 0
        for i, block in enumerate(self.blocks):
            if self.streamed[i]:
                y, keep = block.conv1.stream(x, buffers[used])
                x, kept, used = block.rest(x, y), kept + (keep,), used + 1
            else:
                x = block(x)
        x = x.mean((2, 3))
        scores = self.net.head(x if self.last is None else self.last(x))
        return (scores,) + kept

    def initial_buffers(self, height: int, width: int) -> tuple:
        """Zeros, one array per shifted block, for frames of height x width."""
        return tuple(mnp.zeros(shape) for shape in self.buffer_shapes(height, width))

    def buffer_shapes(self, height: int, width: int) -> list:
        """(1, C // div, H, W) of each shifted block's input."""
        # The stem halves once (MobileNetV2) or twice (ResNet); a stride-2 block halves again.
        halve = lambda size: (size + 1) // 2  # noqa: E731
        times = 2 if hasattr(self.net.base_model, "layer1") else 1
        for _ in range(times):
            height, width = halve(height), halve(width)
        shapes = []
        for block, streamed in zip(self.blocks, self.streamed):
            if streamed:
                conv = block.conv1.net
                shapes.append((1, conv.in_channels // block.conv1.div, height, width))
            if any(cell.stride == (2, 2) for _, cell in convolutions(block)):
                height, width = halve(height), halve(width)
        return shapes


def is_shifted(block: nn.Cell) -> bool:
    return getattr(block, "shifted", True) and isinstance(block.conv1, Shift)


def convolutions(cell: nn.Cell) -> list:
    return [pair for pair in cell.cells_and_names() if isinstance(pair[1], nn.Conv2d)]
