"""RandAugment (arXiv:1909.13719) `rand-m7-n4-mstd0.5-inc1`: the same operators on all frames.

Frames are uint8 RGB (n, H, W, 3), and stay so. What maps a level to a level is done to all frames
at once, to Pillow's very pixels; the rest is Pillow itself, frame by frame. Names, ranges and order
of operators are those of pytorch-image-models, which the source uses.
"""

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from mvit_multi.policy import Policy

FILL = (128, 128, 128)
MOST = 10.0  # the magnitudes' scale
PROBABILITY = 0.5  # of each drawn operator


def rand_augment(frames: np.ndarray, policy: Policy, rng: np.random.RandomState) -> np.ndarray:
    """Applies drawn operators to all frames alike."""
    names = [NAMES[i] for i in rng.randint(0, len(NAMES), policy.operators)]
    for name in names:
        if rng.uniform() >= PROBABILITY:
            continue
        magnitude = rng.normal(policy.magnitude, policy.deviation)
        sign = -1 if rng.uniform() < 0.5 else 1
        frames = apply(frames, name, *arguments(name, float(np.clip(magnitude, 0, MOST)), sign))
    return frames


def arguments(name: str, magnitude: float, sign: int = 1) -> tuple:
    """What an operator is called with at a magnitude of 0 to 10."""
    share = magnitude / MOST
    values = {
        "Rotate": sign * share * 30,
        "PosterizeIncreasing": 4 - int(share * 4),
        "SolarizeIncreasing": 256 - int(share * 256),
        "SolarizeAdd": int(share * 110),
        "ShearX": sign * share * 0.3,
        "ShearY": sign * share * 0.3,
        "TranslateXRel": sign * share * 0.45,
        "TranslateYRel": sign * share * 0.45,
    }
    if name in ENHANCED:
        return (max(0.1, 1 + sign * share * 0.9),)
    return (values[name],) if name in values else ()


def apply(frames: np.ndarray, name: str, *values: float) -> np.ndarray:
    """One operator on frames (n, H, W, 3)."""
    if name in TABLES:
        return TABLES[name](frames, *values)
    return np.stack([np.asarray(PICTURES[name](Image.fromarray(f), *values)) for f in frames])


def invert(frames: np.ndarray) -> np.ndarray:
    return 255 - frames


def posterize(frames: np.ndarray, bits: int) -> np.ndarray:
    return frames if bits >= 8 else frames & np.uint8(~(2 ** (8 - bits) - 1) & 0xFF)


def solarize(frames: np.ndarray, threshold: int) -> np.ndarray:
    """Inverts what is as bright as the threshold."""
    levels = np.arange(256)
    return looked_up(frames, np.where(levels < threshold, levels, 255 - levels))


def solarize_add(frames: np.ndarray, value: int, threshold: int = 128) -> np.ndarray:
    """Brightens what is darker than the threshold."""
    levels = np.arange(256)
    return looked_up(frames, np.where(levels < threshold, np.minimum(levels + value, 255), levels))


def brightness(frames: np.ndarray, factor: float) -> np.ndarray:
    levels = np.arange(256, dtype=np.float32)
    return looked_up(frames, np.clip(np.float32(factor) * levels, 0, 255))


def looked_up(frames: np.ndarray, table: np.ndarray) -> np.ndarray:
    shape = frames.shape
    return cv2.LUT(frames.reshape(-1, shape[-1]), table.astype(np.uint8)).reshape(shape)


def rotate(picture: Image.Image, degrees: float) -> Image.Image:
    return picture.rotate(degrees, resample=Image.BICUBIC, fillcolor=FILL)


def affine(picture: Image.Image, *matrix: float) -> Image.Image:
    return picture.transform(
        picture.size, Image.AFFINE, matrix, resample=Image.BICUBIC, fillcolor=FILL
    )


def shear_x(picture: Image.Image, factor: float) -> Image.Image:
    return affine(picture, 1, factor, 0, 0, 1, 0)


def shear_y(picture: Image.Image, factor: float) -> Image.Image:
    return affine(picture, 1, 0, 0, factor, 1, 0)


def translate_x(picture: Image.Image, share: float) -> Image.Image:
    return affine(picture, 1, 0, share * picture.size[0], 0, 1, 0)


def translate_y(picture: Image.Image, share: float) -> Image.Image:
    return affine(picture, 1, 0, 0, 0, 1, share * picture.size[1])


def color(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Color(picture).enhance(factor)


def contrast(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Contrast(picture).enhance(factor)


def sharpness(picture: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Sharpness(picture).enhance(factor)


NAMES = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "PosterizeIncreasing",
    "SolarizeIncreasing",
    "SolarizeAdd",
    "ColorIncreasing",
    "ContrastIncreasing",
    "BrightnessIncreasing",
    "SharpnessIncreasing",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
)
ENHANCED = NAMES[7:11]
TABLES = {
    "Invert": invert,
    "PosterizeIncreasing": posterize,
    "SolarizeIncreasing": solarize,
    "SolarizeAdd": solarize_add,
    "BrightnessIncreasing": brightness,
}
PICTURES = {
    "AutoContrast": ImageOps.autocontrast,
    "Equalize": ImageOps.equalize,
    "Rotate": rotate,
    "ColorIncreasing": color,
    "ContrastIncreasing": contrast,
    "SharpnessIncreasing": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateXRel": translate_x,
    "TranslateYRel": translate_y,
}
