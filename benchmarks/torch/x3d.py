"""X3D in PyTorch, as PySlowFast defines it (facebookresearch/SlowFast, 287ec007).

Clips (N, 3, T, H, W), uint8 or normalised, to scores (N, classes); in evaluation probabilities,
the mean over positions. A Sequential applies its attributes in their order.
"""

import math

from torch import Tensor, nn

from benchmarks.torch.parts import Normalize, cross_entropy

WIDTHS = (24, 48, 96, 192)
BLOCKS = (1, 2, 5, 3)
INNER = (54, 108, 216, 432)
SQUEEZED = (8, 8, 16, 32)
loss_of = cross_entropy


class SE(nn.Sequential):
    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool3d(1)
        self.fc1 = nn.Conv3d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv3d(squeezed, channels, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * super().forward(x)


class Branch(nn.Sequential):
    def __init__(self, cin: int, inner: int, cout: int, stride: int, squeezed: int, dense: bool):
        super().__init__()
        self.a = nn.Conv3d(cin, inner, 1, bias=False)
        self.a_bn = nn.BatchNorm3d(inner)
        self.a_relu = nn.ReLU(inplace=True)
        self.b = depthwise_conv(inner, kernel=3, stride=(1, stride, stride), padding=1, dense=dense)
        self.b_bn = nn.BatchNorm3d(inner)
        self.se = SE(inner, squeezed) if squeezed else nn.Identity()
        self.b_relu = nn.SiLU()
        self.c = nn.Conv3d(inner, cout, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(cout)


def depthwise_conv(channels: int, kernel, stride, padding, dense: bool) -> nn.Conv3d:
    """A kernel for each channel; with `dense`, as in the Ascend port, for each pair of channels."""
    groups = 1 if dense else channels
    return nn.Conv3d(channels, channels, kernel, stride, padding, groups=groups, bias=False)


class Block(nn.Module):
    def __init__(self, cin: int, inner: int, cout: int, stride: int, squeezed: int, dense: bool):
        super().__init__()
        self.branch1 = None
        if cin != cout or stride != 1:
            self.branch1 = nn.Conv3d(cin, cout, 1, (1, stride, stride), bias=False)
            self.branch1_bn = nn.BatchNorm3d(cout)
        self.branch2 = Branch(cin, inner, cout, stride, squeezed, dense)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.branch1 is None else self.branch1_bn(self.branch1(x))
        return self.relu(short + self.branch2(x))


class Stem(nn.Sequential):
    def __init__(self, dense: bool):
        super().__init__()
        self.conv_xy = nn.Conv3d(3, 24, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
        self.conv = depthwise_conv(24, kernel=(5, 1, 1), stride=1, padding=(2, 0, 0), dense=dense)
        self.bn = nn.BatchNorm3d(24)
        self.relu = nn.ReLU(inplace=True)


class Head(nn.Module):
    def __init__(self, num_classes: int, window: tuple, dropout: float, multi_label: bool):
        super().__init__()
        self.multi_label = multi_label
        self.conv_5 = nn.Conv3d(192, 432, 1, bias=False)
        self.conv_5_bn = nn.BatchNorm3d(432)
        self.conv_5_relu = nn.ReLU(inplace=True)
        self.avg_pool = nn.AvgPool3d(window, stride=1)
        self.lin_5 = nn.Conv3d(432, 2048, 1, bias=False)
        self.lin_5_relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(2048, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_5_relu(self.conv_5_bn(self.conv_5(x)))
        x = self.lin_5_relu(self.lin_5(self.avg_pool(x)))
        scores = self.projection(self.dropout(x.permute(0, 2, 3, 4, 1)))
        if self.training:
            return scores.flatten(1)
        probabilities = scores.sigmoid() if self.multi_label else scores.softmax(-1)
        return probabilities.mean((1, 2, 3))


class X3D(nn.Module):
    """Takes the settings of `x3d.model.X3D`; implementations other than `dense` are equal.

    `recompute` has no effect: the PyTorch reference keeps all activations.
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
        self.normalize = Normalize((0.45,) * 3, std=(0.225,) * 3, channels=3, axes=3)
        self.s1 = nn.Sequential()
        self.s1.add_module("pathway0_stem", Stem(stem_impl == "dense"))
        cin = 24
        for k, cout in enumerate(WIDTHS):
            stage = nn.Sequential()
            for i in range(math.ceil(depth_factor * BLOCKS[k])):
                squeezed = 0 if i % 2 else SQUEEZED[k]
                stride = 1 if i else 2
                block = Block(cin, INNER[k], cout, stride, squeezed, depthwise_impl == "dense")
                stage.add_module(f"pathway0_res{i}", block)
                cin = cout
            setattr(self, f"s{k + 2}", stage)
        side = math.ceil(crop / 32)
        self.head = Head(num_classes, (frames, side, side), dropout, multi_label)

    def forward(self, clip: Tensor) -> Tensor:
        x = self.s1(self.normalize(clip))
        return self.head(self.s5(self.s4(self.s3(self.s2(x)))))


build_network = X3D
