"""Dropout and drop path (stochastic depth) with random numbers from the host.

The numbers are an input of the train step.
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from utils.nn import kernels

FACTORS = "dropout_factors"  # name of the parameter that all layers read; it is not a weight


class Dropout(nn.Cell):
    """Drops elements of (N*k, ...) with probability p and scales the others by 1 / (1 - p).

    The random numbers come from the host, as an input of the train step. So they are the same on
    every device, and a resumed run draws the same ones. `factors` (N, K) holds 0 or 1 / (1 - p)
    for every element of N samples; this layer reads its columns `start` to `start + size`.
    `DropoutFactors.connect` sets both.

    Args:
        p: probability, in [0, 1).
        size: elements of one sample.
    """

    setting = "model.dropout"
    by_sample = False

    def __init__(self, p: float, size: int):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"{self.setting} must lie in [0, 1), not {p}")
        self.p = p
        self.size = size
        self.factors = None
        self.start = 0
        self.broadcast = kernels.current().broadcast

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.factors is None:
            raise RuntimeError("this dropout needs the zoo's train step; dropout 0, or nn.Dropout")
        factors = self.factors[:, self.start : self.start + self.size]
        if not self.by_sample:
            return x * ops.cast(ops.reshape(factors, x.shape), x.dtype)
        factors = ops.reshape(factors, (x.shape[0],) + (1,) * (x.ndim - 1))
        return x * self.broadcast(ops.cast(factors, x.dtype), x.shape)


class DropPath(Dropout):
    """Drops a residual branch (N, ...): one random number per sample."""

    setting = "model.drop_path"
    by_sample = True

    def __init__(self, p: float):
        super().__init__(p, 1)


class DropoutFactors:
    """Draws the factors of all dropout layers of a network on the host.

    Element k of a sample is dropped with the probability of its layer. The numbers come from
    NumPy's Philox generator with the key (seed, position of the sample in the run). So they depend
    on the position of the sample only, not on the number of ranks, workers or restarts.
    """

    def __init__(self, net: nn.Cell, seed: int):
        cells = [cell for _, cell in net.cells_and_names() if isinstance(cell, Dropout)]
        self.layers = [cell for cell in cells if cell.p > 0]
        self.seed = seed
        sizes = [cell.size for cell in self.layers]
        self.rates = np.repeat([cell.p for cell in self.layers], sizes).astype(np.float32)
        self.scales = (1 / (1 - self.rates.astype(np.float64))).astype(np.float32)
        self.size = len(self.rates)  # random numbers per sample, K

    def connect(self, samples: int) -> Parameter:
        """Creates the parameter (samples, size) that all layers read."""
        ones = np.ones((samples, self.size), np.float32)
        factors = Parameter(Tensor(ones), name=FACTORS, requires_grad=False)
        start = 0
        for cell in self.layers:
            cell.factors = factors
            cell.start = start
            start += cell.size
        return factors

    def draw(self, position: int, copies: int = 1) -> np.ndarray:
        """float32 (copies, size) for the sample at a global position: counted over all ranks."""
        philox = np.random.Philox(key=[self.seed, position])
        uniform = np.random.Generator(philox).random((copies, self.size), np.float32)
        return np.where(uniform < self.rates, np.float32(0), self.scales)
