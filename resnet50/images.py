"""Decodes images, and makes the test view: the short side scaled to `resize`, then a center crop.

Resizing uses PIL's antialiased bilinear filter, as torchvision does; OpenCV's would give other
pixels. Also finds the images of a split.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from utils.video.jpeg import read_image, read_jpeg

# The colour that stands for an image that cannot be decoded. Crops, resizing and flips keep it.
BLANK = np.array([3, 252, 5], np.uint8)


def make_test_view(image: np.ndarray, resize: int, crop: int) -> np.ndarray:
    """An image, encoded or decoded, to uint8 (3, crop, crop); BLANK if it cannot be decoded."""
    return resize_and_crop_center(decode_or_blank(image), resize, crop)


def resize_and_crop_center(image: np.ndarray, resize: int, crop: int) -> np.ndarray:
    """uint8 (H, W, 3) to uint8 (3, crop, crop)."""
    height, width = image.shape[:2]
    scaled_w, scaled_h, x, y = compute_center_crop(width, height, resize, crop)
    if (scaled_w, scaled_h) != (width, height):
        resized = Image.fromarray(image).resize((scaled_w, scaled_h), Image.Resampling.BILINEAR)
        image = np.asarray(resized)
    return np.ascontiguousarray(image[y : y + crop, x : x + crop].transpose(2, 0, 1))


def compute_center_crop(
    width: int, height: int, resize: int, crop: int
) -> tuple[int, int, int, int]:
    """Scaled width and height, then the corner x, y of the crop; halves are rounded to even."""
    short = min(width, height)
    scaled_w = int(resize * width / short)
    scaled_h = int(resize * height / short)
    return scaled_w, scaled_h, round((scaled_w - crop) / 2), round((scaled_h - crop) / 2)


def decode_or_blank(image: np.ndarray) -> np.ndarray:
    """As `decode_image`, but a small image of the colour BLANK if it cannot be decoded."""
    try:
        return decode_image(image)
    except RuntimeError:
        return np.full((8, 8, 3), BLANK)


def find_blank_images(images: np.ndarray) -> np.ndarray:
    """The rows of a batch uint8 (N, 3, H, W) whose corner pixel is BLANK.

    They were not decoded, or have this colour by chance. A comparison of whole images would cost 1
    to 2 % of a training pipeline.
    """
    return np.flatnonzero((images[:, :, 0, 0] == BLANK).all(axis=1))


def decode_image(image: np.ndarray) -> np.ndarray:
    """An encoded image uint8 (bytes,) to PIL's pixels uint8 (H, W, 3); a decoded one unchanged.

    Raises RuntimeError if the bytes are no image, or one of more pixels than PIL reads.
    """
    if image.ndim == 3:
        return image
    data = image.tobytes()
    try:
        pixels = read_jpeg(data, "RGB")
        return read_image(data, "RGB") if pixels is None else pixels
    except Exception as error:  # PIL raises errors of many classes for damaged files
        raise RuntimeError(f"not a readable image: {error}") from None


def get_split_path(data, split: str) -> Path:
    """The folder or MindRecord file of a split."""
    return data.root / (data.train if split == "train" else data.test)


def list_class_folders(path: Path) -> list[Path]:
    """The class folders in the order of the labels."""
    return sorted(folder for folder in path.iterdir() if folder.is_dir())
