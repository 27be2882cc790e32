"""ResNet of torchvision with the temporal shift of TSM.

Axes: (N*T, C, H, W). Cells keep torchvision's names; a shifted convolution is `conv1.net`. Only the
residual branch is shifted, not the shortcut.
"""

from functools import partial

from mindspore import Tensor, nn

from tsm.shift import Shift, TemporalPool
from utils.nn.layers import RESNETS, BatchNorm2d, NormReLU, ResidualBlock, conv2d, dense, max_pool2d

# A non-local block follows each of these blocks (stage: indices). The paper uses ResNet-50 only.
NON_LOCAL = {2: (0, 2), 3: (0, 2, 4)}


class ResNet(nn.Cell):
    """(N*T, channels, H, W) -> features (N*T, width); `classify` gives (N*T, num_classes).

    `segments` is T before the temporal pool. `shift_place` is `blockres` (the shift is inside the
    residual branch) or `block` (the shift is in front of the whole block). `first_width` other than
    the published 64 scales all stages. `padding`: see `utils/nn/layers.py`.
    """

    def __init__(
        self,
        arch: str,
        segments: int,
        shift_div: int,
        shift_place: str,
        online: bool,
        temporal_pool: bool,
        non_local: bool,
        channels: int,
        num_classes: int,
        first_width: int,
        padding: str,
    ):
        super().__init__()
        self.expansion, depths = RESNETS[arch]
        self.depths = depths
        # `blockres` with 23 blocks or more in layer3 shifts only every second block of each stage.
        self.shift_period = 2 if depths[2] >= 23 and shift_place == "blockres" else 1
        self.shift_place = shift_place
        self.shift_div = shift_div
        self.online = online
        self.non_local = non_local
        self.first_width = first_width
        self.cin = first_width
        pooled_segments = segments // 2 if temporal_pool else segments
        self.same = padding == "same"
        self.conv1 = conv2d(channels, cout=first_width, kernel=7, stride=2, same=self.same)
        self.bn1 = BatchNorm2d(first_width)
        self.norm_relu = NormReLU()
        self.maxpool = max_pool2d(3, 2, same=padding != "symmetric")
        self.layer1 = self.build_stage(1, segments)
        self.layer2 = self.build_stage(2, pooled_segments)
        if temporal_pool:
            self.layer2 = TemporalPool(self.layer2, segments)
        self.layer3 = self.build_stage(3, pooled_segments)
        self.layer4 = self.build_stage(4, pooled_segments)
        self.width = 8 * first_width * self.expansion
        self.fc = dense(self.width, num_classes, std=0.001) if num_classes else None

    def build_stage(self, index: int, segments: int) -> nn.SequentialCell:
        """Builds layer`index`: blocks, with their shifts and non-local blocks.

        The first block of layer2 to layer4 halves height and width.
        """
        wrap = partial(Shift, segments=segments, div=self.shift_div, online=self.online)
        width = self.first_width * 2 ** (index - 1)
        blocks = []
        for i in range(self.depths[index - 1]):
            shifted = self.shift_div > 0 and i % self.shift_period == 0
            block = ResidualBlock(
                self.cin,
                width=width,
                stride=2 if i == 0 and index > 1 else 1,
                expansion=self.expansion,
                same=self.same,
                wrap=wrap if shifted and self.shift_place == "blockres" else lambda cell: cell,
            )
            if shifted and self.shift_place == "block":
                block = wrap(block)
            self.cin = width * self.expansion
            if self.non_local and i in NON_LOCAL.get(index, ()):
                from tsm.non_local import NonLocal, WithNonLocal  # here: few recipes have them

                block = WithNonLocal(block, NonLocal(self.cin), segments)
            blocks.append(block)
        return nn.SequentialCell(blocks)

    def construct(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.norm_relu(self.bn1, self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))  # (N*T, features)

    def classify(self, x: Tensor) -> Tensor:
        """Features (N*T, C) to logits, if the classifier is part of the trunk."""
        return self.fc(x)
