"""Sampling of packed lists: every sample appears, for any ranks, and shards are read in order."""

from itertools import combinations

import numpy as np
import pytest

from utils.data.annotation_file import Record
from utils.data.packed.reader import PackLocation
from utils.data.packed.sampler import WINDOW, PackedSampler, group_by_shard, storage_order
from utils.data.sampler import TrainSampler, shard_for_eval


def make_shards(samples: int, shards: int, offset: int = 0) -> list[np.ndarray]:
    """Shards of the samples from `offset` on, in random order."""
    shuffled = offset + np.random.RandomState(5).permutation(samples)
    return [shuffled[samples * k // shards : samples * (k + 1) // shards] for k in range(shards)]


def make_sampler(lists, batch=4, rank=0, size=1, accumulation_steps=1, seed=3) -> PackedSampler:
    samples = sum(len(shard) for shards in lists for shard in shards)
    group = batch * size * accumulation_steps
    return PackedSampler(
        samples, batch=batch, rank=rank, size=size, seed=seed, group=group, shards=lists
    )


def test_no_sample_repeats_in_an_epoch_and_all_appear_over_epochs():
    one = make_sampler([make_shards(103, 8)])
    union = set()
    assert one.samples_per_epoch == 12 * 8  # eight shards of 12 or 13
    for epoch in range(8):
        samples = one.epoch(epoch)
        assert len(set(samples)) == len(samples) == 96
        union |= set(samples.tolist())
    assert len(union) == 103
    assert (one.epoch(0) != one.epoch(1)).any()
    np.testing.assert_array_equal(one.epoch(1), make_sampler([make_shards(103, 8)]).epoch(1))
    assert (one.epoch(0) != make_sampler([make_shards(103, 8)], seed=4).epoch(0)).any()


@pytest.mark.parametrize(
    ("batch", "size", "accumulation_steps"), [(8, 1, 1), (4, 2, 1), (4, 1, 2), (1, 4, 2)]
)
def test_updates_have_the_same_samples_for_any_ranks(batch, size, accumulation_steps):
    lists = [make_shards(200, 8), make_shards(50, 4, offset=200)]
    expected = make_sampler(lists, batch=8).permutation(2).reshape(-1, 8)
    ranks = [
        make_sampler(
            lists, batch=batch, rank=rank, size=size, accumulation_steps=accumulation_steps
        )
        for rank in range(size)
    ]
    result = np.stack([r.epoch(2).reshape(-1, accumulation_steps, batch) for r in ranks], axis=2)
    np.testing.assert_array_equal(result.reshape(len(expected), 8), expected)


@pytest.mark.parametrize(("size", "accumulation_steps"), [(2, 1), (4, 1), (8, 1), (2, 4), (4, 2)])
def test_ranks_read_disjoint_shards(size, accumulation_steps):
    shards = make_shards(1000, 8)
    shard_of = {int(sample): k for k, shard in enumerate(shards) for sample in shard}
    ranks = [
        make_sampler([shards], batch=5, rank=rank, size=size, accumulation_steps=accumulation_steps)
        for rank in range(size)
    ]
    read = [{shard_of[int(sample)] for sample in sampler.epoch(1)} for sampler in ranks]
    assert all(a.isdisjoint(b) for a, b in combinations(read, 2))
    assert set.union(*read) == set(range(8))


def test_a_shard_is_read_in_order_within_a_small_window():
    """Every position of the batch moves forward in a shard; it may start in the middle."""
    shards = make_shards(6400, 8)
    position = {
        int(sample): (k, i) for k, shard in enumerate(shards) for i, sample in enumerate(shard)
    }
    streams = make_sampler([shards], batch=8).epoch(0).reshape(-1, 8).T
    for stream in streams:
        at = [position[int(sample)] for sample in stream]
        assert len({shard for shard, _ in at}) == 1
        steps = np.diff([i for _, i in at]) % 800  # the shard is read cyclically
        forward = np.minimum(steps, 800 - steps)
        assert forward.max() < 2 * WINDOW


def test_the_shuffle_is_about_as_good_as_a_full_permutation():
    """Counts pairs of samples that are in one batch in two successive epochs."""

    def count_repeats(sampler: TrainSampler) -> int:
        def pairs(epoch: int) -> set:
            batches = np.sort(sampler.epoch(epoch).reshape(-1, sampler.batch), axis=1)
            return {pair for batch in batches.tolist() for pair in combinations(batch, 2)}

        return len(pairs(0) & pairs(1))

    expected = count_repeats(TrainSampler(6400, batch=16, rank=0, size=1, seed=3))
    assert expected > 90
    for shards, times in ((4, 3), (16, 1.5), (32, 1.5)):
        assert count_repeats(make_sampler([make_shards(6400, shards)], batch=16)) < times * expected


def test_several_lists_are_mixed_in_every_part_of_an_epoch():
    lists = [make_shards(3000, 8), make_shards(1000, 4, offset=3000)]
    epoch = make_sampler(lists, batch=8).epoch(0)
    for part in np.array_split(epoch, 10):
        assert 0.17 < np.mean(part >= 3000) < 0.33


def test_too_few_packed_samples_are_an_error():
    with pytest.raises(
        ValueError, match=r"data\.batch: 8 packed samples do not fill one update of 16"
    ):
        make_sampler([make_shards(8, 2)], batch=16)


def make_records(*positions: tuple[str, int]) -> list[Record]:
    return [
        Record(
            "v",
            num_frames=None,
            label=0,
            line=1,
            location=PackLocation(shard, offset=offset, head=1, size=1, crc=0),
        )
        for shard, offset in positions
    ]


def test_samples_of_a_shard_have_stored_order_and_repeats_follow():
    rows = [("a/0", 50), ("a/1", 7), ("a/0", 10), ("b/0", 3)]
    lists = group_by_shard(make_records(*rows, *rows))
    assert [[shard.tolist() for shard in shards] for shards in lists] == [
        [[2, 0, 6, 4], [1, 5]],
        [[3, 7]],
    ]


def test_each_rank_evaluates_a_contiguous_part():
    listed = make_records(("0", 50), ("1", 7), ("0", 10), ("1", 3), ("2", 0))
    stored = storage_order(listed)
    assert stored == [2, 0, 3, 1, 4]
    parts = [
        shard_for_eval(5, batch=2, rank=rank, size=2, storage_order=stored) for rank in range(2)
    ]
    assert parts == [[2, 0, None, None], [3, 1, 4, None]]
    assert storage_order([Record("v", num_frames=None, label=0, line=1)]) == []


def test_a_list_smaller_than_an_update_is_sampled():
    lists = [make_shards(960, 8), make_shards(40, 2, offset=960)]
    one = make_sampler(lists, batch=64)
    assert one.samples_per_epoch == 960
    samples = [set(one.epoch(epoch).tolist()) for epoch in range(4)]
    assert all(len(epoch) == 960 for epoch in samples)
    assert all(len(epoch & set(range(960, 1000))) > 10 for epoch in samples)
