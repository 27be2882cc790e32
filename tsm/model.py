"""TSM: a 2-D network that shifts channels between neighbouring frames (arXiv:1811.08383).

Axes: N clips, T segments (parts of a video, `frames_per_segment` of each, usually one), C channels,
H, W. The input is (N, T, C, H, W), the trunk computes (N*T, C, H, W), the output is (N, classes). C
is 3 times the frames per segment for RGB, 2 times for flow. With `rgb_diff` the input has one frame
more, and the trunk sees the differences of each frame from the one before. Cells keep the names of
the source, mit-han-lab/temporal-shift-module, commit 1f6a834b.

Differences from the source, which fails or computes wrong results in the first four cases:
* `rgb_diff` can be built: the source's RGBDiff needs Python 2;
* MobileNetV2 can be built with its shift;
* temporal pooling halves the number of segments in evaluation too;
* non-local blocks need ResNet-50: on other trunks the source drops blocks of a stage;
* the network normalises uint8 clips;
* MindSpore's own ImageNet networks have a `padding` other than `symmetric`.
"""

from typing import Union

import numpy as np
from mindspore import Tensor, nn, ops

from tsm.resnet import ResNet
from utils.nn.dropout import Dropout
from utils.nn.layers import (
    RESNETS,
    BatchNorm3d,
    CamCells,
    Normalize,
    PaddedNetwork,
    dense,
    freeze_norms,
    list_norms,
)

ARCHITECTURES = (*RESNETS, "mobilenetv2")
# {modality: channels of a frame, mean, standard deviation}
FRAMES = {
    "rgb": (3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "rgb_diff": (3, (0.0,), (1.0,)),
    "flow": (2, (0.5,), (0.226,)),  # the mean of the deviations of RGB
}


class TSM(PaddedNetwork):
    """Clips (N, T, C, H, W), uint8 or normalised float32, to logits (N, classes).

    `shift_div` 0 is plain TSN. If `dropout` is 0 the classifier is part of the trunk
    (`base_model.fc`, of MobileNetV2 `base_model.classifier`), as in the source; otherwise it is
    `new_fc`. `consensus`: `avg` averages the logits of the frames, or their probabilities if
    `before_softmax` is false; `identity` returns (N, T, classes). T is halved by the temporal pool.
    Raises ValueError for settings that conflict.
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
        padding: str = "symmetric",
    ):
        super().__init__(padding)
        is_mobile = arch == "mobilenetv2"
        is_plain = shift_place == "blockres" and not (temporal_pool or non_local)
        if arch not in ARCHITECTURES:
            raise ValueError(f"model.arch is {arch}; known: {', '.join(ARCHITECTURES)}")
        if is_mobile and not is_plain:
            raise ValueError(
                "mobilenetv2 has neither shift_place block nor temporal_pool nor non_local"
            )
        if is_mobile and (first_width != 64 or padding != "symmetric"):
            raise ValueError("model.first_width and model.padding are of ResNets")
        if non_local and (arch != "resnet50" or first_width != 64):
            found = f"{arch} with model.first_width {first_width}"
            raise ValueError(f"model.non_local is for resnet50 of width 64, not for {found}")
        if temporal_pool and segments % 2:
            raise ValueError(f"model.temporal_pool needs an even data.segments, not {segments}")
        if online and not is_plain:
            raise ValueError(
                "model.online goes with shift_place blockres, without temporal_pool or non_local"
            )
        if not before_softmax and consensus != "avg":
            raise ValueError("model.consensus must be avg if model.before_softmax is false")
        frame_channels, mean, std = FRAMES[modality]
        channels = frame_channels * frames_per_segment
        self.normalize = Normalize(mean, std=std, channels=channels, axis=2, rank=5)
        self.takes_differences = modality == "rgb_diff"
        trunk_classes = 0 if dropout > 0 else num_classes
        if is_mobile:
            from tsm.mobilenet import MobileNetV2  # here: most recipes have a ResNet

            self.base_model = MobileNetV2(segments, shift_div, online, channels, trunk_classes)
        else:
            self.base_model = ResNet(
                arch,
                segments,
                shift_div=shift_div,
                shift_place=shift_place,
                online=online,
                temporal_pool=temporal_pool,
                non_local=non_local,
                channels=channels,
                num_classes=trunk_classes,
                first_width=first_width,
                padding=padding,
            )
        self.segments = segments // 2 if temporal_pool else segments  # frames that reach the head
        width = self.base_model.width
        self.dropout = Dropout(dropout, self.segments * width) if dropout > 0 else None
        self.new_fc = dense(width, num_classes, 0.001) if dropout > 0 else None
        self.consensus = consensus
        self.before_softmax = before_softmax

    def construct(self, clip: Tensor, with_features: bool = False) -> Union[Tensor, tuple]:
        """Features (N, C), which are returned too if asked for, are the mean over the frames.

        The source averages the logits of the frames. The classifier is linear, so the logits of
        this mean are the same numbers: the mean is the classifier's input after a consensus.
        """
        x = clip if clip.ndim == 3 else self.compute_features(clip)
        scores = self.head(x.reshape(-1, self.base_model.width))
        scores = scores.reshape(clip.shape[0], self.segments, -1)
        scores = scores.mean(1) if self.consensus == "avg" else scores
        return (scores, x.mean(1)) if with_features else scores

    def compute_features(self, clip: Tensor) -> Tensor:
        """The features of the frames at the head, (N, frames, C), which are taken for clips too."""
        x = self.base_model(self.prepare_frames(clip))
        # Not x.shape[-1]: in a MINDIR of any batch size MindSpore 2.10 computes another number.
        return x.reshape(-1, self.segments, self.base_model.width)

    def prepare_frames(self, clip: Tensor) -> Tensor:
        """(N, T, C, H, W) -> (N*T, C, H, W), normalised; of `rgb_diff` the differences."""
        n, t, c, h, w = clip.shape
        x = self.normalize(clip).reshape(n * t, c, h, w)
        return x[:, 3:] - x[:, :-3] if self.takes_differences else x

    def head(self, x: Tensor) -> Tensor:
        """(N*T, features) -> (N*T, classes), each frame with its own dropout mask.

        They are probabilities if `before_softmax` is false.
        """
        x = self.base_model.classify(x) if self.new_fc is None else self.new_fc(self.dropout(x))
        return x if self.before_softmax else ops.softmax(x, axis=-1)

    def find_cam_cells(self) -> CamCells:
        """The last stage, whose batch are the frames of the clip."""
        trunk = self.base_model
        is_resnet = isinstance(trunk, ResNet)
        layer = trunk.layer4 if is_resnet else trunk.features
        scores = trunk.fc if is_resnet else trunk.classifier
        scores = scores if self.new_fc is None else self.new_fc
        return CamCells(layer, scores=[scores], arrange=np.asarray)


def freeze_batch_norms(net: nn.Cell, mode: str) -> None:
    """Freezes statistics, scale and shift of batch norms; frozen ones use running statistics.

    `mode` is `trained` (none), `partial` (all 2-D batch norms but the first) or `frozen` (all).
    `partial` trains the 3-D batch norms of non-local blocks: their scale starts at zero, so that
    frozen it would disable the block (the source leaves them out of the optimizer by mistake).
    """
    norms = list_norms(net)
    flat = [cell for cell in norms if not isinstance(cell, BatchNorm3d)]
    freeze_norms({"trained": [], "partial": flat[1:], "frozen": norms}[mode])
