"""A crop of the frames of a clip that keeps its position in the full frame."""

from typing import NamedTuple

import numpy as np

from utils.video.decoders import Box


class CropRegion(NamedTuple):
    """uint8 pixels (n, h, w, 3) of frames of `width` by `height` pixels.

    The upper left pixel of the region is at (x, y) of the full frame.
    """

    pixels: np.ndarray
    x: int
    y: int
    width: int
    height: int

    def cut(self, box: Box) -> "CropRegion":
        """Cuts out a box, given in pixels of the full frame, without a copy."""
        x, y, width, height = box
        rows = slice(y - self.y, y - self.y + height)
        pixels = self.pixels[:, rows, x - self.x : x - self.x + width]
        return self._replace(pixels=pixels, x=x, y=y)


def full_frame(frames: np.ndarray) -> CropRegion:
    """The region of all pixels of the frames (n, H, W, 3)."""
    return CropRegion(frames, 0, 0, frames.shape[2], frames.shape[1])


def clip_to_frame(
    left: float, top: float, right: float, bottom: float, width: int, height: int
) -> Box:
    """The box of all pixels of a frame that a rectangle overlaps, at least one pixel."""
    x0, y0 = min(max(int(left), 0), width - 1), min(max(int(top), 0), height - 1)
    x1, y1 = min(int(np.ceil(right)), width), min(int(np.ceil(bottom)), height)
    return x0, y0, max(x1 - x0, 1), max(y1 - y0, 1)
