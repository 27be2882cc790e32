"""RandAugment (arXiv:1909.13719) `rand-m7-n4-mstd0.5-inc1`: the same operators on all frames.

Frames are uint8 RGB (n, H, W, 3), and stay so. The original augments whole frames and crops them
afterwards; here the crop comes first, and each operator makes only what the next ones look at, to
the same pixels. What it takes from all of a frame (levels, mean) it still takes from all of it.
Names, ranges and order of operators are those of pytorch-image-models, which the source uses.
"""

from typing import NamedTuple, Optional

import numpy as np

from mvit_multi import color_ops, warp
from mvit_multi.crop_region import Window, inside, whole
from mvit_multi.policy import Policy
from utils.video.decoders import Box

MOST = 10.0  # the magnitudes' scale
PROBABILITY = 0.5  # of each drawn operator


class Step(NamedTuple):
    """An operator and what it is called with."""

    name: str
    values: tuple = ()


def draw_steps(policy: Policy, rng: np.random.RandomState) -> list[Step]:
    """The operators of a clip, first to last."""
    steps = []
    for name in [NAMES[i] for i in rng.randint(0, len(NAMES), policy.operators)]:
        if rng.uniform() >= PROBABILITY:
            continue
        magnitude = rng.normal(policy.magnitude, policy.deviation)
        sign = -1 if rng.uniform() < 0.5 else 1
        steps.append(Step(name, arguments(name, float(np.clip(magnitude, 0, MOST)), sign)))
    return steps


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


def augment(frames: np.ndarray, steps: list[Step], box: Optional[Box] = None) -> np.ndarray:
    """A box, by default all, of the frames (n, H, W, 3) to which the operators were applied."""
    size = frames.shape[2], frames.shape[1]
    boxes = needed(steps, box or (0, 0, *size), *size)
    window, table = whole(frames).cut(boxes[0]), None
    for (name, values), box in zip(steps, boxes[1:]):
        if name in TABLES:
            own = TABLES[name](*values)
            table = own if table is None else own[table]
            continue
        window = window._replace(pixels=color_ops.looked_up(window.pixels, table))
        table = MEASURED[name](window.pixels, *values) if name in MEASURED else None
        window = window.cut(box) if name in MEASURED else made(window, name, values, box)
    return color_ops.looked_up(window.pixels, table)


def needed(steps: list[Step], box: Box, width: int, height: int) -> list[Box]:
    """The box of the frames before each operator, and after the last, that makes up `box`."""
    boxes = [box]
    for name, values in reversed(steps):
        x, y, w, h = box
        if name in MEASURED:
            box = 0, 0, width, height
        elif name == "SharpnessIncreasing":
            box = inside(x - 1, y - 1, x + w + 1, y + h + 1, width, height)
        elif name in MATRICES:
            box = warp.source_box(MATRICES[name](width, height, *values), box, width, height)
        boxes.append(box)
    return boxes[::-1]


def made(window: Window, name: str, values: tuple, box: Box) -> Window:
    """A box of what one of `MATRICES` or `FRAMES` makes of a window."""
    if name in MATRICES:
        matrix = MATRICES[name](window.width, window.height, *values)
        return Window(warp.warp(window, matrix, box), *box[:2], window.width, window.height)
    out = np.empty(window.pixels.shape, np.uint8)
    for frame, target in zip(window.pixels, out):
        FRAMES[name](frame, *values, target)
    return window._replace(pixels=out).cut(box)


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
# Level to level, whatever the picture: values -> table.
TABLES = {
    "Invert": color_ops.invert,
    "PosterizeIncreasing": color_ops.posterize,
    "SolarizeIncreasing": color_ops.solarize,
    "SolarizeAdd": color_ops.solarize_add,
    "BrightnessIncreasing": color_ops.brightness,
}
# Level to level, by what is in the whole frame: frames, values -> table.
MEASURED = {
    "AutoContrast": color_ops.auto_contrast,
    "Equalize": color_ops.equalize,
    "ContrastIncreasing": color_ops.contrast,
}
# Pixel by pixel, or from its neighbours: frame, values, out.
FRAMES = {"ColorIncreasing": color_ops.color, "SharpnessIncreasing": color_ops.sharpness}
# Where pixels come from: width, height, values -> matrix.
MATRICES = {
    "Rotate": lambda width, height, degrees: warp.rotation(degrees, width, height),
    "ShearX": lambda width, height, factor: warp.shear(factor, 0),
    "ShearY": lambda width, height, factor: warp.shear(0, factor),
    "TranslateXRel": lambda width, height, share: warp.shift(share * width, 0),
    "TranslateYRel": lambda width, height, share: warp.shift(0, share * height),
}
