"""Synthetic videos: classes that differ only in frame order; a set that is completed."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.data.synthetic import motion_videos
from scripts.data.synthetic.motion_videos import MOTIONS, draw_clip, draw_dataset

OPPOSITES = list(zip(MOTIONS[::2], MOTIONS[1::2]))


SET = {"train_per_motion": 3, "test_per_motion": 1, "seed": 5}


def draw_motion(motion: str, seed: int, frames: int = 9, side: int = 48) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return draw_clip(motion, rng=rng, width=side, height=side, frames=frames)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("drawn")
    assert draw_dataset(root, **SET) == {"train": 24, "test": 8, "drawn": 32}
    return root


# The mean of the last frame, and of its pixels times their columns
LAST_FRAMES = {"left": (75.115, 2718.12), "grow": (74.381, 2851.44), "clockwise": (66.148, 2509.31)}


@pytest.mark.parametrize("motion", LAST_FRAMES)
def test_a_seed_gives_the_pixels_of_all_earlier_versions(motion):
    """Accuracies in guides and tests are those of these pixels."""
    seed = (0, 0, MOTIONS.index(motion))
    clip = draw_clip(motion, rng=np.random.default_rng(seed), width=72, height=60, frames=5)
    mean, moment = LAST_FRAMES[motion]
    assert clip[4].mean() == pytest.approx(mean, abs=0.02)
    columns = np.arange(72)[None, :, None]
    assert (clip[4] * columns).mean() == pytest.approx(moment, abs=1)


@pytest.mark.parametrize(("motion", "opposite"), OPPOSITES)
def test_a_reversed_clip_equals_the_opposite_motion_exactly(motion, opposite):
    for seed in range(5):
        for frames in (12, 13):
            clip = draw_motion(motion, seed, frames)
            np.testing.assert_array_equal(clip[::-1], draw_motion(opposite, seed, frames))
            assert not np.array_equal(clip, clip[::-1])


def read_list(root: Path, split: str) -> list[tuple[str, int]]:
    lines = (line.split() for line in (root / f"{split}.txt").read_text().splitlines())
    return [(path, int(label)) for path, label in lines]


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(f.relative_to(root)): (f.stat().st_mtime_ns, f.read_bytes()) for f in files}


def test_a_set_is_completed_to_the_same_bytes(dataset, monkeypatch):
    """A second call writes nothing; a smaller set is a shorter list."""
    before = snapshot(dataset)
    lost = ["test.txt", "videos/train/up_002.mp4", "videos/test/grow_000.mp4"]
    for name in lost:
        (dataset / name).unlink()
    (dataset / "recipe.json").write_text(json.dumps({"edition": 1, "seed": 5}))
    assert draw_dataset(dataset, **SET)["drawn"] == 2
    after = snapshot(dataset)
    assert after.keys() == before.keys()
    assert all(after[name][1] == before[name][1] for name in before)
    kept = [name for name in before if name.endswith(".mp4") and name not in lost]
    assert all(after[name] == before[name] for name in kept), "a finished video was written again"
    monkeypatch.setattr(motion_videos, "start_process_pool", None)
    assert draw_dataset(dataset, **SET)["drawn"] == 0
    assert snapshot(dataset) == after
    full = read_list(dataset, "train")
    assert draw_dataset(dataset, **{**SET, "train_per_motion": 2})["drawn"] == 0
    assert read_list(dataset, "train") == full[:16]
    assert draw_dataset(dataset, **SET)["drawn"] == 0
    assert read_list(dataset, "train") == full


def test_folders_with_other_videos_are_not_changed(dataset, tmp_path):
    with pytest.raises(ValueError, match="drawn with.*'seed': 5"):
        draw_dataset(dataset, **{**SET, "seed": 6})
    (tmp_path / "labels.txt").touch()
    with pytest.raises(ValueError, match=str(tmp_path)):
        draw_dataset(tmp_path, 1, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.txt"]
