"""Frame sampling of TSM: the frames of a video that form a clip (arXiv:1811.08383).

All indices count from 0; the source implementation adds 1, because its JPEG files are numbered
from 1. n is the number of frames of a video and T the number of segments. A segment reads L
consecutive frames.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b.
Differences from the source: in uniform sampling a video shorter than L frames gives offset 0 for
all segments, while the source asks for frames before the first or stops; dense test sampling takes
any number of clips, not only 10.
"""

from typing import Any

import numpy as np

WINDOW = 64  # frames that a clip of dense sampling spans


def sample_segment_offsets(
    split: str,
    num_frames: int,
    segments: int,
    frames_per_segment: int = 1,
    dense: bool = False,
    clips: int = 1,
    rng: Any = None,
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
    if dense:
        # Windows of 64 frames, whose starts are spread evenly in a test; the source takes 10. Else
        # one random window: the last start, n - 64, is never drawn, because the source excludes the
        # upper bound twice. Short videos wrap around.
        last_start = max(0, num_frames - WINDOW)
        if split == "test":
            starts = np.linspace(0, last_start, clips, dtype=np.int64)
        else:
            starts = [rng.randint(0, last_start) if last_start else 0]
        inside = np.arange(segments) * (WINDOW // segments)
        return np.concatenate([(start + inside) % num_frames for start in starts])
    start_count = num_frames - frames_per_segment + 1
    if split == "train":
        # One random frame from each of T equal intervals; the remaining frames are unused. With
        # fewer than T places for L frames: sorted random places if n > T, else frame 0 only.
        interval = start_count // segments
        if interval > 0:
            return np.arange(segments) * interval + rng.randint(interval, size=segments)
        if num_frames > segments and start_count > 0:
            return np.sort(rng.randint(start_count, size=segments))
        return np.zeros(segments, np.int64)
    if split == "val" and num_frames <= segments + frames_per_segment - 1:
        return np.zeros(segments, np.int64)
    # The middle of each of T intervals, and in a second clip its beginning. Short videos repeat
    # frames. The same order of operations as in the source: rounding decides between neighbours.
    width = max(0, start_count) / segments
    clip_starts = [width * phase + width * np.arange(segments) for phase in (0.5, 0.0)[:clips]]
    return np.concatenate(clip_starts).astype(np.int64)


def expand_segments(offsets: np.ndarray, num_frames: int, frames_per_segment: int) -> np.ndarray:
    """The L consecutive frame indices of every segment (len(offsets) * L,).

    After the end of the video the last frame is repeated.
    """
    return np.minimum(offsets[:, None] + np.arange(frames_per_segment), num_frames - 1).reshape(-1)
