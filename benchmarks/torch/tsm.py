"""TSM in PyTorch, as its authors define it (mit-han-lab/temporal-shift-module, 1f6a834b).

Clips (N, T, C, H, W), uint8 or normalised, to scores (N, classes). As in the source, a ResNet or
MobileNetV2 is built first; shift, temporal pool and non-local blocks then wrap some of its parts.
"""

from functools import partial
from typing import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.torch.parts import Normalize, cross_entropy
from benchmarks.torch.resnet50 import DEPTHS, ResNet

loss_of = cross_entropy
# {modality: channels of a frame, mean, standard deviation}
FRAMES = {
    "rgb": (3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "rgb_diff": (3, (0.0,), (1.0,)),
    "flow": (2, (0.5,), (0.226,)),
}


class Shift(nn.Module):
    """1/div of the channels from the next frame, 1/div from the previous frame; then `net`."""

    def __init__(self, net: nn.Module, segments: int, div: int, online: bool):
        super().__init__()
        self.net = net
        self.segments = segments
        self.div = div
        self.online = online

    def forward(self, x: Tensor) -> Tensor:
        frames = x.view(-1, self.segments, *x.shape[1:])
        fold = x.shape[1] // self.div
        out = torch.zeros_like(frames)
        if self.online:
            out[:, 1:, :fold] = frames[:, :-1, :fold]
            out[:, :, fold:] = frames[:, :, fold:]
        else:
            out[:, :-1, :fold] = frames[:, 1:, :fold]
            out[:, 1:, fold : 2 * fold] = frames[:, :-1, fold : 2 * fold]
            out[:, :, 2 * fold :] = frames[:, :, 2 * fold :]
        return self.net(out.view(x.shape))


class TemporalPool(nn.Module):
    """A max pool over three frames with stride two, then `net`."""

    def __init__(self, net: nn.Module, segments: int):
        super().__init__()
        self.net = net
        self.segments = segments

    def forward(self, x: Tensor) -> Tensor:
        frames = x.view(-1, self.segments, *x.shape[1:]).transpose(1, 2)
        frames = F.max_pool3d(frames, (3, 1, 1), (2, 1, 1), (1, 0, 0))
        return self.net(frames.transpose(1, 2).contiguous().view(-1, *x.shape[1:]))


class NonLocal(nn.Module):
    """Attention over all positions of a clip (N, C, T, H, W)."""

    def __init__(self, channels: int):
        super().__init__()
        inner = channels // 2
        # In the order of the original.
        self.g = nn.Sequential(nn.Conv3d(channels, inner, 1), nn.MaxPool3d((1, 2, 2)))
        self.W = nn.Sequential(nn.Conv3d(inner, channels, 1), nn.BatchNorm3d(channels))
        self.theta = nn.Conv3d(channels, inner, 1)
        self.phi = nn.Sequential(nn.Conv3d(channels, inner, 1), nn.MaxPool3d((1, 2, 2)))

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(x).flatten(2)
        phi = self.phi(x).flatten(2)
        g = self.g(x).flatten(2)
        fraction = (theta.transpose(1, 2) @ phi).softmax(-1)
        y = (fraction @ g.transpose(1, 2)).transpose(1, 2)
        return self.W(y.reshape(len(x), -1, *x.shape[2:])) + x


class WithNonLocal(nn.Module):
    def __init__(self, block: nn.Module, segments: int):
        super().__init__()
        self.block = block
        self.nl = NonLocal(block.bn3.num_features)
        self.segments = segments

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        clip = x.view(-1, self.segments, *x.shape[1:]).transpose(1, 2).contiguous()
        return self.nl(clip).transpose(1, 2).contiguous().view(x.shape)


class InvertedResidual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, expansion: int):
        super().__init__()
        self.residual = stride == 1 and cin == cout
        inner = cin * expansion
        layers = conv_unit(cin, inner, 1) if expansion > 1 else []
        layers += conv_unit(inner, cout=inner, kernel=3, stride=stride, groups=inner)
        layers += conv_unit(inner, cout, 1)[:2]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


def conv_unit(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list:
    layer = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(cout), nn.ReLU6(inplace=True)]


class MobileNetV2(nn.Module):
    # (expansion, channels, repeats, stride of the first)
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    STAGES += ((6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, num_classes: int, channels: int):
        super().__init__()
        cells = [nn.Sequential(*conv_unit(channels, cout=32, kernel=3, stride=2))]
        cin = 32
        for expansion, cout, repeats, stride in self.STAGES:
            for i in range(repeats):
                cells.append(InvertedResidual(cin, cout, 1 if i else stride, expansion))
                cin = cout
        self.features = nn.Sequential(*cells, nn.Sequential(*conv_unit(cin, 1280, 1)))
        self.classifier = nn.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def shift_resnet(
    net: ResNet, arch: str, segments: list[int], location: str, shift: Callable[..., Shift]
) -> None:
    """Shifts every block, or every second of a deep network, of the four stages."""
    every = 2 if DEPTHS[arch][2] >= 23 and location == "blockres" else 1
    for layer, frames in zip((net.layer1, net.layer2, net.layer3, net.layer4), segments):
        for i, block in enumerate(layer):
            if location == "block":
                layer[i] = shift(block, frames)
            elif i % every == 0:
                block.conv1 = shift(block.conv1, frames)


class TSM(nn.Module):
    """Takes the settings of `tsm.model.TSM`."""

    def __init__(
        self,
        num_classes: int,
        segments: int,
        arch: str = "resnet50",
        shift_div: int = 8,
        shift_place: str = "blockres",
        online: bool = False,
        temporal_pool: bool = False,
        non_local: bool = False,
        dropout: float = 0.5,
        consensus: str = "avg",
        before_softmax: bool = True,
        modality: str = "rgb",
        frames_per_segment: int = 1,
        first_width: int = 64,
        padding: str = "symmetric",
    ):
        super().__init__()
        self.consensus = consensus
        self.before_softmax = before_softmax
        frame_channels, mean, std = FRAMES[modality]
        channels = frame_channels * frames_per_segment
        self.takes_differences = modality == "rgb_diff"
        read_channels = channels + 3 * self.takes_differences
        self.normalize = Normalize(mean, std=std, channels=read_channels, axes=2)
        self.segments = segments // 2 if temporal_pool else segments
        shift = partial(Shift, div=shift_div, online=online)
        if arch == "mobilenetv2":
            self.base_model = MobileNetV2(num_classes, channels)
            for cell in self.base_model.features[1:-1] if shift_div else ():
                if cell.residual and len(cell.conv) == 8:
                    cell.conv[0] = shift(cell.conv[0], segments)
        else:
            net = self.base_model = ResNet(arch, num_classes, first_width, channels, padding)
            frames = [segments, *[self.segments] * 3]
            if shift_div:
                shift_resnet(net, arch, segments=frames, location=shift_place, shift=shift)
            if non_local:
                for layer, positions in ((net.layer2, (0, 2)), (net.layer3, (0, 2, 4))):
                    for i in positions:
                        layer[i] = WithNonLocal(layer[i], self.segments)
            if temporal_pool:
                net.layer2 = TemporalPool(net.layer2, segments)
        if dropout > 0:
            last = "classifier" if arch == "mobilenetv2" else "fc"
            width = getattr(self.base_model, last).in_features
            setattr(self.base_model, last, nn.Dropout(dropout))
            self.new_fc = nn.Linear(width, num_classes)
        else:
            self.new_fc = nn.Identity()

    def forward(self, clip: Tensor) -> Tensor:
        scores = self.score_frames(clip)
        if not self.before_softmax:
            scores = scores.softmax(-1)
        if self.consensus == "identity":
            return scores
        scores = scores.mean(1)
        # The cross entropy of logarithms of probabilities is their negative log likelihood.
        return scores.log() if self.training and not self.before_softmax else scores

    def score_frames(self, clip: Tensor) -> Tensor:
        """Scores (N, T, classes) of each frame."""
        x = self.normalize(clip)
        x = x[:, :, 3:] - x[:, :, :-3] if self.takes_differences else x
        return self.new_fc(self.base_model(x.flatten(0, 1))).view(len(clip), self.segments, -1)


build_network = TSM
