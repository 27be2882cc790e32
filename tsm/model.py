"""TSM: a 2-D network whose channels look one frame ahead and one behind (arXiv:1811.08383).

Axes: N clips, T segments, C channels, H, W. A batch is (N, T, C, H, W) at the door, (N*T, C, H, W)
in the trunk and (N, classes) at the end. C is 3 times the frames per segment for RGB, 2 times for
flow. Cells keep the names of the source, mit-han-lab/temporal-shift-module, commit 1f6a834b.

Departures from the source, each of which raises or misbehaves there:
* MobileNetV2 can be built with its shift;
* temporal pooling halves the segments in evaluation too;
* non-local blocks are refused on other trunks than ResNet-50, where the source cuts stages short;
* normalisation of uint8 clips happens in the network.
"""

from mindspore import Tensor, nn, ops

from tsm.mobilenet import MobileNetV2
from tsm.resnet import DEPTHS, ResNet
from utils.nn.dropout import Dropout
from utils.nn.layers import BatchNorm3d, Normalize, dense, freeze_norms

ARCHITECTURES = (*DEPTHS, "mobilenetv2")
RGB_MEAN, RGB_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOW_MEAN, FLOW_STD = (0.5,), (0.226,)  # the mean of RGB_STD


class TSM(nn.Cell):
    """Clips (N, T, C, H, W), uint8 or already normalised float32, to raw scores (N, classes).

    `shift_div` 0 is plain TSN. `dropout` 0 puts the classifier into the trunk (`base_model.fc`), as
    the source does; above 0 it is `new_fc`. `consensus` `avg` averages the frames' raw scores, or
    their probabilities where `before_softmax` is false; `identity` returns (N, T, classes).
    Raises ValueError for a combination that has no meaning.
    """

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
    ):
        super().__init__()
        check(arch, segments, shift_place, online, temporal_pool, non_local, first_width)
        if not before_softmax and consensus != "avg":
            raise ValueError("model.consensus must be avg where model.before_softmax is false")
        colours = 3 if modality == "rgb" else 2
        channels = colours * frames_per_segment
        mean, std = (RGB_MEAN, RGB_STD) if modality == "rgb" else (FLOW_MEAN, FLOW_STD)
        self.normalize = Normalize(mean, std, channels, axis=2, rank=5)
        in_trunk = 0 if dropout > 0 else num_classes
        if arch == "mobilenetv2":
            self.base_model = MobileNetV2(segments, shift_div, online, channels, in_trunk)
        else:
            self.base_model = ResNet(
                arch,
                segments,
                shift_div,
                shift_place,
                online,
                temporal_pool,
                non_local,
                channels,
                in_trunk,
                first_width,
            )
        self.segments = segments // 2 if temporal_pool else segments  # frames that reach the head
        width = self.base_model.width
        self.dropout = Dropout(dropout, self.segments * width) if dropout > 0 else None
        self.new_fc = dense(width, num_classes, 0.001) if dropout > 0 else None
        self.consensus, self.before_softmax = consensus, before_softmax

    def construct(self, clip: Tensor) -> Tensor:
        n, t, c, h, w = clip.shape
        x = self.base_model(self.normalize(clip).reshape(n * t, c, h, w))
        scores = self.head(x).reshape(n, self.segments, -1)  # (N, T, classes)
        return scores.mean(1) if self.consensus == "avg" else scores

    def head(self, x: Tensor) -> Tensor:
        """(N*T, features) -> (N*T, classes), each frame with its own dropout mask."""
        if self.new_fc is not None:
            x = self.new_fc(self.dropout(x))
        return x if self.before_softmax else ops.softmax(x, axis=-1)


def check(arch, segments, shift_place, online, temporal_pool, non_local, first_width) -> None:
    """Refuses what the published network does not define."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"model.arch is {arch}; known: {', '.join(ARCHITECTURES)}")
    if arch == "mobilenetv2" and (shift_place != "blockres" or temporal_pool or non_local):
        raise ValueError(
            "mobilenetv2 has neither shift_place block nor temporal_pool nor non_local"
        )
    if arch == "mobilenetv2" and first_width != 64:
        raise ValueError("model.first_width is of ResNets; mobilenetv2 has none")
    if non_local and (arch != "resnet50" or first_width != 64):
        told = f"{arch} with model.first_width {first_width}"
        raise ValueError(f"model.non_local is defined for resnet50 of width 64, not for {told}")
    if temporal_pool and segments % 2:
        raise ValueError(f"model.temporal_pool needs an even data.segments, not {segments}")
    if online and (shift_place != "blockres" or temporal_pool or non_local):
        raise ValueError(
            "model.online goes with shift_place blockres, without temporal_pool or non_local"
        )


def freeze_batch_norms(net: nn.Cell, how: str) -> None:
    """`partial`: every 2-D batch norm but the first keeps its statistics, scale and shift.

    `frozen`: all of them do; `trained`: none. Frozen ones use their running statistics in training.
    The 3-D ones of non-local blocks are born at 0 and would keep their blocks off, so `partial`
    leaves them free (the source drops them from the optimizer by mistake).
    """
    norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    flat = [cell for cell in norms if not isinstance(cell, BatchNorm3d)]
    freeze_norms({"trained": [], "partial": flat[1:], "frozen": norms}[how])


build_network = TSM  # the name by which scripts find a room's network
