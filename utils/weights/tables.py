"""Tables whose rows stand for places along an axis."""

import numpy as np


def resize_table(table: np.ndarray, wanted: int) -> np.ndarray:
    """(rows, columns) -> (wanted, columns) float32: linear interpolation, half-pixel centres.

    PyTorch's `interpolate` with mode linear; equal where the lengths are.
    """
    place = np.maximum((np.arange(wanted) + 0.5) * len(table) / wanted - 0.5, 0)
    low = np.floor(place).astype(np.int64)
    high, part = np.minimum(low + 1, len(table) - 1), (place - low)[:, None]
    return (table[low] * (1 - part) + table[high] * part).astype(np.float32)


def resize_rows(length: int, wanted: int) -> np.ndarray:
    """(wanted, length) float32: the matrix that resizes a table of `length` rows."""
    return resize_table(np.eye(length), wanted)
