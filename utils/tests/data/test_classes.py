"""Balanced sampling and parts of a training list: functions of the seed and the position."""

import numpy as np
import pytest

from utils.data.classes import choose_fraction, compute_draws, group_samples
from utils.data.sampler import TrainSampler

SIZES = (2, 8, 18, 72)
CLASSES = np.array([(0, label) for label, size in enumerate(SIZES) for _ in range(size)])


def make_sampler(balance: str, classes: np.ndarray = CLASSES, **settings) -> TrainSampler:
    settings = {"batch": 10, "rank": 0, "size": 1, "seed": 3, **settings}
    return TrainSampler(len(classes), **settings, classes=classes, balance=balance)


def count_classes(sampler: TrainSampler, epoch: int, classes: np.ndarray = CLASSES) -> np.ndarray:
    return np.bincount(classes[sampler.permutation(epoch)][:, 1], minlength=4)


def test_full_balance_draws_each_class_equally_often():
    sampler = make_sampler("full")
    for epoch in range(3):
        assert count_classes(sampler, epoch).tolist() == [25, 25, 25, 25]
        uses = np.bincount(sampler.permutation(epoch), minlength=100)
        for samples in group_samples(CLASSES).values():  # each sample of a class equally often
            assert uses[samples].max() - uses[samples].min() <= 1
    assert not np.array_equal(sampler.permutation(0), sampler.permutation(1))


def test_sqrt_balance_draws_by_the_root_of_the_size():
    roots = np.sqrt(SIZES)
    expected = 100 * roots / roots.sum()
    assert compute_draws(group_samples(CLASSES), "sqrt") == pytest.approx(expected)
    sampler = make_sampler("sqrt")
    counts = np.array([count_classes(sampler, epoch) for epoch in range(400)])
    assert (counts.sum(1) == 100).all()
    assert (abs(counts - expected) < 1).all()
    assert counts.mean(0) == pytest.approx(expected, abs=0.1)


def test_without_balance_an_epoch_is_the_permutation_of_older_versions():
    plain = TrainSampler(100, batch=10, rank=0, size=1, seed=3)
    np.testing.assert_array_equal(make_sampler("none").permutation(1), plain.permutation(1))


def test_more_classes_than_samples_of_an_epoch_have_their_expected_draws():
    classes = np.array([(0, k) for k in range(7)] + [(0, 7)] * 21)
    sampler = make_sampler("full", classes, batch=4)
    epochs = [classes[sampler.permutation(epoch)][:, 1] for epoch in range(200)]
    counts = sum(np.bincount(labels, minlength=8) for labels in epochs)
    assert counts == pytest.approx(np.full(8, 200 * 28 / 8), rel=0.02)


def test_each_data_set_keeps_its_samples():
    classes = np.array([(0, 0)] * 3 + [(0, 1)] * 9 + [(1, 0)] * 2 + [(1, 4)] * 6)
    drawn = classes[make_sampler("full", classes, batch=4).permutation(0)]
    keys, counts = np.unique(drawn, axis=0, return_counts=True)
    assert keys.tolist() == [[0, 0], [0, 1], [1, 0], [1, 4]]
    assert counts.tolist() == [6, 6, 4, 4]


def test_the_repetitions_of_a_sample_have_numbers_and_ranks_read_disjoint_positions():
    """A row is drawn by sample, epoch and copy, so the copies are augmented differently."""
    whole = make_sampler("full")
    rows = [(*whole.sample_at(k), whole.copy_at(k)) for k in range(2 * 100)]
    assert len(set(rows)) == len(rows)
    halves = [make_sampler("full", batch=5, rank=rank, size=2) for rank in (0, 1)]
    for step in range(20):
        parts = [
            (*half.sample_at(k), half.copy_at(k))
            for half in halves
            for k in range(5 * step, 5 * step + 5)
        ]
        assert parts == rows[10 * step : 10 * step + 10]
    late = make_sampler("full")  # a resumed run asks for late positions first
    assert (*late.sample_at(150), late.copy_at(150)) == rows[150]


def test_a_fraction_takes_a_part_of_every_class():
    chosen = choose_fraction(CLASSES, 0.25, seed=1)
    assert (np.diff(chosen) > 0).all()
    assert np.bincount(CLASSES[chosen][:, 1]).tolist() == [1, 2, 4, 18]
    np.testing.assert_array_equal(chosen, choose_fraction(CLASSES, 0.25, seed=1))
    assert not np.array_equal(chosen, choose_fraction(CLASSES, 0.25, seed=2))
    assert set(chosen) <= set(choose_fraction(CLASSES, 0.6, seed=1))
    assert np.bincount(CLASSES[choose_fraction(CLASSES, 1e-6, seed=1)][:, 1]).tolist() == [1] * 4
