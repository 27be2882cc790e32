"""Views of a decoded image: random crop and flip of training, scaled centre crop of a test.

Images are uint8 (H, W, 3), views uint8 (3, crop, crop). A test view is resized by PIL's antialiased
bilinear filter, as torchvision does. Random crops are drawn like torchvision's `RandomResizedCrop`.

Difference from the source: random crops are resized by OpenCV's bilinear filter, which is not
antialiased; torchvision's is. MindSpore's transforms, which the zoo's accuracies in MindSpore come
from, use OpenCV's too.

TrivialAugmentWide (arXiv:2103.10158) and random erasing change cropped training images. Source:
torchvision 0.28, `TrivialAugmentWide` for PIL images and `RandomErasing`; the same calls of Pillow
give the same pixels. Difference: erased pixels have the mean colour rounded to a level, so after
normalisation they are up to 0.01 instead of 0.
"""

import math
from typing import Optional

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from resnet50.config import Data
from utils.video.transforms import Box

MIN_AREA = 0.08  # smallest fraction of the image that a random crop covers
ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10
PADDED_CROP = 32  # CIFAR's images
PADDING = 4
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
        name = list(MAGNITUDES)[rng.randint(len(MAGNITUDES))]
        magnitudes, signed = MAGNITUDES[name]
        magnitude = float(magnitudes[rng.randint(len(magnitudes))])
        magnitude = -magnitude if signed and rng.randint(2) else magnitude
        image = apply_operator(image, name, magnitude)
    box = draw_erased_box(image.shape[1], height=image.shape[0], probability=data.erase, rng=rng)
    if box is not None:
        x, y, width, height = box
        image = image.copy()
        image[y : y + height, x : x + width] = np.round(np.multiply(data.mean, 255))
    return image


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


def make_train_view(image: np.ndarray, data: Data, rng: np.random.RandomState) -> np.ndarray:
    """A random view, as the settings `data` describe it."""
    if data.augment == "none":
        return make_test_view(image, data.resize, data.crop)
    if data.augment == "pad_crop":
        edges = (PADDING, PADDING, PADDING, PADDING)
        image = cv2.copyMakeBorder(image, *edges, cv2.BORDER_CONSTANT)
        x = rng.randint(image.shape[1] - PADDED_CROP + 1)
        y = rng.randint(image.shape[0] - PADDED_CROP + 1)
        width = height = PADDED_CROP
    else:
        x, y, width, height = draw_crop_box(image.shape[1], image.shape[0], MIN_AREA, rng)
    image = image[y : y + height, x : x + width]
    if (width, height) != (data.crop, data.crop):
        image = cv2.resize(image, (data.crop, data.crop), interpolation=cv2.INTER_LINEAR)
    if rng.uniform() < 0.5:
        image = cv2.flip(image, 1)
    if data.policy != "none" or data.erase:
        image = augment(image, data, rng)
    return split_channels(image)


def draw_crop_box(width: int, height: int, min_area: float, rng: np.random.RandomState) -> Box:
    """A box (x, y, width, height) of a random area and aspect ratio.

    If it is not inside the image ten times, the largest box with an aspect ratio in ASPECT, in the
    centre.
    """
    for _ in range(CROP_TRIES):
        area = width * height * rng.uniform(min_area, 1.0)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w = round(math.sqrt(area * aspect))
        h = round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            x = int(rng.uniform() * (width - w + 1))
            y = int(rng.uniform() * (height - h + 1))
            return x, y, w, h
    w = min(width, max(1, round(height * ASPECT[1])))
    h = min(height, max(1, round(width / ASPECT[0])))
    return (width - w) // 2, (height - h) // 2, w, h


def make_test_view(image: np.ndarray, resize: int, crop: int) -> np.ndarray:
    """The short side scaled to `resize`, then a centre crop."""
    height, width = image.shape[:2]
    scaled_w, scaled_h, x, y = compute_center_crop(width, height=height, resize=resize, crop=crop)
    if (scaled_w, scaled_h) != (width, height):
        resized = Image.fromarray(image).resize((scaled_w, scaled_h), Image.Resampling.BILINEAR)
        image = np.asarray(resized)
    return split_channels(image[y : y + crop, x : x + crop])


def compute_center_crop(
    width: int, height: int, resize: int, crop: int
) -> tuple[int, int, int, int]:
    """Scaled width and height, then the corner x, y of the crop; halves are rounded to even."""
    short = min(width, height)
    scaled_w = int(resize * width / short)
    scaled_h = int(resize * height / short)
    return scaled_w, scaled_h, round((scaled_w - crop) / 2), round((scaled_h - crop) / 2)


def split_channels(image: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 3) to uint8 (3, H, W); ten times as fast as NumPy's copy of a transposition."""
    planes = np.empty((3, *image.shape[:2]), np.uint8)
    cv2.split(image, list(planes))
    return planes
