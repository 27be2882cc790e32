"""ResNet, version 1.5: the stride of a bottleneck sits in its 3x3 convolution (arXiv:1512.03385).

Axes: (N, 3, H, W) in, raw scores (N, classes) out. Cells keep torchvision's names. Source:
torchvision 0.29.2, `models/resnet.py`. SE-ResNet50 is in `se.py`.

Differences from the source: uint8 images are normalised in the network; `first_width` other than
the published 64 scales all stages; `padding` other than `symmetric` is that of MindSpore's own
networks (`utils/nn/layers.py`).
"""

from collections.abc import Sequence
from typing import Union

from mindspore import Parameter, Tensor, nn
from mindspore.common.initializer import Initializer, TruncatedNormal, XavierUniform, initializer

from resnet50.se import ImageNetwork, SEResNet50
from utils.nn.layers import (
    RESNETS,
    BatchNorm2d,
    Normalize,
    NormReLU,
    ResidualBlock,
    conv2d,
    max_pool2d,
    torch_dense,
)


class ResNet(ImageNetwork):
    """Images (N, 3, H, W), uint8 or already normalised float32, to raw scores (N, num_classes).

    `mean` and `std` are those of pixels from 0 to 1. `fan` is the mode of the Kaiming
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
        self.fc = torch_dense(self.cin, num_classes)

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


def build_network(arch: str, init: str = "kaiming", **settings) -> nn.Cell:
    """The network of an architecture; ValueError for a combination that is not defined.

    `init` is `kaiming` (torchvision: convolutions Kaiming normal, dense layers uniform) or
    `xavier`: see `initialize_as_zoo`.
    """
    net = SEResNet50(**settings) if arch == "se_resnet50" else ResNet(arch=arch, **settings)
    if init == "xavier":
        initialize_as_zoo(net)
    return net


def initialize_as_zoo(net: nn.Cell) -> None:
    """Sets the initial weights of the MindSpore zoo (`src/util.py` and `_fc` of `src/resnet.py`).

    Convolutions: Xavier uniform. Dense layers: normal, sigma 0.01, truncated at 2 sigma; their
    biases are 0. Batch norms are not changed. The zoo's numbers are from MindSpore up to 1.3, whose
    TruncatedNormal has its bounds in sigmas; today's has absolute ones.
    """
    for _, cell in net.cells_and_names():
        if isinstance(cell, nn.Conv2d):
            set_initial(cell.weight, XavierUniform())
        elif isinstance(cell, nn.Dense):
            set_initial(cell.weight, TruncatedNormal(sigma=0.01, a=-0.02, b=0.02))
            set_initial(cell.bias, "zeros")


def set_initial(parameter: Parameter, distribution: Union[Initializer, str]) -> None:
    parameter.set_data(initializer(distribution, parameter.shape, parameter.dtype))
