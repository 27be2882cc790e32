"""Frame sampling of TSM: the frames of a video that form a clip (arXiv:1811.08383).

All indices count from 0; the source implementation adds 1, because its JPEG files are numbered
from 1. n is the number of frames of a video and T the number of segments. A segment reads L
consecutive frames.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b.
Differences from the source: in uniform sampling a video shorter than L frames gives offset 0 for
all segments, while the source asks for frames before the first or stops; dense test sampling takes
any number of clips, not only 10.
"""

from typing import Optional

import numpy as np

WINDOW = 64  # frames that a clip of dense sampling spans


def sample_segment_offsets(
    split: str,
    num_frames: int,
    segments: int,
    frames_per_segment: int = 1,
    dense: bool = False,
    clips: int = 1,
    rng: Optional[np.random.RandomState] = None,
) -> np.ndarray:
    """Chooses the first frame of every segment.

    `split` is "train", "val" or "test". "train" and dense "val" draw from `rng`. "test" takes
    `clips`: 1 or 2 if uniform, any number if dense. Uniform "val" is one clip of "test", but frame
    0 only of a video of at most T + L - 1 frames, as in the source. Returns int64 (clips * T,),
    clip after clip. Raises ValueError for a video without frames or a number of clips that the
    split does not offer.
    """
    if num_frames < 1:
        raise ValueError(f"a video of {num_frames} frames has nothing to sample")
    if clips < 1 or (clips > 1 and split != "test") or (clips > 2 and not dense):
        how = "dense" if dense else "uniform"
        raise ValueError(f"eval.clips is {clips}, which {how} {split} sampling does not offer")
    if dense and split == "test":
        return sample_test_dense(num_frames, segments, clips)
    if dense:
        return sample_train_dense(num_frames, segments, rng)
    if split == "train":
        return sample_train_uniform(
            num_frames, segments=segments, frames_per_segment=frames_per_segment, rng=rng
        )
    if split == "val" and num_frames <= segments + frames_per_segment - 1:
        return np.zeros(segments, np.int64)
    return sample_test_uniform(
        num_frames, segments=segments, frames_per_segment=frames_per_segment, clips=clips
    )


def sample_train_uniform(
    num_frames: int, segments: int, frames_per_segment: int, rng: np.random.RandomState
) -> np.ndarray:
    """One random frame from each of T equal intervals; the remaining frames are unused.

    With fewer than T places for L frames: sorted random places if n > T, else frame 0 only.
    """
    start_count = num_frames - frames_per_segment + 1
    interval = start_count // segments
    if interval > 0:
        return np.arange(segments) * interval + rng.randint(interval, size=segments)
    if num_frames > segments and start_count > 0:
        return np.sort(rng.randint(start_count, size=segments))
    return np.zeros(segments, np.int64)


def sample_test_uniform(
    num_frames: int, segments: int, frames_per_segment: int, clips: int = 1
) -> np.ndarray:
    """The middle of each of T intervals, and in a second clip its beginning; also for "val".

    Short videos repeat frames.
    """
    interval = max(0, num_frames - frames_per_segment + 1) / segments
    # The same order of operations as in the source: rounding decides between neighbouring frames.
    starts = [interval * phase + interval * np.arange(segments) for phase in (0.5, 0.0)[:clips]]
    return np.concatenate(starts).astype(np.int64)


def sample_train_dense(num_frames: int, segments: int, rng: np.random.RandomState) -> np.ndarray:
    """A window with a random start, also in validation; short videos wrap around.

    The last start, n - 64, is never drawn, because the source excludes the upper bound twice.
    """
    start_count = max(1, 1 + num_frames - WINDOW)
    start = 0 if start_count == 1 else rng.randint(0, start_count - 1)
    return _window_offsets(start, num_frames, segments)


def sample_test_dense(num_frames: int, segments: int, clips: int) -> np.ndarray:
    """Windows whose starts are spread evenly (clips * T,); the source takes 10."""
    last_start = max(0, num_frames - WINDOW)
    starts = np.linspace(0, last_start, clips, dtype=np.int64)
    return np.concatenate([_window_offsets(start, num_frames, segments) for start in starts])


def expand_segments(offsets: np.ndarray, num_frames: int, frames_per_segment: int) -> np.ndarray:
    """The L consecutive frame indices of every segment (len(offsets) * L,).

    After the end of the video the last frame is repeated.
    """
    return np.minimum(offsets[:, None] + np.arange(frames_per_segment), num_frames - 1).reshape(-1)


def _window_offsets(start: int, num_frames: int, segments: int) -> np.ndarray:
    """T offsets at equal distances in the window from `start` on; wraps around at the end."""
    return (start + np.arange(segments) * (WINDOW // segments)) % num_frames
