"""Scores of videos: forward passes over all views of a batch, and the mean over the views."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from utils.inference.scorer import Scorer

# Most clips in one forward pass of an evaluation on an accelerator, unless a batch has more videos.
# The host launches the 400 to 1,500 operators of a pass one by one; with few clips the device waits
# for the host. The limit keeps memory small: in simulated runs for Ascend 910B, 30 clips of X3D-L
# need 7.4 GB, 20 clips of MViTv2-B 13.2 GB.
CLIPS_PER_PASS = 32


def video_scores(scorer: "Scorer", clips: np.ndarray, clips_per_pass: int = 0) -> np.ndarray:
    """Clips (N, V, T, C, H, W) to scores (N, classes), the mean over views (and frames, if any).

    One forward pass takes `scorer.batch` of the N * V clips if that is fixed, else
    `clips_per_pass`; 0 chooses by the device. The last pass is padded, so that all have one shape.
    Returns float32, in which ranks exchange scores.

    Raises ValueError, with the file of the network, for scores that are NaN or infinite.
    """
    n, views = clips.shape[:2]
    size = scorer.batch or clips_per_pass
    size = size or choose_clips_per_pass(n, views, device=scorer.device)
    flat = clips.reshape(n * views, *clips.shape[2:])
    parts = (pad_clips(flat[start : start + size], size) for start in range(0, len(flat), size))
    scores = scorer.run_passes(parts)[: len(flat)].astype(np.float64)
    scores = scores.reshape(n, -1, scores.shape[-1])  # (N, V, classes) or (N, V * T, classes)
    means = scores.mean(axis=1).astype(np.float32)
    if not np.isfinite(means).all():
        count = n - np.isfinite(means).all(axis=1).sum()
        raise ValueError(
            f"{scorer.name} gives scores that are NaN or infinite, for "
            f"{count} of {n} videos; its weights are damaged, or its training has diverged"
        )
    return means


def choose_clips_per_pass(videos: int, *views: int, device: str) -> int:
    """Clips in one forward pass over a batch of `videos`, with `views` of each data set.

    A CPU takes as many clips as videos: it computes no faster with more, and needs more memory. An
    accelerator takes all views of the batch, in the fewest equal passes of at most CLIPS_PER_PASS
    clips (or `videos` clips if that is more). Of several data sets, the smallest number of views
    decides for all, so that one graph is compiled. `device` is that of the scorer.
    """
    if device == "CPU":
        return videos
    clips = videos * min(views)
    return math.ceil(clips / math.ceil(clips / max(videos, CLIPS_PER_PASS)))


def pad_clips(clips: np.ndarray, size: int) -> np.ndarray:
    """Clips (K, ...), K <= size, repeated to (size, ...); contiguous."""
    if len(clips) < size:
        return np.resize(clips, (size, *clips.shape[1:]))
    return np.ascontiguousarray(clips)
