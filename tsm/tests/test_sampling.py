"""Frame sampling against golden cases of the original."""

import json
from pathlib import Path

import numpy as np
import pytest

from tsm.sampling import expand_segments, sample_segment_offsets

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tsm_data.json").read_text())


def sample(split, n, t, length=1, **options):
    """The offsets of `sample_segment_offsets`."""
    return sample_segment_offsets(
        split, num_frames=n, segments=t, frames_per_segment=length, **options
    )


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


def test_a_video_without_frames_and_other_numbers_of_clips_are_refused():
    for split in ("train", "val", "test"):
        for dense in (False, True):
            with pytest.raises(ValueError, match="0 frames"):
                sample(split, 0, 8, dense=dense, rng=np.random.RandomState(0))
    for clips in (0, 3, -1):
        with pytest.raises(ValueError, match=r"eval\.clips"):
            sample("test", 100, 8, clips=clips)
