"""Batch norms folded into the convolutions before them: the same scores, for evaluation only.

With k = gamma / sqrt(variance + eps), norm(conv(x)) = (k * weight) x + (beta - k * mean), and
k * bias more where the convolution has a bias.
"""

from typing import Optional

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from utils.nn.complexity import has_kernel


class Shift(nn.Cell):
    """Adds a number per channel to (N, C, ...), up to four axes."""

    def __init__(self, offset: np.ndarray):
        super().__init__()
        self.offset = Parameter(Tensor(offset), name="offset", requires_grad=False)
        self.add = ops.BiasAdd()

    def construct(self, x: Tensor) -> Tensor:
        return self.add(x, ops.cast(self.offset, x.dtype))


def fold(net: nn.Cell) -> nn.Cell:
    """Replaces every batch norm whose cell names it right after a convolution; returns `net`.

    A network defines its norms where it uses them, which the rooms' tests confirm: folded and
    unfolded networks agree.
    """
    for _, parent in net.cells_and_names():
        before = None
        for name, cell in list(parent.name_cells().items()):
            conv = convolution(before)
            if isinstance(cell, nn.BatchNorm2d) and conv is not None:
                left = merged(conv, cell)
                replace(parent, name, left)
                for parameter in left.get_parameters():  # full names, as an export demands
                    parameter.name = cell.beta.name[: -len("beta")] + "offset"
            before = cell
    return net


def merged(conv: nn.Cell, norm: nn.BatchNorm2d) -> nn.Cell:
    """Puts the norm into the convolution; returns what is left of it."""
    scale, shift = factors(norm)
    kernels = scale.reshape(-1, *[1] * (conv.weight.ndim - 1))
    conv.weight.set_data(Tensor((conv.weight.asnumpy() * kernels).astype(np.float32)))
    bias = getattr(conv, "bias", None)
    if bias is None:
        return Shift(shift)
    bias.set_data(Tensor((bias.asnumpy() * scale + shift).astype(np.float32)))
    return nn.Identity()


def convolution(cell: Optional[nn.Cell]) -> Optional[nn.Cell]:
    """The cell, or what it wraps, where that is a convolution."""
    inner = list(cell.name_cells().values()) if cell is not None else []
    if len(inner) == 1 and not has_kernel(cell):
        cell = inner[0]
    return cell if cell is not None and has_kernel(cell) else None


def factors(norm: nn.BatchNorm2d) -> tuple[np.ndarray, np.ndarray]:
    arrays = (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
    gamma, beta, mean, variance = (p.asnumpy().astype(np.float64) for p in arrays)
    scale = gamma / np.sqrt(variance + norm.eps)
    return scale, (beta - scale * mean).astype(np.float32)


def replace(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    if isinstance(parent, nn.SequentialCell):
        parent[list(parent.name_cells()).index(name)] = cell
    else:
        setattr(parent, name, cell)
