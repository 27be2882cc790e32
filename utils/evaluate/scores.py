"""Scores of videos: forward passes over all views of a batch, and the mean over the views."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from utils.evaluate.scorer import Scorer

# Most clips in one forward pass of an evaluation on an accelerator, unless a batch has more videos.
# The host launches the 400 to 1,500 operators of a pass one by one; with few clips the device waits
# for the host. The limit keeps memory small: in simulated runs for Ascend 910B, 30 clips of X3D-L
# need 7.4 GB, 20 clips of MViTv2-B 13.2 GB.
CLIPS_PER_PASS = 32
# Most numbers of the input of a pass on a CPU, or one clip: two clips of X3D-S or TSM. With more of
# them X3D and MViT are slower, because the maps leave the caches (docs/measured/benchmarks.md).
NUMBERS_PER_PASS = 2_600_000


def video_scores(
    scorer: "Scorer", clips: np.ndarray, clips_per_pass: int = 0, columns: slice = slice(None)
) -> np.ndarray:
    """Clips (N, V, T, C, H, W) to scores (N, classes), the mean over views (and frames, if any).

    `columns` are the classes of one data set among those of all heads.

    One forward pass takes `scorer.batch` of the N * V clips if that is fixed, else
    `clips_per_pass`; 0 chooses by the device. The last pass is padded, so that all have one shape.
    Returns float32, in which ranks exchange scores.

    Raises ValueError, with the file of the network, for scores that are NaN or infinite, or if the
    file has no classifier.
    """
    if not scorer.has_classifier:
        raise ValueError(
            f"{scorer.name} has no classifier, so it gives features and no predictions; a training "
            "with train.new_head=true adds one"
        )
    n, views = clips.shape[:2]
    size = clips_per_pass or choose_clips_per_pass(
        n, views, device=scorer.device, clip=clips.shape[2:]
    )
    flat = clips.reshape(n * views, *clips.shape[2:])
    scores = scorer.run_passes(cut_passes(scorer, flat, size))[: len(flat), ..., columns]
    scores = scores.astype(np.float64)
    scores = scores.reshape(n, -1, scores.shape[-1])  # (N, V, classes) or (N, V * T, classes)
    means = scores.mean(axis=1).astype(np.float32)
    check_finite(scorer, means, "scores")
    return means


def view_features(scorer: "Scorer", views: np.ndarray, clips_per_pass: int = 0) -> np.ndarray:
    """The views (V, ...) of one video to features float32 (V, C).

    `clips_per_pass` is as in `video_scores`. Raises ValueError for features that are NaN or
    infinite, or if the network is in a file without features.
    """
    size = clips_per_pass or choose_clips_per_pass(1, len(views), device=scorer.device)
    features = [scorer.features(clips) for clips in cut_passes(scorer, views, size)]
    values = np.concatenate(features)[: len(views)]
    check_finite(scorer, values.reshape(1, -1), "features")
    return values


def cut_passes(scorer: "Scorer", clips: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The clips of each pass: `scorer.batch` if that is fixed, else `size`; the last is padded."""
    size = scorer.batch or size
    for start in range(0, len(clips), size):
        part = clips[start : start + size]
        if len(part) < size:
            part = np.resize(part, (size, *part.shape[1:]))  # repeats its clips
        yield np.ascontiguousarray(part)


def check_finite(scorer: "Scorer", values: np.ndarray, what: str) -> None:
    """Raises ValueError, with the file of the network, for videos (N, ...) with bad numbers."""
    if not np.isfinite(values).all():
        count = len(values) - np.isfinite(values).all(axis=1).sum()
        raise ValueError(
            f"{scorer.name} gives {what} that are NaN or infinite, for {count} of "
            f"{len(values)} videos; its weights are damaged, or its training has diverged"
        )


def choose_clips_per_pass(videos: int, *views: int, device: str, clip: tuple[int, ...] = ()) -> int:
    """Clips in one forward pass over a batch of `videos`, with `views` of each data set.

    A CPU takes as many clips as videos, but not more than NUMBERS_PER_PASS allows for the shape
    `clip`: it computes no faster with more, and needs more memory. An accelerator takes all views
    of the batch, in the fewest equal passes of at most CLIPS_PER_PASS clips (or `videos` clips if
    that is more). Of several data sets, the smallest number of views decides for all, so that one
    graph is compiled. `device` is that of the scorer.
    """
    if device == "CPU":
        return max(1, min(videos, NUMBERS_PER_PASS // math.prod(clip)))
    clips = videos * min(views)
    return math.ceil(clips / math.ceil(clips / max(videos, CLIPS_PER_PASS)))
