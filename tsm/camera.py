"""Frames of a camera."""

from collections.abc import Iterator

import numpy as np

from utils.video.libraries import load_library


def open_camera(number: int) -> tuple[float, Iterator[np.ndarray]]:
    """(frames per second, RGB frames) of a camera by OpenCV; the rate is 0 if unknown.

    Raises ValueError if the camera cannot be opened. Closing the iterator releases it.
    """
    cv2 = load_library("opencv")
    capture = cv2.VideoCapture(number)
    if not capture.isOpened():
        raise ValueError(f"camera {number} cannot be opened: none is there, or it is in use")

    def read_frames() -> Iterator[np.ndarray]:
        try:
            while (pixels := capture.read()[1]) is not None:
                yield pixels[:, :, ::-1]
        finally:
            capture.release()

    return float(capture.get(cv2.CAP_PROP_FPS)), read_frames()
