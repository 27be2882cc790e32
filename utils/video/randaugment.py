"""RandAugment (arXiv:1909.13719) `rand-m7-n4-mstd0.5-inc1`: the same operators on all frames.

Input and output frames are uint8 RGB (n, H, W, 3). The original augments full frames and crops them
afterwards. Here the crop is known in advance, and each operator computes only the pixels that the
following ones read; the result is the same pixel by pixel. Statistics of a frame (levels, mean) are
still computed from the full frame. Names, ranges and order of operators are those of
pytorch-image-models, which MultiTrain and PySlowFast use.

Pillow's operators, on full frames one by one, take seven times as long: 49 ms of processor time for
an operator and 32 frames of 340 x 256, where these take 7.0 for a crop of 240 x 200. A training of
MViT would have 0.26 to 0.39 of its rows a CPU-second, with Pillow's warps alone 0.44 to 0.58.
"""

import re
from typing import Callable, NamedTuple, Optional

import numpy as np

from utils.video import color_ops, warp
from utils.video.transforms import Box
from utils.video.warp import CropRegion, clip_to_frame

MAX_MAGNITUDE = 10.0
PROBABILITY = 0.5  # of each drawn operator


class Policy(NamedTuple):
    """A RandAugment policy.

    `operators` operators are drawn for each clip, with magnitudes from
    normal(`magnitude`, `deviation`), clipped to 0 to 10.
    """

    magnitude: float
    operators: int
    deviation: float


def parse_policy(text: str) -> Policy:
    """Parses a policy like `rand-m7-n4-mstd0.5-inc1`. Raises ValueError for any other form."""
    match = re.fullmatch(r"rand-m([\d.]+)-n(\d+)(?:-mstd([\d.]+))?-inc1", text)
    if match is None:
        raise ValueError(f"data.rand_augment: {text} is not of the form rand-m7-n4-mstd0.5-inc1")
    return Policy(float(match[1]), int(match[2]), float(match[3] or 0))


class Operation(NamedTuple):
    """An operator and its arguments."""

    name: str
    values: tuple = ()


def draw_operations(policy: Policy, rng: np.random.RandomState) -> list[Operation]:
    """Draws the operations of a clip, in the order in which they are applied."""
    names = tuple(OPERATORS)
    operations = []
    for name in [names[i] for i in rng.randint(0, len(names), policy.operators)]:
        if rng.uniform() >= PROBABILITY:
            continue
        magnitude = rng.normal(policy.magnitude, policy.deviation)
        sign = -1 if rng.uniform() < 0.5 else 1
        magnitude = float(np.clip(magnitude, 0, MAX_MAGNITUDE))
        operations.append(Operation(name, compute_arguments(name, magnitude, sign)))
    return operations


def compute_arguments(name: str, magnitude: float, sign: int = 1) -> tuple:
    """The arguments of an operator for a magnitude from 0 to 10 and a sign of 1 or -1."""
    compute = OPERATORS[name]
    return (compute(magnitude / MAX_MAGNITUDE, sign),) if compute else ()


def compute_factor(fraction: float, sign: int) -> float:
    """The factor of the operators on colours, contrast, brightness and sharpness."""
    return max(0.1, 1 + sign * fraction * 0.9)


def apply_operations(
    frames: np.ndarray, operations: list[Operation], box: Optional[Box] = None
) -> np.ndarray:
    """Applies operations to frames (n, H, W, 3); returns a box of the result, by default all."""
    size = frames.shape[2], frames.shape[1]
    boxes = compute_boxes(operations, box or (0, 0, *size), *size)
    # Look-up tables are combined in `lut` and applied before the next operator that reads pixels.
    region = CropRegion(frames, 0, 0, *size).cut(boxes[0])
    lut = None
    for (name, values), box in zip(operations, boxes[1:]):
        if name in LEVEL_OPERATORS:
            next_lut = color_ops.make_level_lut(name, *values)
            lut = next_lut if lut is None else next_lut[lut]
            continue
        region = region._replace(pixels=color_ops.apply_lut(region.pixels, lut))
        lut = None
        if name in FRAME_LUTS:
            lut = FRAME_LUTS[name](region.pixels, *values)
            region = region.cut(box)
        elif name in WARP_MATRICES:
            matrix = WARP_MATRICES[name](*size, *values)
            region = CropRegion(warp.warp_region(region, matrix, box), *box[:2], *size)
        else:
            out = np.empty(region.pixels.shape, np.uint8)
            for frame, target in zip(region.pixels, out):
                FRAME_OPERATORS[name](frame, *values, target)
            region = region._replace(pixels=out).cut(box)
    return color_ops.apply_lut(region.pixels, lut)


def compute_boxes(operations: list[Operation], box: Box, width: int, height: int) -> list[Box]:
    """The boxes that operations read: one before each operation; the last is `box`, the result."""
    boxes = [box]
    for name, values in reversed(operations):
        x, y, w, h = box
        if name in FRAME_LUTS:
            box = 0, 0, width, height
        elif name == "SharpnessIncreasing":
            box = clip_to_frame(
                x - 1, top=y - 1, right=x + w + 1, bottom=y + h + 1, width=width, height=height
            )
        elif name in WARP_MATRICES:
            matrix = WARP_MATRICES[name](width, height, *values)
            box = warp.compute_source_box(matrix, box=box, width=width, height=height)
        boxes.append(box)
    return boxes[::-1]


# Names, and functions of the fraction of the largest magnitude and the sign -> argument.
OPERATORS = {
    "AutoContrast": None,
    "Equalize": None,
    "Invert": None,
    "Rotate": lambda fraction, sign: sign * fraction * 30,
    "PosterizeIncreasing": lambda fraction, sign: 4 - int(fraction * 4),
    "SolarizeIncreasing": lambda fraction, sign: 256 - int(fraction * 256),
    "SolarizeAdd": lambda fraction, sign: int(fraction * 110),
    "ColorIncreasing": compute_factor,
    "ContrastIncreasing": compute_factor,
    "BrightnessIncreasing": compute_factor,
    "SharpnessIncreasing": compute_factor,
    "ShearX": lambda fraction, sign: sign * fraction * 0.3,
    "ShearY": lambda fraction, sign: sign * fraction * 0.3,
    "TranslateXRel": lambda fraction, sign: sign * fraction * 0.45,
    "TranslateYRel": lambda fraction, sign: sign * fraction * 0.45,
}
# Operators on levels, independent of the frames: `color_ops.make_level_lut`
LEVEL_OPERATORS = {"Invert", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"}
LEVEL_OPERATORS |= {"BrightnessIncreasing"}
# Operators on levels that depend on statistics of the full frame: frames, values -> LUT.
FRAME_LUTS: dict[str, Callable[..., np.ndarray]] = {
    "AutoContrast": color_ops.make_auto_contrast_lut,
    "Equalize": color_ops.make_equalize_lut,
    "ContrastIncreasing": color_ops.make_contrast_lut,
}
# Operators on pixels and their neighbours: frame, values, out.
FRAME_OPERATORS: dict[str, Callable[..., None]] = {
    "ColorIncreasing": color_ops.adjust_color,
    "SharpnessIncreasing": color_ops.adjust_sharpness,
}
# Warps: width, height, values -> matrix from output to input positions, as in `warp`.
WARP_MATRICES: dict[str, Callable[..., warp.Matrix]] = {
    "Rotate": warp.make_rotation_matrix,
    "ShearX": lambda width, height, factor: (1, factor, 0, 0, 1, 0),
    "ShearY": lambda width, height, factor: (1, 0, 0, factor, 1, 0),
    "TranslateXRel": lambda width, height, fraction: (1, 0, fraction * width, 0, 1, 0),
    "TranslateYRel": lambda width, height, fraction: (1, 0, 0, 0, 1, fraction * height),
}
