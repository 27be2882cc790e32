"""Batch norms folded into the convolutions before them: the same scores, for evaluation only.

With k = gamma / sqrt(variance + eps), norm(conv(x)) = (k * weight) x + (beta - k * mean).
"""

from typing import Optional

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from utils.counting import has_kernel


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
                scale, shift = factors(cell)
                scale = scale.reshape(-1, *[1] * (conv.weight.ndim - 1))
                conv.weight.set_data(Tensor((conv.weight.asnumpy() * scale).astype(np.float32)))
                replace(parent, name, Shift(shift))
            before = cell
    return net


def convolution(cell: Optional[nn.Cell]) -> Optional[nn.Cell]:
    """The cell, or what it wraps, where that is a convolution without bias."""
    inner = list(cell.name_cells().values()) if cell is not None else []
    if len(inner) == 1 and not has_kernel(cell):
        cell = inner[0]
    if cell is None or not has_kernel(cell) or getattr(cell, "bias", None) is not None:
        return None
    return cell


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
