"""Frame sampling: golden cases of the original, and properties for videos of any length."""

import json
from pathlib import Path

import numpy as np
import pytest

from tsm.sampling import expand_segments, sample_segment_offsets

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tsm_data.json").read_text())
LENGTHS = [*range(1, 80), 127, 128, 129, 300, 1000]


def sample(split, n, t, length=1, **options):
    """The offsets of `sample_segment_offsets`."""
    return sample_segment_offsets(
        split, num_frames=n, segments=t, frames_per_segment=length, **options
    )


def sample_uniform(n, t, length):
    """Offsets of the uniform samplers that use no random numbers, by name."""
    return {
        "val": sample("val", n, t, length, dense=False),
        "test": sample("test", n, t, length),
        "twice": sample("test", n, t, length, dense=False, clips=2),
    }


@pytest.mark.parametrize(
    "case", GOLDEN["sampling"], ids=lambda c: f"{c['mode']}-{c['num_frames']}-{c['num_segments']}"
)
def test_offsets_equal_the_originals(case):
    rng = np.random.RandomState(case.get("numpy_seed"))
    split, _, mode = case["mode"].partition("_")
    sizes = case["num_frames"], case["num_segments"], case["new_length"]
    clips = {"test_dense": 10, "test_twice": 2}.get(case["mode"], 1)
    offsets = sample(split, *sizes, dense=mode == "dense", clips=clips, rng=rng)
    assert (offsets + 1).tolist() == case["indices"]


@pytest.mark.parametrize("case", GOLDEN["frames_read"])
def test_frames_read_equal_the_originals(case):
    offsets = np.array(case["indices"]) - 1
    read = expand_segments(offsets, case["num_frames"], case["new_length"])
    assert (read + 1).tolist() == case["frames_read"]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("t", [1, 3, 8, 16])
def test_offsets_lie_in_the_video_and_ascend(t, length):
    rng = np.random.RandomState(0)
    for n in LENGTHS:
        clips = sample_uniform(n, t, length)
        clips["train"] = sample("train", n, t, length, dense=False, rng=rng)
        for name, offsets in clips.items():
            assert offsets.dtype == np.int64
            assert offsets.shape == (2 * t if name == "twice" else t,)
            assert (np.diff(offsets.reshape(-1, t)) >= 0).all()
            assert offsets.min() >= 0
            assert offsets.max() <= max(0, n - length)


@pytest.mark.parametrize("t", [1, 8, 16, 64])
def test_dense_offsets_are_evenly_spaced_around_the_video(t):
    rng = np.random.RandomState(0)
    for n in LENGTHS:
        for offsets in (
            sample("train", n, t, dense=True, rng=rng),
            sample("val", n, t, dense=True, rng=rng),
            *sample("test", n, t, dense=True, clips=3).reshape(3, t),
        ):
            assert offsets.shape == (t,)
            assert ((offsets >= 0) & (offsets < n)).all()
            assert (np.diff(offsets) % n == 64 // t % n).all()
            if n >= 64:
                assert offsets[-1] - offsets[0] < 64


def test_training_samples_each_interval_uniformly():
    rng = np.random.RandomState(0)
    counts = np.zeros((8, 6), int)
    for _ in range(6000):
        offsets = sample("train", 50, 8, dense=False, rng=rng)
        counts[np.arange(8), offsets - 6 * np.arange(8)] += 1
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize(("n", "length", "dense"), [(10, 5, False), (70, 1, True)])
def test_training_starts_everywhere_but_in_dense_mode_at_the_last_start(n, length, dense):
    rng = np.random.RandomState(0)
    draws = [sample("train", n, 8, length, dense=dense, rng=rng) for _ in range(500)]
    starts = {offsets[0] for offsets in draws} if dense else set(np.concatenate(draws))
    assert starts == set(range(6))
    assert dense or len(set(map(tuple, draws))) > 100


def test_validation_uses_the_first_frame_of_a_short_video_but_testing_does_not():
    for n, length in ((8, 1), (12, 5)):
        offsets = sample_uniform(n, 8, length)
        assert offsets["val"].tolist() == [0] * 8
        assert offsets["test"].tolist() == list(range(8))
        assert len(set(sample_uniform(n + 1, 8, length)["val"])) > 1


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_video_shorter_than_a_segment_starts_at_frame_0(n):
    rng = np.random.RandomState(0)
    for t in (1, 2, 8):
        for offsets in (
            *sample_uniform(n, t, 5).values(),
            sample("train", n, t, 5, dense=False, rng=rng),
        ):
            assert not offsets.any()


@pytest.mark.parametrize("clips", [1, 2, 7, 10])
def test_dense_clips_cover_the_first_to_the_last_start(clips):
    starts = sample("test", 300, 8, dense=True, clips=clips).reshape(clips, 8)[:, 0]
    assert starts[0] == 0
    if clips > 1:
        assert starts[-1] == 300 - 64
        assert np.ptp(np.diff(starts)) <= 1


def test_a_video_without_frames_and_other_numbers_of_clips_are_refused():
    for split in ("train", "val", "test"):
        for dense in (False, True):
            with pytest.raises(ValueError, match="0 frames"):
                sample(split, 0, 8, dense=dense, rng=np.random.RandomState(0))
    for clips in (0, 3, -1):
        with pytest.raises(ValueError, match=r"eval\.clips"):
            sample("test", 100, 8, clips=clips)
