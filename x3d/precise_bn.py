"""Precise batch norm: running statistics computed over many batches with fixed weights.

For layer l and batch k with n_k elements per channel, mean m_k and biased variance b_k:
mean = sum(n_k m_k) / sum(n_k), var = sum(n_k (m_k^2 + b_k)) / sum(n_k) - mean^2.

The sums stay on the device in float32 and are updated batch by batch by the parallel algorithm of
Chan, Golub and LeVeque, which subtracts no two large numbers. With w_k = n_k / (n_1 + ... + n_k)
and d = m_k - mean: var += w_k (b_k - var + (1 - w_k) d^2), mean += w_k d.

Source: facebookresearch/fvcore, fvcore/nn/precise_bn.py.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from utils.complexity import run_hooks
from utils.log import log
from utils.nn.kernels.plain import BATCH_WEIGHT, make_zeros
from utils.nn.layers import BatchNorm2d

COUNTED_CLIPS = 2  # clips in the eager pass that counts elements


class StatisticsSums(nn.Cell):
    """Running sums on the device; adds the running statistics of `norms` after each batch.

    The inputs are `weight` and `correction`, both float32 (C,), where C is the number of channels
    of all norms. `weight` is w_k of the module's formula. `correction` turns the running
    variance, which is BATCH_WEIGHT times the unbiased one, into the biased one. Returns `mean` and
    `variance`, both float32 (C,), and sets the running statistics to zero. After the next batch
    they are therefore BATCH_WEIGHT times the statistics of that batch.

    This is a separate graph, because the compiler does not know that a fused norm of Ascend writes
    its statistics: in one graph they could be read or set to zero too early.
    """

    def __init__(self, norms: Sequence[BatchNorm2d]):
        super().__init__(auto_prefix=False)
        self.moving_means = ParameterTuple(norm.moving_mean for norm in norms)
        self.moving_variances = ParameterTuple(norm.moving_variance for norm in norms)
        self.zeros = tuple(make_zeros(norm.num_features) for norm in norms)
        channels = sum(norm.num_features for norm in norms)
        self.mean = Parameter(make_zeros(channels), name="precise_mean", requires_grad=False)
        self.variance = Parameter(
            make_zeros(channels), name="precise_variance", requires_grad=False
        )
        self.map = ops.HyperMap()

    def construct(self, weight: Tensor, correction: Tensor) -> tuple:
        difference = ops.cat(self.moving_means) * (1 / BATCH_WEIGHT) - self.mean
        change = ops.cat(self.moving_variances) * correction - self.variance
        change = change + (1 - weight) * difference * difference
        variance = ops.assign_add(self.variance, weight * change)
        mean = ops.assign_add(self.mean, weight * difference)
        self.map(ops.assign, self.moving_means, self.zeros)
        self.map(ops.assign, self.moving_variances, self.zeros)
        return mean, variance


class PreciseBatchNorms:
    """Replaces the running statistics of all batch norms of a network that are not frozen.

    Graphs are compiled once for each batch shape; keep the object to reuse them. `ranks`: so many
    have a part of each batch, if the norms compute their statistics over all. `count`: batches
    of a training that it reads.
    """

    def __init__(self, net: nn.Cell, ranks: int = 1, count: int = 200):
        norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, BatchNorm2d)]
        self.norms = [norm for norm in norms if norm.use_batch_statistics is None]
        self.net = net
        self.ranks = ranks
        self.count = count
        self.sums = StatisticsSums(self.norms) if self.norms else None
        self.widths = np.array([norm.num_features for norm in self.norms], int)
        self.counts: dict[tuple, np.ndarray] = {}

    def update_before_saving(self, batches: Iterable[tuple]) -> None:
        """`update` with the first `count` batches of a training, (clips, target)."""
        log.info("precise batch norm over %d batches ...", self.count)
        self.update(clips for clips, _ in islice(batches, self.count))

    def update(self, batches: Iterable[np.ndarray]) -> None:
        """Sets the statistics from `batches` (N, 3, T, H, W); keeps them if there is none.

        The network is left in training mode. The host reads the sums once, after the last batch.
        """
        total = 0
        sums = ()
        for clips in batches:
            count = self.count_elements(clips)
            if not sums:
                self.net.set_train()
                own = self.sums
                for parameter in (own.mean, own.variance, *own.moving_means, *own.moving_variances):
                    parameter.set_data(make_zeros(parameter.size))
            total = total + count
            correction = (count - 1) / count / BATCH_WEIGHT
            weights = (np.repeat(x, self.widths) for x in (count / total, correction))
            self.net(Tensor(clips))
            sums = self.sums(*(Tensor(x.astype(np.float32)) for x in weights))
        if sums:
            ends = np.cumsum(self.widths)[:-1]
            means, variances = (np.split(x.asnumpy(), ends) for x in sums)
            for norm, mean, variance in zip(self.norms, means, variances):
                norm.moving_mean.set_data(Tensor(mean))
                norm.moving_variance.set_data(Tensor(variance))

    def count_elements(self, clips: np.ndarray) -> np.ndarray:
        """The elements per channel that each norm reads of a batch; counted once for each shape.

        The number is proportional to N, so an eager pass of a few clips is enough; it records only
        shapes. The pass runs in evaluation mode, because dropout needs whole training batches. The
        training mode of the network is restored.
        """
        if clips.shape not in self.counts:
            part = clips[:COUNTED_CLIPS]
            sizes: dict[int, int] = {}  # by the id of a norm: the elements of its input

            def record_size(cell: nn.Cell, inputs: tuple) -> None:
                sizes[id(cell)] = inputs[0].size

            handles = [norm.register_forward_pre_hook(record_size) for norm in self.norms]
            run_hooks(self.net, part, handles)
            elements = self.ranks * np.array([sizes[id(norm)] for norm in self.norms])
            self.counts[clips.shape] = elements // self.widths * len(clips) // len(part)
        return self.counts[clips.shape]
