"""Which frames of a video become a clip (arXiv:1811.08383).

Everything counts from 0; the source implementation adds 1, as its JPEG files are numbered from 1.
n is the number of frames of a video, T that of segments, and a segment reads L consecutive frames.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b. Departures: a video shorter than L
frames gives offset 0 throughout, where the source asks for frames before the first or stops; dense
test sampling takes any number of clips, not 10 only.
"""

from typing import Optional

import numpy as np

WINDOW = 64  # frames that a dense clip spans


def sample(
    split: str,
    num_frames: int,
    segments: int,
    new_length: int = 1,
    dense: bool = False,
    clips: int = 1,
    rng: Optional[np.random.RandomState] = None,
) -> np.ndarray:
    """Chooses the first frame of every segment.

    `split` is "train", "val" or "test". "train" and dense "val" draw from `rng`; "test" takes
    `clips`: 1 or 2 when uniform, any number when dense. Returns int64 (clips * T,), clip after
    clip. Raises ValueError for a video without frames, or clips that the split has not got.
    """
    if num_frames < 1:
        raise ValueError(f"a video of {num_frames} frames has nothing to sample")
    if clips < 1 or (clips > 1 and split != "test") or (clips > 2 and not dense):
        how = "dense" if dense else "uniform"
        raise ValueError(f"eval.clips is {clips}, which {how} {split} sampling does not offer")
    if dense and split == "test":
        return test_dense(num_frames, segments, clips)
    if dense:
        return train_dense(num_frames, segments, rng)
    if split == "train":
        return train_uniform(num_frames, segments, new_length, rng)
    if split == "val":
        return val_uniform(num_frames, segments, new_length)
    return (test_uniform, test_twice)[clips - 1](num_frames, segments, new_length)


def train_uniform(
    num_frames: int, segments: int, new_length: int, rng: np.random.RandomState
) -> np.ndarray:
    """One random frame from each of T equal stretches; frames past the last stretch are unused."""
    starts = num_frames - new_length + 1
    stretch = starts // segments
    if stretch > 0:
        return np.arange(segments) * stretch + rng.randint(stretch, size=segments)
    if num_frames > segments and starts > 0:
        return np.sort(rng.randint(starts, size=segments))
    return np.zeros(segments, np.int64)


def val_uniform(num_frames: int, segments: int, new_length: int) -> np.ndarray:
    """The middle of each of T stretches; a video of T + L - 1 frames or fewer gives frame 0."""
    if num_frames <= segments + new_length - 1:
        return np.zeros(segments, np.int64)
    return test_uniform(num_frames, segments, new_length)


def test_uniform(num_frames: int, segments: int, new_length: int) -> np.ndarray:
    """The middle of each of T stretches; short videos repeat frames."""
    return _spread(num_frames, segments, new_length, 0.5)


def test_twice(num_frames: int, segments: int, new_length: int) -> np.ndarray:
    """Two clips (2 T,): the middles of the T stretches, then their beginnings."""
    middles = test_uniform(num_frames, segments, new_length)
    return np.concatenate((middles, _spread(num_frames, segments, new_length, 0.0)))


def train_dense(num_frames: int, segments: int, rng: np.random.RandomState) -> np.ndarray:
    """A window at a random place, the same in validation; short videos start over.

    The last place, n - 64, is never drawn: the source excludes the upper bound twice.
    """
    places = max(1, 1 + num_frames - WINDOW)
    start = 0 if places == 1 else rng.randint(0, places - 1)
    return _window(start, num_frames, segments)


def test_dense(num_frames: int, segments: int, clips: int) -> np.ndarray:
    """Windows spread from the first place to the last (clips * T,); the source takes 10."""
    places = max(1, 1 + num_frames - WINDOW)
    starts = np.linspace(0, places - 1, clips, dtype=np.int64)
    return np.concatenate([_window(start, num_frames, segments) for start in starts])


def frames_read(offsets: np.ndarray, num_frames: int, new_length: int) -> np.ndarray:
    """The L consecutive frames from every offset on (len(offsets) * L,).

    Past the end of the video its last frame is repeated.
    """
    return np.minimum(offsets[:, None] + np.arange(new_length), num_frames - 1).reshape(-1)


def _spread(num_frames: int, segments: int, new_length: int, phase: float) -> np.ndarray:
    tick = max(0, num_frames - new_length + 1) / segments
    # Multiplied out as the source does, because rounding decides between neighbouring frames.
    return (tick * phase + tick * np.arange(segments)).astype(np.int64)


def _window(start: int, num_frames: int, segments: int) -> np.ndarray:
    return (start + np.arange(segments) * (WINDOW // segments)) % num_frames
