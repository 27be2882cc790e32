"""Precise batch norm: statistics over many batches at fixed weights.

For layer l and batch k with n_k elements per channel, mean m_k and biased variance b_k:
mean = sum(n_k m_k) / sum(n_k), var = sum(n_k (m_k^2 + b_k)) / sum(n_k) - mean^2.
"""

from collections.abc import Iterable

import numpy as np
from mindspore import Tensor, nn

from utils.layers import BatchNorm2d
from utils.testing import record_taps

SHARE = 0.1  # what a batch adds to the running statistics


def precise_batch_norms(net: nn.Cell, clips: Iterable[np.ndarray]) -> None:
    """Replaces the running statistics of every batch norm; `clips` are batches (N, 3, T, H, W)."""
    norms = {name: c for name, c in net.cells_and_names() if isinstance(c, BatchNorm2d)}
    sums = {name: np.zeros((2, cell.num_features)) for name, cell in norms.items()}
    totals, counts = dict.fromkeys(norms, 0), {}
    net.set_train()
    for clip in clips:
        if clip.shape not in counts:
            counts[clip.shape] = elements(net, norms, clip)
        for cell in norms.values():  # from zero, so that what is there after is SHARE * the batch's
            put(cell, np.zeros(cell.num_features), np.zeros(cell.num_features))
        net(Tensor(clip)).asnumpy()
        for name, cell in norms.items():
            n = counts[clip.shape][name]
            mean = cell.moving_mean.asnumpy().astype(np.float64) / SHARE
            biased = cell.moving_variance.asnumpy().astype(np.float64) / SHARE * (n - 1) / n
            sums[name] += n * np.stack([mean, mean**2 + biased])
            totals[name] += n
    for name, cell in norms.items():
        if totals[name]:
            mean, square = sums[name] / totals[name]
            put(cell, mean, square - mean**2)


def elements(net: nn.Cell, norms: dict, clip: np.ndarray) -> dict[str, int]:
    """Elements per channel that every batch norm sees of such a batch."""
    seen = record_taps(net, list(norms), clip)
    return {name: x.size // norms[name].num_features for name, x in seen.items()}


def put(cell: BatchNorm2d, mean: np.ndarray, variance: np.ndarray) -> None:
    cell.moving_mean.set_data(Tensor(mean.astype(np.float32)))
    cell.moving_variance.set_data(Tensor(variance.astype(np.float32)))
