"""A part of the frames of a clip that knows where it lies in them."""

from typing import NamedTuple

import numpy as np

from utils.video.decoders import Box


class Window(NamedTuple):
    """uint8 pixels (n, h, w, 3), the first of them at (x, y) of frames of `width` by `height`."""

    pixels: np.ndarray
    x: int
    y: int
    width: int
    height: int

    def cut(self, box: Box) -> "Window":
        """A box in pixels of the frame, without a copy."""
        x, y, width, height = box
        rows = slice(y - self.y, y - self.y + height)
        pixels = self.pixels[:, rows, x - self.x : x - self.x + width]
        return self._replace(pixels=pixels, x=x, y=y)


def whole(frames: np.ndarray) -> Window:
    return Window(frames, 0, 0, frames.shape[2], frames.shape[1])


def inside(left: float, top: float, right: float, bottom: float, width: int, height: int) -> Box:
    """The pixels of a frame that a rectangle touches, at least one."""
    x0, y0 = min(max(int(left), 0), width - 1), min(max(int(top), 0), height - 1)
    x1, y1 = min(int(np.ceil(right)), width), min(int(np.ceil(bottom)), height)
    return x0, y0, max(x1 - x0, 1), max(y1 - y0, 1)
