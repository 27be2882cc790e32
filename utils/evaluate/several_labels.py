"""Evaluation of samples with several labels: average precision, mAP, cross entropy.

The average precision of a class is the mean, over its videos, of the precision at the score of each
of them: sum over thresholds of (recall - recall before) * precision, as scikit-learn's
`average_precision_score` has it. Videos with equal scores share a threshold. mAP is the mean over
the classes with at least one video.
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np

THRESHOLD = 0.5  # of a probability: from it on a label counts as predicted


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Probabilities float64 of raw scores."""
    return np.exp(-np.logaddexp(0.0, -scores.astype(np.float64)))


def compute_average_precisions(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(classes,) of scores and targets, 1 or 0, (N, classes); NaN for a class without a video."""
    return np.array([compute_average_precision(*pair) for pair in zip(scores.T, targets.T > 0)])


def compute_average_precision(scores: np.ndarray, is_positive: np.ndarray) -> float:
    if not is_positive.any():
        return np.nan
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan))  # the last video of each threshold
    hits = np.cumsum(is_positive[order])[ends]
    precision = hits / (ends + 1)
    return float((np.diff(hits, prepend=0) * precision).sum() / hits[-1])


def compute_binary_losses(scores: np.ndarray, targets: np.ndarray, raw_scores: bool) -> np.ndarray:
    """The sigmoid cross entropies float64 (N, classes)."""
    scores = scores.astype(np.float64)
    if raw_scores:
        return np.logaddexp(0.0, scores) - targets * scores
    smallest = float(np.finfo(np.float32).tiny)
    inverse = np.maximum(1 - scores, smallest)
    return -np.where(targets > 0, np.log(np.maximum(scores, smallest)), np.log(inverse))


def compute_metrics(
    scores: np.ndarray, targets: np.ndarray, raw_scores: bool
) -> dict[str, Optional[float]]:
    """The metrics of videos: scores and targets (N, classes).

    `top1` is the fraction of the videos with a label whose highest score belongs to one of their
    labels; `unlabelled` counts the others.
    """
    videos = len(scores)
    if not videos:
        return {"map": 0.0, "classes": 0, "top1": 0.0, "loss": 0.0, "videos": 0, "unlabelled": 0}
    precisions = compute_average_precisions(scores, targets)
    classes = int(np.isfinite(precisions).sum())
    hits = np.take_along_axis(targets, scores.argmax(1)[:, None], 1)
    labelled = int((targets.max(1) > 0).sum())
    return {
        "map": round(float(np.nanmean(precisions)), 6) if classes else 0.0,
        "classes": classes,
        "top1": round(float(hits.sum()) / max(labelled, 1), 6),
        "loss": round(float(compute_binary_losses(scores, targets, raw_scores).mean()), 5),
        "videos": videos,
        "unlabelled": videos - labelled,
    }


def list_label_sets(targets: np.ndarray) -> list[tuple[int, ...]]:
    """The labels of each video, of targets (N, classes)."""
    return [tuple(np.flatnonzero(row).tolist()) for row in targets]


def encode_label_sets(labels: Sequence[tuple[int, ...]], classes: int) -> np.ndarray:
    """The inverse of `list_label_sets`: bool (N, classes)."""
    targets = np.zeros((len(labels), classes), bool)
    for row, numbers in zip(targets, labels):
        row[list(numbers)] = True
    return targets
