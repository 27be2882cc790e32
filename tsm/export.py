"""Exports a TSM checkpoint to MINDIR or ONNX, runs the file and compares it with the network.

    python tsm/export.py --config_path Y --checkpoint_path C --format mindir|onnx --target F
        [--batch 4|free] [--input uint8|float32] [--precision fp32|fp16]

The exported file takes clips (N, T, C, crop, crop) and returns raw scores (N, classes). N is
eval.batch, or --batch. The file normalises uint8 pixels; with --input float32 it expects normalised
ones. The last line of stdout is one JSON object: format, file, bytes, precision, opset (of ONNX),
input, outputs, max_abs_difference, relative_difference. See docs/export.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.runtime import prepare_process

prepare_process()

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from tsm.config import Config
from tsm.network import NETWORK
from tsm.shift import Shift
from utils import cli
from utils.export.export import check_options, export_network


def main(cfg: Config, *, checkpoint_path: str, **options) -> None:
    export_network(NETWORK, cfg=cfg, checkpoint_path=checkpoint_path, options=options)


class SplitShift(nn.Cell):
    """A shifted 1x1 convolution as the sum of two, which copies only the shifted channels.

    Inference engines for ONNX are faster with this than with a copy of the whole input.
    """

    def __init__(self, shift: Shift):
        super().__init__()
        self.net = shift.net
        self.segments = shift.segments
        self.fold = shift.fold

    def construct(self, x: Tensor) -> Tensor:
        fold = self.fold
        zeros = ops.zeros_like(x[:1, :fold])
        from_next = ops.cat((x[1:, :fold], zeros), axis=0)
        from_previous = ops.cat((zeros, x[:-1, fold : 2 * fold]), axis=0)
        inside = ops.cast(mark_inside(x.shape[0], self.segments, fold), x.dtype)
        shifted = ops.cat((from_next, from_previous), axis=1) * inside
        weight = ops.cast(self.net.weight, x.dtype)
        moving = weight[:, : 2 * fold]
        staying = ops.cat((ops.zeros_like(moving), weight[:, 2 * fold :]), axis=1)
        return self.net.conv2d(x, staying) + self.net.conv2d(shifted, moving)


def split_convolution(shift: Shift) -> nn.Cell:
    """A SplitShift if there is a 1x1 convolution to split, else the same Cell."""
    is_pointwise = isinstance(shift.net, nn.Conv2d) and shift.net.kernel_size == (1, 1)
    return SplitShift(shift) if is_pointwise and not shift.online and shift.fold else shift


@constexpr
def mark_inside(nt: int, segments: int, fold: int) -> Tensor:
    """(N*T, 2 fold, 1, 1): 0 if the shifted channel comes from outside the clip, else 1."""
    inside = np.ones((nt // segments, segments, 2 * fold, 1, 1), np.float32)
    inside[:, -1, :fold] = inside[:, 0, fold:] = 0
    return Tensor(inside.reshape(nt, 2 * fold, 1, 1))


if __name__ == "__main__":
    cli.run(main, Config, __doc__, check_options)
