"""Whether a network is right as often as it says: confidence against accuracy, in bins."""

import numpy as np

BINS = 15
ROW = [("from", float), ("to", float), ("videos", int), ("confidence", float), ("accuracy", float)]


def bins(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(BINS,) rows of equal parts of (0, 1]: how many videos, their mean confidence and accuracy.

    `confidence` (n,) is the probability of what was predicted, `right` (n,) whether it was true.
    An empty bin has zeros.
    """
    which = np.clip(np.ceil(np.nan_to_num(confidence) * BINS).astype(int) - 1, 0, BINS - 1)
    table = np.zeros(BINS, ROW)
    table["from"], table["to"] = np.arange(BINS) / BINS, np.arange(1, BINS + 1) / BINS
    table["videos"] = np.bincount(which, minlength=BINS)
    videos = np.maximum(table["videos"], 1)
    table["confidence"] = np.bincount(which, confidence, BINS) / videos
    table["accuracy"] = np.bincount(which, right, BINS) / videos
    return table


def expected_error(table: np.ndarray) -> float:
    """The mean over videos of the distance between confidence and accuracy of their bin."""
    gaps = np.abs(table["confidence"] - table["accuracy"])
    return float((gaps * table["videos"]).sum() / max(table["videos"].sum(), 1))
