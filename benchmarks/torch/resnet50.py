"""ResNet in PyTorch, as torchvision defines it (0.29.2, `models/resnet.py`), with its names.

Images (N, 3, H, W), uint8 or normalised, to scores (N, classes). `first_width` scales all stages.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.torch.parts import Normalize, cross_entropy

DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
loss_of = cross_entropy


def conv(cin: int, cout: int, kernel: int, stride: int = 1, same: bool = False) -> nn.Conv2d:
    if same and stride > 1:
        return SameConv2d(cin, cout, kernel, stride, bias=False)
    return nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)


def pad_as_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """Pads (N, C, H, W) as MindSpore's `same`: the smaller half of the padding is in front."""
    pads: list[int] = []
    for size in (x.shape[3], x.shape[2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


class SameConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_as_same(x, self.kernel_size[0], self.stride[0], value=0.0))


class SameMaxPool2d(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad_as_same(x, self.kernel_size, self.stride, value=-math.inf))


class Block(nn.Module):
    """Two 3 x 3 convolutions; as a bottleneck 1 x 1, 3 x 3 and 1 x 1 with `cout` = 4 `width`."""

    def __init__(self, cin: int, width: int, cout: int, stride: int, same: bool):
        super().__init__()
        self.bottleneck = width < cout
        reduce, convolve = ((1, 1), (3, stride)) if self.bottleneck else ((3, stride), (3, 1))
        self.conv1 = conv(cin, width, *reduce, same)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, *convolve, same)
        self.bn2 = nn.BatchNorm2d(width)
        if self.bottleneck:
            self.conv3 = conv(width, cout, 1)
            self.bn3 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or cin != cout:
            self.downsample = nn.Sequential(conv(cin, cout, 1, stride), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.bottleneck:
            y = self.bn3(self.conv3(self.relu(y)))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """The trunk with its classifier `fc`; `channels` (N, channels, H, W) in.

    `padding` other than `symmetric` pads as networks of MindSpore do (`utils/nn/layers.py`).
    """

    def __init__(
        self,
        arch: str,
        num_classes: int,
        first_width: int = 64,
        channels: int = 3,
        padding: str = "symmetric",
    ):
        super().__init__()
        expansion = 1 if arch in ("resnet18", "resnet34") else 4
        same = padding == "same"
        self.conv1 = conv(channels, cout=first_width, kernel=7, stride=2, same=same)
        self.bn1 = nn.BatchNorm2d(first_width)
        self.relu = nn.ReLU(inplace=True)
        is_symmetric = padding == "symmetric"
        self.maxpool = nn.MaxPool2d(3, 2, 1) if is_symmetric else SameMaxPool2d(3, 2)
        cin = first_width
        for index, depth in enumerate(DEPTHS[arch]):
            width = first_width * 2**index
            blocks = []
            for i in range(depth):
                stride = 2 if i == 0 and index else 1
                blocks.append(Block(cin, width, expansion * width, stride, same))
                cin = expansion * width
            setattr(self, f"layer{index + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(cin, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class Classifier(ResNet):
    """ResNet with normalisation of pixels."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], **trunk):
        super().__init__(**trunk)
        self.normalize = Normalize(mean, std=std, channels=3, axes=2)

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(self.normalize(image))


def build_network(
    arch: str, fan: str = "", zero_last: bool = False, init: str = "", **settings
) -> nn.Module:
    """Takes the settings of `resnet50.model.build_network`.

    `fan`, `zero_last` and `init` have no effect: they choose initial weights.
    """
    if arch not in DEPTHS:
        raise ValueError(f"model.arch: {arch} was never published for PyTorch")
    return Classifier(arch=arch, **settings)
