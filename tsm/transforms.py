"""Transforms of TSM: crops, flips and stacking of video frames to clips.

Input frames are uint8 (n, H, W, C), here C of one frame: 3 for RGB or 2 for flow x and y. Clips are
uint8 (..., T, L*C, size, size), where T is the number of segments and L the number of consecutive
frames of a segment, stacked on the channel axis in time order. The network normalises, not this
module.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b. Departure: in training a crop edge
becomes `size` only if `size` fits into the frame. In a frame of 222 or 223 pixels the source's crop
of 224 exceeds the border and is padded with black.
"""

import random
from collections.abc import Sequence
from typing import Optional, Union

import cv2
import numpy as np
from PIL import Image

from utils.video.reader import Clip, transform_frames
from utils.video.transforms import Box

MAX_DISTORT = 1  # largest difference of the indices of width and height in the list of scales

# Positions of a crop (x, y), in quarters of the free width and height. The first five are the
# corners and the center; testing with five or ten crops uses them too.
CROP_POSITIONS = (
    *((0, 0), (4, 0), (0, 4), (4, 4), (2, 2)),
    *((0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3)),
)
LEFT_RIGHT_CENTER = ((0, 2), (4, 2), (2, 2))


def make_train_clip(
    frames: Union[np.ndarray, Clip],
    frames_per_segment: int,
    size: int,
    scales: Sequence[float],
    rng: random.Random,
    flip: bool,
) -> tuple[np.ndarray, bool]:
    """Crops all frames of a clip at one random box; mirrors half of the clips if `flip`.

    `frames` are T*L frames; a `Clip` decodes them while they are cropped. Returns the clip (T, L*C,
    size, size), and whether it was mirrored, for labels that name a direction.
    """
    rows, columns = frames.shape[1:3]
    box = draw_crop(columns, height=rows, size=size, scales=scales, rng=rng)
    patch = transform_frames(frames, lambda part: resize(part, width=size, height=size, box=box))
    mirrored = flip and rng.random() < 0.5
    if mirrored:
        patch = patch[:, :, ::-1]
        if patch.shape[3] == 2:  # flow x changes its direction
            patch = np.stack((255 - patch[..., 0], patch[..., 1]), axis=3)
    n, height, width, channels = patch.shape
    stacked = np.empty((n, channels, height, width), np.uint8)
    for frame, planes in zip(patch, stacked):
        cv2.split(np.ascontiguousarray(frame), list(planes))
    return stacked.reshape(-1, frames_per_segment * channels, height, width), mirrored


def cut_crops(frames: np.ndarray, resize_to: int, crop: int, crops: int) -> np.ndarray:
    """The crops of frames whose short side is resized: uint8 (n, crops, C, crop, crop).

    `crop` is at most `resize_to`, `crops` 1, 3, 5 or 10: the Config checks both.
    """
    count, rows, columns, channels = frames.shape
    width, height = short_side_size(columns, rows, resize_to)
    boxes = list_view_boxes(width, height=height, crop=crop, crops=crops)
    result = np.empty((count, len(boxes), channels, crop, crop), np.uint8)
    for frame, targets in zip(frames, result):
        (planes,) = resize(frame[None], width, height).transpose(0, 3, 1, 2)
        for ((x, y, _, _), mirrored), target in zip(boxes, targets):
            part = planes[:, y : y + crop, x : x + crop]
            target[...] = part[..., ::-1] if mirrored else part
            if mirrored and channels == 2:  # flow x, as in `make_train_clip`
                np.subtract(255, target[0], out=target[0])
    return result


def arrange_views(
    crops: np.ndarray, order: Union[Sequence[int], np.ndarray], clips: int, segments: int
) -> np.ndarray:
    """Views (crops * clips, T, L*C, crop, crop): all clips of the first crop, then of the second.

    `order` (clips * T * L,) holds the index into `crops`, those of `cut_crops`, of every frame of
    the clips; several clips may use a frame.
    """
    views = np.empty((crops.shape[1], len(order), *crops.shape[2:]), np.uint8)
    for t, k in enumerate(order):
        views[:, t] = crops[k]
    return views.reshape(len(views) * clips, segments, -1, *views.shape[3:])


def resize(frames: np.ndarray, width: int, height: int, box: Optional[Box] = None) -> np.ndarray:
    """Crops and resizes as PIL does: bilinear, with antialiasing when shrinking.

    Takes uint8 (n, H, W, 3 or 2) and a box inside the frame to crop first. If the size does not
    change, the result is a view of `frames`.
    """
    if box is not None:
        x, y, w, h = box
        frames = frames[:, y : y + h, x : x + w]
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, frames.shape[3]), np.uint8)
    # PIL would take two channels for grey and alpha, and multiply one by the other.
    parts = (slice(None),) if frames.shape[3] == 3 else range(frames.shape[3])
    for frame, target in zip(frames, out):
        for part in parts:
            image = Image.fromarray(np.ascontiguousarray(frame[:, :, part]))
            target[:, :, part] = image.resize((width, height), Image.Resampling.BILINEAR)
    return out


def short_side_size(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) with the short side `side`; the long side is rounded down."""
    short = min(width, height)
    return side * width // short, side * height // short


def list_crop_sizes(
    width: int, height: int, size: int, scales: Sequence[float]
) -> list[tuple[int, int]]:
    """The sizes (width, height) of random training crops, in the order of the source.

    An edge is a scale times the short side, rounded down. An edge within 2 pixels of `size` becomes
    `size`.
    """
    short = min(width, height)
    edges = [max(int(short * scale), 1) for scale in scales]
    edges = [size if abs(edge - size) <= 2 and size <= short else edge for edge in edges]
    return [
        (crop_width, crop_height)
        for i, crop_height in enumerate(edges)
        for j, crop_width in enumerate(edges)
        if abs(i - j) <= MAX_DISTORT
    ]


def compute_crop_offsets(
    width: int,
    height: int,
    crop: tuple[int, int],
    positions: Sequence[tuple[int, int]] = CROP_POSITIONS,
) -> list[tuple[int, int]]:
    """The upper left corners (x, y) of a crop (width, height) at each of `positions`."""
    step_x = (width - crop[0]) // 4
    step_y = (height - crop[1]) // 4
    return [(across * step_x, down * step_y) for across, down in positions]


def draw_crop(
    width: int, height: int, size: int, scales: Sequence[float], rng: random.Random
) -> Box:
    """Draws a random crop: its size, then its position."""
    crop = rng.choice(list_crop_sizes(width, height=height, size=size, scales=scales))
    return (*rng.choice(compute_crop_offsets(width, height, crop)), *crop)


def list_view_boxes(width: int, height: int, crop: int, crops: int) -> list[tuple[Box, bool]]:
    """The crop boxes of testing, and whether each one is mirrored.

    1: center; half a pixel is rounded to even. 3: left, right, center, which is rounded in another
    way. 5: corners, center. 10: each of these five, then its mirror image.
    """
    if crops == 1:
        box = (round((width - crop) / 2), round((height - crop) / 2), crop, crop)
        return [(box, False)]
    positions = LEFT_RIGHT_CENTER if crops == 3 else CROP_POSITIONS[:5]
    mirror_modes = (False, True) if crops == 10 else (False,)
    return [
        ((x, y, crop, crop), mirrored)
        for x, y in compute_crop_offsets(
            width, height=height, crop=(crop, crop), positions=positions
        )
        for mirrored in mirror_modes
    ]
