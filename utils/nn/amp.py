"""Mixed precision: 16 bits where they pay, float32 for batch norms and the loss.

O0 float32 everywhere; O1 16 bits for convolutions and matrix products; O2 for all but batch and
layer norms; O3 for all but batch norms. Weights stay float32 and are cast where used. The 16 bits
are float16, or bfloat16, which has the range of float32 and eight bits instead of eleven.

A batch norm has float32 weights and statistics at every level. It reads and writes maps in the
type they have: its kernels convert inside, so a cast on either side would only cost memory traffic.
Pixels are normalised in float32, because 1 / (255 * std) in float16 is wrong by up to 4e-4.
"""

from mindspore import dtype as mstype
from mindspore import nn, ops

from utils.nn.conv3d import ClipConv
from utils.nn.layers import LayerNorm, Normalize


def cast(net: nn.Cell, level: str, dtype: str = "float16") -> nn.Cell:
    """The network at an amp level O0 to O3: same parameters and names, float32 at the end.

    `dtype` is float16 or bfloat16. Use what is returned: the levels wrap or rewrite cells.
    """
    if level == "O0":
        return net
    half = getattr(mstype, dtype)
    cells = [cell for _, cell in net.cells_and_names()]
    if level == "O1":
        for cell in cells:
            if isinstance(cell, (nn.Conv2d, nn.Dense, ClipConv)):
                cell.to_float(half)
    else:
        net.to_float(half)
    for cell in cells:
        if isinstance(cell, nn.BatchNorm2d) or (level == "O2" and isinstance(cell, LayerNorm)):
            cell.add_flags_recursive(fp16=False, fp32=False, bf16=False)  # they cast
        elif isinstance(cell, Normalize):
            cell.to_float(mstype.float32)
    return Float32Output(net)


class Float32Output(nn.Cell):
    """The network with its output in float32; parameter names are the network's own."""

    def __init__(self, net: nn.Cell):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, *inputs):
        outputs = self.net(*inputs)
        if not isinstance(outputs, tuple):
            return ops.cast(outputs, mstype.float32)
        done = ()
        for output in outputs:
            done += (ops.cast(output, mstype.float32),)
        return done
