"""Sampling: every sample at most once per epoch, the same sequence for any number of ranks."""

import numpy as np
import pytest

from utils.data.sampler import TrainSampler, sample_rng, shard_for_eval


def list_samples(samples, batch, rank, size, epochs=2, seed=3):
    order = TrainSampler(samples, batch=batch, rank=rank, size=size, seed=seed)
    return [order.sample_at(i) for i in range(epochs * order.steps_per_epoch * batch)]


def test_two_ranks_read_the_global_batches_of_one_rank():
    whole = [s for s, _ in list_samples(24, batch=4, rank=0, size=1)]
    halves = [[s for s, _ in list_samples(24, batch=2, rank=rank, size=2)] for rank in range(2)]
    for step in range(12):
        expected = set(whole[4 * step : 4 * step + 4])
        assert expected == {s for half in halves for s in half[2 * step : 2 * step + 2]}


@pytest.mark.parametrize(("batch", "size"), [(8, 1), (4, 1), (2, 4), (1, 2)])
@pytest.mark.parametrize("steps", [0, 1, 5, 12, 17])
def test_a_run_resumed_with_other_ranks_repeats_no_sample(batch, size, steps):
    """Two epochs of 101 samples: `steps` steps of 8 on 2 ranks x 4, the rest on other ranks."""
    before = [list_samples(101, batch=4, rank=rank, size=2)[: 4 * steps] for rank in range(2)]
    orders = [
        TrainSampler(101, batch=batch, rank=rank, size=size, seed=3, epoch_samples=96)
        for rank in range(size)
    ]
    start = 8 * steps // size
    stop = 2 * 96 // size
    after = [[order.sample_at(i) for i in range(start, stop)] for order in orders]
    samples_read = [row for part in before + after for row in part]
    for epoch in range(2):
        samples = [sample for sample, e in samples_read if e == epoch]
        assert len(samples) == len(set(samples)) == 96
        assert set(samples) == set(orders[0].permutation(epoch)[:96])


def test_each_epoch_and_seed_has_its_own_order():
    samples = [s for s, _ in list_samples(16, batch=4, rank=0, size=1)]
    assert sorted(samples[:16]) == sorted(samples[16:]) == list(range(16))
    assert samples[:16] != samples[16:]
    assert samples != [s for s, _ in list_samples(16, batch=4, rank=0, size=1, seed=4)]


def test_too_few_samples_are_an_error():
    with pytest.raises(ValueError, match="data.batch: 5 samples do not fill one batch of 3"):
        TrainSampler(5, batch=3, rank=0, size=2, seed=0)


def test_random_numbers_depend_on_seed_epoch_and_sample():
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert len({sample_rng(*key).randint(2**31) for key in keys}) == 4


@pytest.mark.parametrize("samples", [1, 7, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_evaluation_counts_every_sample_once(samples, size):
    parts = [shard_for_eval(samples, batch=2, rank=rank, size=size) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1
    assert all(len(part) % 2 == 0 for part in parts)
    assert sorted(s for part in parts for s in part if s is not None) == list(np.arange(samples))
