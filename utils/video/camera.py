"""Frames from a camera, by OpenCV."""

from collections.abc import Iterator

import cv2
import numpy as np


def camera_frames(number: int) -> tuple[float, Iterator[np.ndarray]]:
    """Frames a second (0 where the camera does not say), and the frames RGB as they come.

    Raises ValueError where there is no such camera; closing the iterator frees it.
    """
    capture = cv2.VideoCapture(number)
    if not capture.isOpened():
        raise ValueError(f"camera {number} cannot be opened: none is there, or it is in use")
    return float(capture.get(cv2.CAP_PROP_FPS)), _captured(capture)


def _captured(capture) -> Iterator[np.ndarray]:
    try:
        while True:
            result, pixels = capture.read()
            if not result:
                return
            yield pixels[:, :, ::-1]
    finally:
        capture.release()
