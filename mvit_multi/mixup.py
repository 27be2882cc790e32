"""Mixup and cutmix of a batch with the reversed batch.

Clip i of N is mixed with clip N - 1 - i. One lambda, and for cutmix one box, is used for the whole
batch on all devices. Source: JunweiLiang/MultiTrain, commit 16723114.
"""

from mindspore import Tensor, nn, ops

from utils.nn.soft_targets import mix_partners


class MixClips(nn.Cell):
    """Clips uint8 (B, S, 3, T, H, W), S clips of a video, and targets (B, S, 7), to network input.

    The result is float32 (B * S, 3, T, H, W), normalised, and mixed as the targets say. Without
    `mixes` clips stay uint8 and the network normalises them.
    """

    def __init__(self, normalize: nn.Cell, mixes: bool):
        super().__init__(auto_prefix=False)
        self.normalize = normalize
        self.mixes = mixes

    def construct(self, clip: Tensor, target: Tensor) -> Tensor:
        x = ops.reshape(clip, (-1, *clip.shape[2:]))
        if not self.mixes:
            return x
        x = self.normalize(x)
        row = target[0, 0]
        return mix_partners(x, ops.flip(x, (0,)), row[2], row[3:])
