"""MobileNetV2 as in the source of TSM (width 1, ReLU6), with the shift in its residual blocks.

Axes: (N*T, C, H, W). Names as in the original: `features.{i}.conv.{j}`, `classifier`.
"""

from functools import partial

from mindspore import Tensor, nn

from tsm.shift import Shift
from utils.nn.layers import BatchNorm2d, conv2d, dense

# (expansion, channels, blocks, stride of the first block)
SETTINGS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Cell):
    """Expand 1x1, depthwise 3x3, project 1x1. Shifted if it expands and adds its input."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int, wrap):
        super().__init__()
        self.residual = stride == 1 and cin == cout
        self.shifted = self.residual and expansion > 1
        hidden = cin * expansion
        layers = []
        if expansion > 1:
            expand = conv2d(cin, hidden, 1)
            expand = wrap(expand) if wrap and self.shifted else expand
            layers += [expand, BatchNorm2d(hidden), nn.ReLU6()]
        layers += [
            conv2d(hidden, cout=hidden, kernel=3, stride=stride, groups=hidden),
            BatchNorm2d(hidden),
        ]
        layers += [nn.ReLU6(), conv2d(hidden, cout, 1), BatchNorm2d(cout)]
        self.conv = nn.SequentialCell(layers)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)

    @property
    def conv1(self) -> nn.Cell:
        """The first convolution, which a shift may wrap."""
        return self.conv[0]

    def forward_after_conv1(self, x: Tensor, y: Tensor) -> Tensor:
        """The layers after the first convolution, which mapped x to y; then the residual sum."""
        for i in range(1, len(self.conv)):  # a slice would be a new cell with other parameter names
            y = self.conv[i](y)
        return x + y


class MobileNetV2(nn.Cell):
    """(N*T, channels, H, W) -> features (N*T, width); `classify` gives (N*T, num_classes)."""

    def __init__(
        self, segments: int, shift_div: int, online: bool, channels: int, num_classes: int
    ):
        super().__init__()
        shift = partial(Shift, segments=segments, div=shift_div, online=online)
        wrap = shift if shift_div else None
        stem = nn.SequentialCell(
            conv2d(channels, cout=32, kernel=3, stride=2), BatchNorm2d(32), nn.ReLU6()
        )
        cells = [stem]
        cin = 32
        for expansion, cout, repeats, stride in SETTINGS:
            for i in range(repeats):
                step = stride if i == 0 else 1
                cells.append(
                    InvertedResidual(cin, cout=cout, stride=step, expansion=expansion, wrap=wrap)
                )
                cin = cout
        cells.append(nn.SequentialCell(conv2d(cin, 1280, 1), BatchNorm2d(1280), nn.ReLU6()))
        # The original calls the trunk `features`. `width`: channels of its output.
        self.features = nn.SequentialCell(cells)
        self.width = 1280
        self.classifier = dense(1280, num_classes, std=0.001) if num_classes else None

    def construct(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))  # (N*T, 1280)

    def classify(self, x: Tensor) -> Tensor:
        """Features (N*T, 1280) to logits, if the classifier is part of the trunk."""
        return self.classifier(x)
