"""Videos whose frames show their number, for tests of exact reading."""

from pathlib import Path
from typing import Union

import cv2
import numpy as np

from scripts.data.synthetic.motion_videos import write_video

# A white cell, ten binary digits, a black cell
GRID = (3, 4)
DIGITS = 10


def write_numbered_video(
    path: Union[str, Path], frames: int, width: int, height: int, rate: float, **options: str
) -> None:
    """Writes a video whose every frame shows its number, from 0, for read_number.

    `options` are those of write_video.
    """
    if frames > 1 << DIGITS:
        raise ValueError(f"{path}: {frames} frames, but numbers end at {(1 << DIGITS) - 1}")
    pictures = (_draw_number(number, width, height) for number in range(frames))
    write_video(path, pictures, rate, **options)


def _draw_number(number: int, width: int, height: int) -> np.ndarray:
    digits = [number >> position & 1 for position in range(DIGITS)]
    cells = np.array([1, *digits, 0], np.uint8).reshape(GRID) * 255
    gray = cv2.resize(cells, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.repeat(gray[..., None], 3, axis=2)


def read_number(frame: np.ndarray) -> int:
    """Reads the number of a frame (height, width[, channels]), resized or normalised.

    Raises:
        ValueError: the frame is a mixture of two, or shows no number.
    """
    gray = frame.astype(np.float32).reshape(*frame.shape[:2], -1).mean(axis=2)
    white, *digits, black = cv2.resize(gray, GRID[::-1], interpolation=cv2.INTER_AREA).ravel()
    levels = (np.array(digits) - black) / max(white - black, 1e-6)
    if white - black < 0.1 or np.any(np.abs(np.abs(levels - 0.5) - 0.5) > 0.3):
        raise ValueError("the frame shows no single number")
    return sum(1 << position for position, level in enumerate(levels) if level > 0.5)
