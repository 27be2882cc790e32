"""Dropout and drop path whose random numbers come from the host, as an input of the train step."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn.layers import on_ascend

FACTORS = "dropout_factors"  # the parameter that all layers read; it is no weight


class Dropout(nn.Cell):
    """Drops elements of (rows, ...) with probability p and scales the others by 1 / (1 - p).

    `size` is the number of elements a sample has. The random numbers come from the host, as an
    input of the train step, so they are the same on every device and a resumed run draws the same
    ones: `factors` (N, K) holds 0 or 1 / (1 - p) for every element of N samples, and this layer
    reads columns `first` to `first + size`. `connect` sets both.
    """

    setting = "model.dropout"

    def __init__(self, p: float, size: int):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"{self.setting} must lie in [0, 1), not {p}")
        self.p, self.size = p, size
        self.factors, self.first = None, 0

    def connect(self, factors: Parameter, first: int) -> None:
        """Reads from column `first` of `factors`, which the train step owns."""
        self.factors, self.first = factors, first

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * self.read(x.shape, x.dtype)

    def read(self, shape: tuple, dtype: mstype) -> Tensor:
        """This layer's factors in a shape of rows."""
        if self.factors is None:
            raise RuntimeError("a dropout layer in training needs a train step that connects it")
        factors = self.factors[:, self.first : self.first + self.size]
        return ops.cast(ops.reshape(factors, shape), dtype)


class DropPath(Dropout):
    """Drops a branch (N, ...) of a sample as a whole."""

    setting = "model.drop_path"

    def __init__(self, p: float):
        super().__init__(p, 1)

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        factors = self.read((x.shape[0],) + (1,) * (x.ndim - 1), x.dtype)
        return x * (factors if on_ascend() else ops.broadcast_to(factors, x.shape))  # see GELU


class DropoutFactors:
    """The random numbers of all dropout layers of a network, drawn on the host.

    Element k of a sample is dropped with the probability of its layer. The numbers are those of
    NumPy's Philox generator with the key (seed, position of the sample in the run): a function of
    the sample's position only, whatever the number of ranks, workers or restarts.
    """

    def __init__(self, net: nn.Cell, seed: int):
        cells = [cell for _, cell in net.cells_and_names() if isinstance(cell, Dropout)]
        self.layers = [cell for cell in cells if cell.p > 0]
        self.seed = seed
        sizes = [cell.size for cell in self.layers]
        self.rates = np.repeat([cell.p for cell in self.layers], sizes).astype(np.float32)
        self.kept = (1 / (1 - self.rates.astype(np.float64))).astype(np.float32)

    @property
    def size(self) -> int:
        """Numbers a sample needs."""
        return len(self.rates)

    def connect(self, samples: int) -> Parameter:
        """Creates the parameter (samples, size) that all layers read."""
        start = np.ones((samples, self.size), np.float32)
        factors = Parameter(Tensor(start), name=FACTORS, requires_grad=False)
        first = 0
        for cell in self.layers:
            cell.connect(factors, first)
            first += cell.size
        return factors

    def draw(self, position: int, copies: int = 1) -> np.ndarray:
        """float32 (copies, size) for the sample at a position of the run over all ranks."""
        philox = np.random.Philox(key=[self.seed, position])
        drawn = np.random.Generator(philox).random((copies, self.size), np.float32)
        return np.where(drawn < self.rates, np.float32(0), self.kept)

    def draw_samples(self, first: int, count: int) -> np.ndarray:
        """float32 (count, size) for neighbouring positions of the run."""
        return np.concatenate([self.draw(first + k) for k in range(count)])
