"""Precise batch norm: exact statistics, only small copies to the host, one compilation."""

import numpy as np
from mindspore import nn

from utils.nn.layers import BatchNorm2d, conv2d, freeze_norms
from x3d.precise_bn import PreciseBatchNorms


def make_network() -> nn.Cell:
    return nn.SequentialCell(BatchNorm2d(3), conv2d(3, cout=4, kernel=3, stride=2), BatchNorm2d(4))


def make_batches(*shapes: tuple) -> list[np.ndarray]:
    """Random batches (N, 3, H, W) whose mean is 300 times their deviation."""
    random = np.random.RandomState(0)
    return [(300 + random.standard_normal(shape)).astype(np.float32) for shape in shapes]


def read_statistics(norm: BatchNorm2d) -> tuple[np.ndarray, np.ndarray]:
    return norm.moving_mean.asnumpy().copy(), norm.moving_variance.asnumpy().copy()


def join_elements(arrays: list[np.ndarray]) -> np.ndarray:
    """All elements of arrays (N, C, H, W) as float64 (elements, C)."""
    rows = [x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1]) for x in arrays]
    return np.concatenate(rows).astype(np.float64)


def test_statistics_equal_those_of_all_elements_of_all_batches():
    """Batches are weighted by their number of elements; a large mean costs no precision."""
    net = make_network()
    batches = make_batches((4, 3, 6, 6), (3, 3, 6, 6), (1, 3, 8, 4))
    PreciseBatchNorms(net).update(batches)
    elements = join_elements(batches)
    mean, variance = read_statistics(net[0])
    np.testing.assert_allclose(mean, elements.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, elements.var(0), rtol=1e-5)


def test_repeated_updates_reset_their_state_and_use_one_graph():
    net = make_network()
    batches = make_batches(*[(4, 3, 6, 6)] * 3)
    norms = PreciseBatchNorms(net)
    norms.update(batches)
    all_batches = read_statistics(net[2])
    norms.update([])
    np.testing.assert_array_equal(read_statistics(net[2]), all_batches, "no batch, no change")
    norms.update(batches[:1])
    assert np.abs(read_statistics(net[2])[0] - all_batches[0]).max() > 1e-3
    norms.update(batches)
    np.testing.assert_array_equal(read_statistics(net[2]), all_batches)
    assert len(norms.sums.compile_cache) == 1


def test_statistics_of_frozen_norms_do_not_change():
    net = make_network()
    freeze_norms([net[0]])
    PreciseBatchNorms(net).update(make_batches((4, 3, 6, 6)))
    mean, variance = read_statistics(net[0])
    assert (mean.tolist(), variance.tolist()) == ([0] * 3, [1] * 3)
    assert np.abs(read_statistics(net[2])[0]).min() > 0
