"""Decoding of images, and the evaluation's look at one: short side to a size, then the centre.

PIL's antialiased bilinear filter, as torchvision resizes; OpenCV's would give other pixels.
"""

import numpy as np
from PIL import Image

from utils.video.decoders import read_image, read_jpeg

# The colour of what stands for an image that cannot be decoded; crops, sizes and flips keep it.
BLANK = np.array([3, 252, 5], np.uint8)


def center_view(image: np.ndarray, resize: int, crop: int) -> np.ndarray:
    """What a reader gives to uint8 (3, crop, crop)."""
    return centered(full_or_blank(image), resize, crop)


def centered(image: np.ndarray, resize: int, crop: int) -> np.ndarray:
    """uint8 (H, W, 3) to uint8 (3, crop, crop)."""
    height, width = image.shape[:2]
    scaled_w, scaled_h, x, y = placement(width, height, resize, crop)
    if (scaled_w, scaled_h) != (width, height):
        resized = Image.fromarray(image).resize((scaled_w, scaled_h), Image.Resampling.BILINEAR)
        image = np.asarray(resized)
    return np.ascontiguousarray(image[y : y + crop, x : x + crop].transpose(2, 0, 1))


def placement(width: int, height: int, resize: int, crop: int) -> tuple[int, int, int, int]:
    """Scaled width and height, then the corner of the crop; halves are rounded to even."""
    short = min(width, height)
    scaled_w, scaled_h = int(resize * width / short), int(resize * height / short)
    return scaled_w, scaled_h, round((scaled_w - crop) / 2), round((scaled_h - crop) / 2)


def full_view(image: np.ndarray) -> np.ndarray:
    """What a reader gives, encoded or not, as uint8 (H, W, 3); RuntimeError as in `decode`."""
    return decode(image) if image.ndim == 1 else image


def full_or_blank(image: np.ndarray) -> np.ndarray:
    """As `full_view`; a small image of the colour BLANK where it cannot be decoded."""
    try:
        return full_view(image)
    except RuntimeError:
        return np.full((8, 8, 3), BLANK)


def blank_rows(images: np.ndarray) -> np.ndarray:
    """Those of a batch uint8 (N, 3, H, W) whose corner is BLANK: undecoded, but for chance.

    Looking at whole rows would cost 1 to 2 % of a training pipeline.
    """
    return np.flatnonzero((images[:, :, 0, 0] == BLANK).all(axis=1))


def decode(encoded: np.ndarray) -> np.ndarray:
    """uint8 (bytes,) to uint8 (H, W, 3), PIL's pixels.

    Raises RuntimeError where they are no image, or one of more pixels than PIL takes.
    """
    data = encoded.tobytes()
    try:
        pixels = read_jpeg(data, "RGB")
        return read_image(data, "RGB") if pixels is None else pixels
    except Exception as error:  # PIL raises errors of many classes for damaged files
        raise RuntimeError(f"not a readable image: {error}") from None
