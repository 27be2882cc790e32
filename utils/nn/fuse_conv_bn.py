"""Fuses batch norms into the convolutions before them: same scores, for evaluation only.

With k = gamma / sqrt(variance + eps), norm(conv(x)) = (k * weight) x + (beta - k * mean). If the
convolution has a bias, k * bias is added.
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from utils.nn.kernels.plain import list_layers
from utils.nn.layers import has_kernel


class ChannelBias(nn.Cell):
    """Adds one number per channel to (N, C, ...), an input of at most five axes."""

    def __init__(self, offset: np.ndarray):
        super().__init__()
        self.offset = Parameter(Tensor(offset), name="offset", requires_grad=False)
        self.add = ops.BiasAdd()
        self.add_3d = ops.BiasAdd(data_format="NCDHW")

    def construct(self, x: Tensor) -> Tensor:
        add = self.add_3d if x.ndim == 5 else self.add
        return add(x, ops.cast(self.offset, x.dtype))


def fuse_conv_bn(net: nn.Cell) -> nn.Cell:
    """Fuses every batch norm that its parent cell defines right after a convolution; returns `net`.

    The norm's scale is multiplied into the weight. The norm becomes an identity if the convolution
    has a bias, which takes its shift, else a ChannelBias.

    This relies on networks that define their norms in the order in which they use them. The tests
    of each network confirm it: the outputs of fused and original networks agree.
    """
    for _, parent in net.cells_and_names():
        previous = None
        for name, cell in list(parent.name_cells().items()):
            conv, previous = previous, cell
            if conv is None or not isinstance(cell, nn.BatchNorm2d):
                continue
            if not has_kernel(conv) and len(list_layers(conv)) == 1:  # a cell around a convolution
                conv = list_layers(conv)[0]
            if not has_kernel(conv):
                continue
            arrays = (cell.gamma, cell.beta, cell.moving_mean, cell.moving_variance)
            gamma, beta, mean, variance = (p.asnumpy().astype(np.float64) for p in arrays)
            scale = gamma / np.sqrt(variance + cell.eps)
            shift = (beta - scale * mean).astype(np.float32)
            kernels = scale.reshape(-1, *[1] * (conv.weight.ndim - 1))
            conv.weight.set_data(Tensor((conv.weight.asnumpy() * kernels).astype(np.float32)))
            bias = dict(conv.parameters_and_names(expand=False)).get("bias")
            if bias is None:
                remainder = ChannelBias(shift)
            else:
                bias.set_data(Tensor((bias.asnumpy() * scale + shift).astype(np.float32)))
                remainder = nn.Identity()
            replace_cell(parent, name, remainder)
            for parameter in remainder.get_parameters():  # an export needs full names
                parameter.name = cell.beta.name[: -len("beta")] + "offset"
    return net


def replace_cell(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    if isinstance(parent, nn.SequentialCell):
        parent[list(parent.name_cells()).index(name)] = cell
    else:
        setattr(parent, name, cell)
