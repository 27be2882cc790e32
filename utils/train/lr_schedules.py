"""Learning-rate curves as numpy arrays: no framework, so a test can read them.

Every function returns float64 values, one per epoch or per update, whichever the caller counts in.
"""

from collections.abc import Sequence

import numpy as np


def steps(count: int, milestones: Sequence[float], factor: float = 0.1) -> np.ndarray:
    """`factor` to the power of the milestones reached, for i = 0 .. count - 1."""
    reached = (np.arange(count)[:, None] >= np.asarray(milestones, int)[None, :]).sum(axis=1)
    return np.power(float(factor), reached)


def cosine(count: int) -> np.ndarray:
    """(1 + cos(pi i / count)) / 2 for i = 0 .. count - 1."""
    return 0.5 * (1 + np.cos(np.pi * np.arange(count) / max(count, 1)))


def warmup(count: int, start: float, peak: float) -> np.ndarray:
    """Linear; the first value is one step above `start`, the last is `peak`."""
    return start + (peak - start) * (np.arange(count) + 1) / max(count, 1)


def peak_lr(lr: float, base_batch: int, effective_batch: int) -> float:
    """Linear scaling: `lr` belongs to `base_batch` samples per update; 0 means do not scale."""
    return lr * effective_batch / base_batch if base_batch else lr
