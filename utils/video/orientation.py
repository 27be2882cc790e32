"""Turns and mirrors pictures as their files say: display matrices of videos, EXIF of images.

An `Orientation` is one of eight: a picture is first mirrored (left and right change places) or not,
and then turned by quarters, clockwise.
"""

import functools
import math
import struct
from typing import NamedTuple

import numpy as np


class Orientation(NamedTuple):
    mirrored: bool = False
    turns: int = 0  # quarters, clockwise, after mirroring

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """A view of the pixels (H, W, ...) as they are shown."""
        pixels = pixels[:, ::-1] if self.mirrored else pixels
        return np.rot90(pixels, -self.turns) if self.turns else pixels


UPRIGHT = Orientation()
# By the value of EXIF's tag 0x0112; any other value is upright.
EXIF_ORIENTATIONS = {
    2: Orientation(True, 0),
    3: Orientation(False, 2),
    4: Orientation(True, 2),
    5: Orientation(True, 3),
    6: Orientation(False, 1),
    7: Orientation(True, 1),
    8: Orientation(False, 3),
}


@functools.lru_cache(64)
def read_display_matrix(data: bytes) -> Orientation:
    """The orientation nearest to a display matrix, FFmpeg's nine 32-bit numbers.

    The matrix (a, b; c, d) takes x to (a, b) and y to (c, d), with y downwards. A turn is rounded
    to a quarter; a matrix that makes a line or a point of the picture is ignored.
    """
    if len(data) < 36:
        return UPRIGHT
    a, b, _, c, d, *_ = struct.unpack("=9i", data[:36])
    determinant = a * d - b * c
    if not determinant:
        return UPRIGHT
    mirrored = determinant < 0
    if mirrored:
        a = -a
        b = -b
    angle = math.atan2(b - c, a + d)
    return Orientation(mirrored, round(angle / (math.pi / 2)) % 4)
