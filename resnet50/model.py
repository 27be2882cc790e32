"""ResNet, version 1.5: the stride of a bottleneck sits in its 3x3 convolution (arXiv:1512.03385).

Axes: (N, 3, H, W) in, logits (N, classes) out. Cells keep torchvision's names. Source:
torchvision 0.29.2, `models/resnet.py`. SE-ResNet50, here too, is that of the MindSpore zoo.

Differences from the source: uint8 images are normalised in the network; `first_width` other than
the published 64 scales all stages; `padding` other than `symmetric` is that of MindSpore's own
networks (`utils/nn/layers.py`).
"""

from collections.abc import Sequence
from typing import Union

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import TruncatedNormal, XavierUniform, initializer

from utils.nn.layers import (
    RESNETS,
    BatchNorm2d,
    CamCells,
    Dense,
    Normalize,
    NormReLU,
    PaddedNetwork,
    ResidualBlock,
    conv2d,
    max_pool2d,
)

SE_DEPTHS = (3, 4, 6, 3)
SE_WIDTHS = (64, 128, 256, 512)


class ImageNetwork(PaddedNetwork):
    """A subclass has `normalize`, `apply_stem`, four stages, and the classifier `fc`."""

    def construct(self, image: Tensor, with_features: bool = False) -> Union[Tensor, tuple]:
        """Features (N, C), which are returned too if asked for, are those after the pool."""
        x = image if image.ndim == 2 else self.compute_features(image)
        scores = self.fc(x)
        return (scores, x) if with_features else scores

    def compute_features(self, image: Tensor) -> Tensor:
        """Features (N, C), which are taken for images too."""
        x = self.apply_stem(self.normalize(image))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))

    def find_cam_cells(self) -> CamCells:
        """The last stage; an image counts as one frame."""
        return CamCells(self.layer4, scores=[self.fc], arrange=np.asarray)


class ResNet(ImageNetwork):
    """Images (N, 3, H, W), uint8 or already normalised float32, to logits (N, num_classes).

    `mean` and `std` are for pixels from 0 to 1. `fan` is the mode of the Kaiming
    initialisation: `fan_out` (torchvision) or `fan_in` (NVIDIA). `zero_last` initialises the scale
    of the last batch norm of every block to 0.
    """

    def __init__(
        self,
        num_classes: int,
        arch: str,
        mean: Sequence[float],
        std: Sequence[float],
        fan: str = "fan_out",
        zero_last: bool = False,
        first_width: int = 64,
        padding: str = "symmetric",
    ):
        super().__init__(padding)
        self.expansion, depths = RESNETS[arch]
        self.fan = fan
        self.last_gamma = "zeros" if zero_last else "ones"
        self.first_width = first_width
        self.cin = first_width
        self.normalize = Normalize(mean, std=std, channels=3, axis=1, rank=4)
        self.conv1 = conv2d(
            3, cout=first_width, kernel=7, stride=2, fan=fan, same=padding == "same"
        )
        self.bn1 = BatchNorm2d(first_width)
        self.norm_relu = NormReLU()
        self.maxpool = max_pool2d(3, 2, same=padding != "symmetric")
        self.layer1 = self.build_stage(1, depths[0])
        self.layer2 = self.build_stage(2, depths[1])
        self.layer3 = self.build_stage(3, depths[2])
        self.layer4 = self.build_stage(4, depths[3])
        self.fc = Dense(self.cin, num_classes)

    def build_stage(self, index: int, depth: int) -> nn.SequentialCell:
        """Builds layer`index`; a stage after the first halves the image in its first block."""
        width = self.first_width * 2 ** (index - 1)
        blocks = []
        for i in range(depth):
            stride = 2 if i == 0 and index > 1 else 1
            block = ResidualBlock(
                self.cin,
                width=width,
                stride=stride,
                expansion=self.expansion,
                fan=self.fan,
                last_gamma=self.last_gamma,
                same=self.padding == "same",
            )
            blocks.append(block)
            self.cin = width * self.expansion
        return nn.SequentialCell(blocks)

    def apply_stem(self, x: Tensor) -> Tensor:
        return self.maxpool(self.norm_relu(self.bn1, self.conv1(x)))


class SqueezeExcitation(nn.Cell):
    """Scales every channel by a gate from 0 to 1, computed from the means of all channels."""

    def __init__(self, channels: int):
        super().__init__()
        self.se_dense_0 = Dense(channels, channels // 4)
        self.se_dense_1 = Dense(channels // 4, channels)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        gate = self.relu(self.se_dense_0(x.mean((2, 3))))
        gate = ops.sigmoid(self.se_dense_1(gate))  # (N, C)
        return x * gate.reshape(*gate.shape, 1, 1)


class SEBottleneck(nn.Cell):
    """1x1, 3x3, [halve], 1x1, [squeeze and excite]."""

    def __init__(self, cin: int, width: int, halve: bool, excite: bool, fan: str):
        super().__init__()
        cout = 4 * width
        self.conv1 = conv2d(cin, cout=width, kernel=1, fan=fan)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = conv2d(width, cout=width, kernel=3, fan=fan)
        self.bn2 = BatchNorm2d(width)
        self.conv3 = conv2d(width, cout=cout, kernel=1, fan=fan)
        self.bn3 = BatchNorm2d(cout)
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2, pad_mode="same") if halve else None
        self.se = SqueezeExcitation(cout) if excite else None
        self.relu = nn.ReLU()
        self.downsample = None
        if cin != cout:
            self.downsample = nn.SequentialCell(
                conv2d(cin, cout=cout, kernel=1, fan=fan), BatchNorm2d(cout)
            )

    def construct(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.halve(self.relu(self.bn2(self.conv2(y))))
        y = self.bn3(self.conv3(y))
        y = y if self.se is None else self.se(y)
        return self.relu(y + (x if self.downsample is None else self.downsample(self.halve(x))))

    def halve(self, x: Tensor) -> Tensor:
        return x if self.pool is None else self.pool(x)


class SEResNet50(ImageNetwork):
    """SE-ResNet50 as the MindSpore zoo defines it (mindspore-ai/models, commit eab643f5).

    It differs from ResNet50 in four ways:
    * the stem has three 3x3 convolutions;
    * a block that halves the image does so by a 2x2 max pool, in the branch and in the shortcut;
    * only the last blocks of layer3 and layer4 have squeeze and excitation;
    * strided windows are padded as by MindSpore's `same`, with which its weights were trained.

    Cells inside a block keep the zoo's names; stages, shortcut and classifier have torchvision's
    (`convert.py` maps the zoo's names). Settings that other networks of this folder have are
    refused: they are not defined here.
    """

    def __init__(
        self,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        fan: str = "fan_out",
        first_width: int = 64,
        zero_last: bool = False,
        padding: str = "same",
    ):
        super().__init__(padding)
        if first_width != 64 or zero_last:
            raise ValueError(
                "model.first_width and model.zero_last are not defined for se_resnet50"
            )
        if padding != "same":
            raise ValueError(f"model.padding must be same for se_resnet50, not {padding}")
        self.normalize = Normalize(mean, std=std, channels=3, axis=1, rank=4)
        self.conv1_0 = conv2d(3, cout=32, kernel=3, stride=2, fan=fan, same=True)
        self.bn1_0 = BatchNorm2d(32)
        self.conv1_1 = conv2d(32, cout=32, kernel=3, fan=fan)
        self.bn1_1 = BatchNorm2d(32)
        self.conv1_2 = conv2d(32, cout=64, kernel=3, fan=fan)
        self.bn1_2 = BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = max_pool2d(3, 2, same=True)
        self.layer1 = self.build_stage(1, fan)
        self.layer2 = self.build_stage(2, fan)
        self.layer3 = self.build_stage(3, fan)
        self.layer4 = self.build_stage(4, fan)
        self.fc = Dense(4 * SE_WIDTHS[3], num_classes)

    def build_stage(self, index: int, fan: str) -> nn.SequentialCell:
        """Builds layer`index`; a stage after the first halves the image in its first block."""
        width = SE_WIDTHS[index - 1]
        depth = SE_DEPTHS[index - 1]
        blocks = []
        cin = 64 if index == 1 else 2 * width
        for i in range(depth):
            halve = i == 0 and index > 1
            excite = i == depth - 1 and index > 2
            blocks.append(SEBottleneck(cin, width=width, halve=halve, excite=excite, fan=fan))
            cin = 4 * width
        return nn.SequentialCell(blocks)

    def apply_stem(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1_0(self.conv1_0(x)))
        x = self.relu(self.bn1_1(self.conv1_1(x)))
        return self.maxpool(self.relu(self.bn1_2(self.conv1_2(x))))


def build_network(arch: str, init: str = "kaiming", **settings) -> nn.Cell:
    """The network of an architecture; ValueError for a combination that is not defined.

    `init` is `kaiming` (torchvision: convolutions Kaiming normal, dense layers uniform) or
    `xavier`: the initial weights of the MindSpore zoo (`src/util.py`, `_fc` of `src/resnet.py`).
    Convolutions: Xavier uniform. Dense layers: normal, sigma 0.01, truncated at 2 sigma; their
    biases are 0. Batch norms are not changed. The zoo's numbers are from MindSpore up to 1.3, whose
    TruncatedNormal has its bounds in sigmas; today's has absolute ones.
    """
    net = SEResNet50(**settings) if arch == "se_resnet50" else ResNet(arch=arch, **settings)
    for _, cell in net.cells_and_names() if init == "xavier" else ():
        if isinstance(cell, (nn.Conv2d, nn.Dense)):
            is_conv = isinstance(cell, nn.Conv2d)
            values = XavierUniform() if is_conv else TruncatedNormal(sigma=0.01, a=-0.02, b=0.02)
            cell.weight.set_data(initializer(values, cell.weight.shape, cell.weight.dtype))
        if isinstance(cell, nn.Dense):
            cell.bias.set_data(initializer("zeros", cell.bias.shape, cell.bias.dtype))
    return net
