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

from typing import Callable, NamedTuple, Optional, Union

import cv2
import numpy as np
from PIL import Image

from utils.video import warp
from utils.video.augment import Policy
from utils.video.transforms import Box
from utils.video.warp import CropRegion, clip_to_frame

MAX_MAGNITUDE = 10.0
PROBABILITY = 0.5  # of each drawn operator
# Operators on colours have Pillow's results pixel by pixel. Most are look-up tables (LUT) of 256
# levels, so a sequence of them needs one look-up. A LUT is uint8 (256,), or (n, 1 or 3, 256) with
# one table for each frame, or for each of its channels.
LEVELS = np.arange(256)
IDENTITY = LEVELS.astype(np.uint8)  # the LUT that changes nothing
# Largest error of OpenCV's float32 sums of two weighted levels.
ERROR = 5e-5
DIFFERENCES = np.arange(-255, 256)  # all differences of two levels
SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


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
            next_lut = make_lut(name, region.pixels, *values)
            lut = next_lut if lut is None else next_lut[lut]
            continue
        region = region._replace(pixels=apply_lut(region.pixels, lut))
        lut = None
        if name in FRAME_LUTS:
            lut = make_lut(name, region.pixels, *values)
            region = region.cut(box)
        elif name in WARP_MATRICES:
            matrix = WARP_MATRICES[name](*size, *values)
            region = CropRegion(warp.warp_region(region, matrix, box), *box[:2], *size)
        else:
            pixels = adjust_frames(name, region.pixels, *values)
            region = region._replace(pixels=pixels).cut(box)
    return apply_lut(region.pixels, lut)


def compute_boxes(operations: list[Operation], box: Box, width: int, height: int) -> list[Box]:
    """The boxes that operations read: one before each operation; the last is `box`, the result."""
    boxes = [box]
    for name, values in reversed(operations):
        x, y, w, h = box
        if name in FRAME_LUTS:
            box = 0, 0, width, height
        elif name == "SharpnessIncreasing":
            box = clip_to_frame(x - 1, y - 1, x + w + 1, y + h + 1, width, height)
        elif name in WARP_MATRICES:
            matrix = WARP_MATRICES[name](width, height, *values)
            box = warp.compute_source_box(matrix, box=box, width=width, height=height)
        boxes.append(box)
    return boxes[::-1]


def make_lut(name: str, frames: np.ndarray, value: float = 0.0) -> np.ndarray:
    """The LUT of an operator on levels; those of FRAME_LUTS depend on the full frames."""
    if name == "Invert":
        return 255 - IDENTITY
    if name == "PosterizeIncreasing":  # keeps the highest bits of a level
        return IDENTITY & np.uint8(0xFF << max(8 - int(value), 0) & 0xFF)
    if name == "SolarizeIncreasing":  # inverts levels from a threshold on
        return np.where(value > LEVELS, IDENTITY, 255 - IDENTITY)
    if name == "SolarizeAdd":  # adds to levels below 128
        return np.where(LEVELS < 128, np.minimum(LEVELS + value, 255), LEVELS).astype(np.uint8)
    if name == "BrightnessIncreasing":
        return blend_levels(0, LEVELS, value)
    n, height, width, _ = frames.shape
    if name == "ContrastIncreasing":  # scales the differences of levels and the mean grey level
        sums = [cv2.sumElems(to_grey(frame))[0] for frame in frames]
        means = [int(total / (height * width) + 0.5) for total in sums]
        return blend_levels(np.array(means, np.float32)[:, None, None], LEVELS, value)
    if name == "AutoContrast":  # stretches the levels of each channel to the range 0 to 255
        lines = frames.reshape(n, -1, width * 3)  # min and max of whole lines are faster
        low, high = (extreme(lines, axis=1).reshape(n, width, 3) for extreme in (np.min, np.max))
        low = low.min(1).astype(float)[..., None]
        high = high.max(1).astype(float)[..., None]
        scale = 255 / np.maximum(high - low, 1)
        table = np.clip(LEVELS * scale + -low * scale, 0, 255).astype(np.uint8)
        return np.where(high > low, table, IDENTITY)
    # Histogram equalization of each channel. float32 counts are exact up to 2**24 pixels.
    histograms = [
        [cv2.calcHist([frame], [channel], None, [256], [0, 256])[:, 0] for channel in range(3)]
        for frame in frames
    ]
    counts = np.array(histograms).astype(np.int64)
    highest = 255 - np.argmax(counts[..., ::-1] > 0, axis=-1)[..., None]
    step = (counts.sum(-1, keepdims=True) - np.take_along_axis(counts, highest, -1)) // 255
    below = np.cumsum(counts, -1) - counts
    table = np.minimum((step // 2 + below) // np.maximum(step, 1), 255).astype(np.uint8)
    return np.where(step > 0, table, IDENTITY)


def adjust_frames(name: str, frames: np.ndarray, factor: float) -> np.ndarray:
    """Scales the differences of frames and their grey, or smoothed, images by `factor`.

    Like Pillow, it does not smooth the border.
    """
    out = np.empty(frames.shape, np.uint8)
    for frame, target in zip(frames, out):
        if name == "ColorIncreasing":
            base = cv2.cvtColor(to_grey(frame), cv2.COLOR_GRAY2RGB)
        else:
            base = cv2.filter2D(frame, -1, SMOOTHING)  # sums of thirteenths are never half a level
            base[[0, -1]] = frame[[0, -1]]
            base[:, [0, -1]] = frame[:, [0, -1]]
        blend_frames(base, frame=frame, factor=factor, out=target)
    return out


def to_grey(frame: np.ndarray) -> np.ndarray:
    """The grey image (H, W) of a frame (H, W, 3), by Pillow."""
    return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).convert("L"))


def blend_levels(base: Union[float, np.ndarray], levels: np.ndarray, factor: float) -> np.ndarray:
    """base + factor * (levels - base), truncated to uint8; in float32 like Pillow's `blend`."""
    base = np.asarray(base, np.float32)
    levels = np.asarray(levels, np.float32)
    return np.clip(base + np.float32(factor) * (levels - base), 0, 255).astype(np.uint8)


def blend_frames(base: np.ndarray, frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """`blend_levels` of two frames into `out`.

    OpenCV computes it, unless one of the 511 differences gives a value too close to a whole level.
    """
    factor = float(np.float32(factor))
    gap = np.max(factor * DIFFERENCES % 1)
    if 1 - gap < 2 * ERROR:
        out[...] = blend_levels(base, frame, factor)
        return
    # OpenCV rounds, Pillow truncates: half a level less, but whole levels must not fall below.
    cv2.addWeighted(frame, factor, base, 1 - factor, ERROR - 0.5, dst=out)


def apply_lut(frames: np.ndarray, table: Optional[np.ndarray]) -> np.ndarray:
    """Applies a LUT to frames (n, H, W, 3), contiguous or not; None changes nothing."""
    if table is None:
        return frames
    out = np.empty(frames.shape, np.uint8)
    if table.ndim == 1:
        tables = [table] * len(frames)
    else:  # one table for all channels is twice as fast as one for each
        tables = [rows[0] if len(rows) == 1 else rows.T[None].copy() for rows in table]
    for frame, lut, target in zip(frames, tables, out):
        cv2.LUT(frame, lut, dst=target)
    return out


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
# Operators on levels: those that are the same for all frames, and others
LEVEL_OPERATORS = {"Invert", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"}
LEVEL_OPERATORS |= {"BrightnessIncreasing"}
FRAME_LUTS = {"AutoContrast", "Equalize", "ContrastIncreasing"}
# Warps: width, height, values -> matrix from output to input positions, as in `warp`.
WARP_MATRICES: dict[str, Callable[..., warp.Matrix]] = {
    "Rotate": warp.make_rotation_matrix,
    "ShearX": lambda width, height, factor: (1, factor, 0, 0, 1, 0),
    "ShearY": lambda width, height, factor: (1, 0, 0, factor, 1, 0),
    "TranslateXRel": lambda width, height, fraction: (1, 0, fraction * width, 0, 1, 0),
    "TranslateYRel": lambda width, height, fraction: (1, 0, 0, 0, 1, fraction * height),
}
