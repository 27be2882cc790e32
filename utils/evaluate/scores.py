"""Scores of videos: forward passes over all views of a batch, and the mean over the views.

MindSpore is imported only for a network that it computes.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

# Most clips in one forward pass of an evaluation on an accelerator, unless a batch has more videos.
# The host launches the 400 to 1,500 operators of a pass one by one; with few clips the device waits
# for the host. The limit keeps memory small: in simulated runs for Ascend 910B, 30 clips of X3D-L
# need 7.4 GB, 20 clips of MViTv2-B 13.2 GB.
CLIPS_PER_PASS = 32


def video_scores(net: Any, clips: np.ndarray, clips_per_pass: int = 0) -> np.ndarray:
    """Clips (N, V, T, C, H, W) to scores (N, classes), the mean over views (and frames, if any).

    `net` is a Cell, or a network of utils/export. One forward pass takes `clips_per_pass` of the
    N * V clips; 0 chooses by the device. An exported network of a fixed batch takes that many. The
    last pass is padded, so that all have one shape. MindSpore launches all passes before the scores
    are read, once. Returns float32, in which ranks exchange scores.

    Raises ValueError, with the file of the network, for scores that are NaN or infinite.
    """
    n, views = clips.shape[:2]
    size = getattr(net, "fixed_batch", 0) or clips_per_pass
    size = size or choose_clips_per_pass(n, views, device=get_device(net))
    flat = clips.reshape(n * views, *clips.shape[2:])
    parts = (pad_clips(flat[start : start + size], size) for start in range(0, len(flat), size))
    scores = compute_scores(net, parts)[: len(flat)].astype(np.float64)
    scores = scores.reshape(n, -1, scores.shape[-1])  # (N, V, classes) or (N, V * T, classes)
    means = scores.mean(axis=1).astype(np.float32)
    if not np.isfinite(means).all():
        count = n - np.isfinite(means).all(axis=1).sum()
        raise ValueError(
            f"{getattr(net, 'file', 'the network')} gives scores that are NaN or infinite, for "
            f"{count} of {n} videos; its weights are damaged, or its training has diverged"
        )
    return means


def compute_scores(net: Any, parts: Iterable[np.ndarray]) -> np.ndarray:
    """The scores of all `parts`, one after the other."""
    if get_engine(net) != "mindspore":
        return np.concatenate([net(part) for part in parts])
    from mindspore import Tensor, ops

    outputs = [net(Tensor(part)) for part in parts]
    return (outputs[0] if len(outputs) == 1 else ops.cat(outputs)).asnumpy()


def get_engine(net: Any) -> str:
    """What computes `net`: `mindspore`, or an engine of utils/export/engine.py."""
    return getattr(net, "engine", "mindspore")


def get_device(net: Any) -> str:
    """The device that computes `net`: CPU, GPU or Ascend."""
    if get_engine(net) != "mindspore":
        return "CPU"
    import mindspore as ms

    return ms.get_context("device_target")


def choose_clips_per_pass(videos: int, *views: int, device: str) -> int:
    """Clips in one forward pass over a batch of `videos`, with `views` of each data set.

    A CPU takes as many clips as videos: it computes no faster with more, and needs more memory. An
    accelerator takes all views of the batch, in the fewest equal passes of at most CLIPS_PER_PASS
    clips (or `videos` clips if that is more). Of several data sets, the smallest number of views
    decides for all, so that one graph is compiled. `device` is `get_device(net)`.
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
