"""Frames in memory as a video, or one of them as an image."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from utils.video.reader import MAX_PIXELS, FrameReader, check_size


class ArrayFrames(FrameReader):
    """Frames uint8 (T, H, W, channels); an image also (H, W, channels). `fps` 0 is unknown.

    Raises ValueError for other arrays, and for a single frame that is not to be an image.
    """

    def __init__(
        self,
        frames: np.ndarray,
        fps: float = 0.0,
        channels: int = 3,
        is_image: bool = False,
        max_pixels: int = MAX_PIXELS,
    ):
        super().__init__(Path("the frames"), "NumPy")
        shape = frames.shape
        expected = f"({'' if is_image else 'T, '}H, W, {channels})"
        if frames.dtype != np.uint8:
            raise ValueError(f"frames must be uint8, values from 0 to 255, not {frames.dtype}")
        if not frames.size or frames.ndim not in (3, 4) or shape[-1] != channels:
            raise ValueError(f"frames must have the shape {expected}, channels last, not {shape}")
        count = 1 if frames.ndim == 3 else len(frames)
        if is_image != (count == 1):
            kind = "one image" if is_image else "a video"
            raise ValueError(f"the network takes {kind} {expected}, not {shape}")
        self.fps = float(fps)
        self._handle = frames[None] if frames.ndim == 3 else frames
        self._length = len(self._handle)
        check_size(frames.shape[-2], height=frames.shape[-3], max_pixels=max_pixels)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        return (self._handle[index] for index in indices)
