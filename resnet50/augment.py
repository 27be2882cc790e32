"""Augmentation of cropped training images: TrivialAugmentWide (arXiv:2103.10158), random erasing.

Images are uint8 (H, W, 3). Source: torchvision 0.28, `TrivialAugmentWide` for PIL images and
`RandomErasing`. The same calls of Pillow give the same pixels.

Difference from the source: erased pixels have the mean colour rounded to a level, so after
normalisation they are up to 0.01 instead of 0.
"""

import math
from typing import Optional

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from resnet50.config import Data
from utils.video.transforms import Box

BINS = 31  # strengths of an operator


def make_grid(end: float) -> np.ndarray:
    """BINS values from 0 to `end`, rounded as by torch.linspace: 15.999999 instead of 16 pixels."""
    end = np.float64(np.float32(end))
    step = np.float64(np.float32(end / (BINS - 1)))
    i = np.arange(BINS)
    return np.where(i < BINS // 2, step * i, end - step * (BINS - 1 - i)).astype(np.float32)


FRACTIONS = make_grid(0.99)
PIXELS = make_grid(32)
ERASED = (0.02, 0.33)
ERASED_ASPECT = (0.3, 3.3)
ERASE_TRIES = 10
# Operators: the magnitudes, and whether a magnitude is negative half of the time.
MAGNITUDES = {
    "Identity": (np.zeros(1), False),
    "ShearX": (FRACTIONS, True),
    "ShearY": (FRACTIONS, True),
    "TranslateX": (PIXELS, True),
    "TranslateY": (PIXELS, True),
    "Rotate": (make_grid(135), True),
    "Brightness": (FRACTIONS, True),
    "Color": (FRACTIONS, True),
    "Contrast": (FRACTIONS, True),
    "Sharpness": (FRACTIONS, True),
    "Posterize": (8 - np.round(np.arange(BINS) / 5), False),
    "Solarize": (make_grid(255)[::-1], False),
    "AutoContrast": (np.zeros(1), False),
    "Equalize": (np.zeros(1), False),
}


def augment(image: np.ndarray, data: Data, rng: np.random.RandomState) -> np.ndarray:
    """A random operator of `data.policy` on an image, then random erasing with `data.erase`."""
    if data.policy == "trivial":
        image = apply_operator(image, *draw_operator(rng))
    box = draw_erased_box(image.shape[1], height=image.shape[0], probability=data.erase, rng=rng)
    if box is not None:
        x, y, width, height = box
        image = image.copy()
        image[y : y + height, x : x + width] = np.round(np.multiply(data.mean, 255))
    return image


def draw_operator(rng: np.random.RandomState) -> tuple[str, float]:
    """The name and magnitude of a random operator."""
    name = list(MAGNITUDES)[rng.randint(len(MAGNITUDES))]
    magnitudes, signed = MAGNITUDES[name]
    magnitude = float(magnitudes[rng.randint(len(magnitudes))])
    return name, -magnitude if signed and rng.randint(2) else magnitude


def apply_operator(image: np.ndarray, name: str, magnitude: float) -> np.ndarray:
    """Warps are bilinear; pixels from outside the image are black."""
    pil = Image.fromarray(image)
    if name in WARPS:
        matrix = WARPS[name](magnitude)
        bilinear = Image.Resampling.BILINEAR
        pil = pil.transform(pil.size, Image.Transform.AFFINE, matrix, bilinear)
    elif name == "Rotate":
        pil = pil.rotate(magnitude, Image.Resampling.BILINEAR)
    elif name in ("Brightness", "Color", "Contrast", "Sharpness"):
        pil = getattr(ImageEnhance, name)(pil).enhance(1 + magnitude)
    elif name == "Posterize":
        pil = ImageOps.posterize(pil, int(magnitude))
    elif name == "Solarize":
        pil = ImageOps.solarize(pil, math.ceil(magnitude))  # levels below it stay
    elif name == "AutoContrast":
        pil = ImageOps.autocontrast(pil)
    elif name == "Equalize":
        pil = ImageOps.equalize(pil)
    return np.asarray(pil)


# Matrices (a, b, c, d, e, f) of Pillow: output (x, y) reads input (a x + b y + c, d x + e y + f).
WARPS = {
    "ShearX": lambda slope: (1, slope, 0, 0, 1, 0),
    "ShearY": lambda slope: (1, 0, 0, slope, 1, 0),
    "TranslateX": lambda pixels: (1, 0, -int(pixels), 0, 1, 0),
    "TranslateY": lambda pixels: (1, 0, 0, 0, 1, -int(pixels)),
}


def draw_erased_box(
    width: int, height: int, probability: float, rng: np.random.RandomState
) -> Optional[Box]:
    """The box (x, y, width, height) to erase, smaller than the image; None: erase nothing."""
    if rng.uniform() >= probability:
        return None
    for _ in range(ERASE_TRIES):
        area = width * height * rng.uniform(*ERASED)
        aspect = math.exp(rng.uniform(*np.log(ERASED_ASPECT)))
        h = round(math.sqrt(area * aspect))
        w = round(math.sqrt(area / aspect))
        if h < height and w < width:
            y = rng.randint(height - h + 1)
            x = rng.randint(width - w + 1)
            return x, y, w, h
    return None
