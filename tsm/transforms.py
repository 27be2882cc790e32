"""Crops, flips and stacking: from the frames of a video to clips.

Frames come as uint8 (n, H, W, C), C 3 for RGB or 2 for flow x and y. Clips leave as uint8
(..., T, L*C, size, size), where T is segments and L the consecutive frames of a segment, stacked on
the channel axis in time order. Normalisation is the network's first step, not done here.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b. Departure: in training a crop edge
becomes `size` only where `size` fits; in a frame of 222 or 223 pixels the source's crop of 224
hangs over the border and is padded with black.
"""

import random
from collections.abc import Sequence

import cv2
import numpy as np

from utils.video.decoders import Box, center_crop_box, resize, short_side_size
from utils.video.transforms import cut_clips

MAX_DISTORT = 1  # how many places width and height of a crop may differ in the list of scales
CROPS = (1, 3, 5, 10)

# Where a crop may lie, in quarters of the free width and height. The first five are the corners
# and the middle, which testing with five or ten crops uses too.
PLACES = (
    *((0, 0), (4, 0), (0, 4), (4, 4), (2, 2)),
    *((0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3)),
)
LEFT_RIGHT_MIDDLE = ((0, 2), (4, 2), (2, 2))


def train_clip(
    frames: np.ndarray,
    new_length: int,
    size: int,
    scales: Sequence[float],
    dice: random.Random,
    flip: bool,
) -> tuple[np.ndarray, bool]:
    """Cuts one random box out of all frames of a clip, and mirrors half the clips if `flip`.

    Takes T*L frames as they are stored. Returns the clip (T, L*C, size, size), and whether it was
    mirrored, for labels that name a direction. Raises ValueError where a scale leaves no pixel.
    """
    rows, columns = frames.shape[1:3]
    patch = resize(frames, size, size, draw_crop(columns, rows, size, scales, dice))
    mirrored = flip and dice.random() < 0.5
    return stack_frames(mirror(patch) if mirrored else patch, new_length), mirrored


def test_clips(
    frames: np.ndarray,
    clips: int,
    segments: int,
    resize_to: int,
    crop: int,
    crops: int,
    order: Sequence[int] = (),  # noqa: PT028 - no test, whatever the name says
) -> np.ndarray:
    """Resizes every frame once, to short side `resize_to`, and cuts each view out of all clips.

    `order` (clips * T * L,) says which of the frames stands where, so that one which several clips
    share need be given only once; without it the frames stand in their places. Returns (crops *
    clips, T, L*C, crop, crop): all clips of the first view, then all of the second. ValueError for
    a crop larger than `resize_to`, or a number of crops that is not 1, 3, 5 or 10.
    """
    if crop > resize_to:
        raise ValueError(f"the crop of {crop} is larger than data.resize {resize_to}")
    rows, columns = frames.shape[1:3]
    width, height = short_side_size(columns, rows, resize_to)
    frames = resize(frames, width, height)
    order = np.arange(len(frames)) if len(order) == 0 else np.asarray(order)
    (whole,) = cut_clips(frames, (width, height), [(0, 0, width, height)])  # (C, n, H, W)
    boxes = view_boxes(width, height, crop, crops)
    views = np.empty((len(boxes), len(order), len(whole), crop, crop), np.uint8)
    for view, ((x, y, _, _), mirrored) in zip(views, boxes):
        part = whole[:, :, y : y + crop, x : x + crop]
        for t, k in enumerate(order):
            view[t] = part[:, k, :, ::-1] if mirrored else part[:, k]
        if mirrored and len(whole) == 2:  # flow x, as in `mirror`
            np.subtract(255, view[:, 0], out=view[:, 0])
    return views.reshape(len(boxes) * clips, segments, -1, crop, crop)


def stack_frames(frames: np.ndarray, new_length: int) -> np.ndarray:
    """(T*L, H, W, C) to contiguous (T, L*C, H, W)."""
    n, height, width, channels = frames.shape
    stacked = np.empty((n, channels, height, width), np.uint8)
    for frame, planes in zip(frames, stacked):
        cv2.split(np.ascontiguousarray(frame), list(planes))
    return stacked.reshape(-1, new_length * channels, height, width)


def mirror(frames: np.ndarray) -> np.ndarray:
    """Swaps left and right; flow x, which then points the other way, is inverted (255 - x)."""
    frames = frames[:, :, ::-1]
    if frames.shape[3] == 2:
        frames = np.stack((255 - frames[..., 0], frames[..., 1]), axis=3)
    return frames


def crop_candidates(
    width: int, height: int, size: int, scales: Sequence[float]
) -> list[tuple[int, int]]:
    """The (width, height) pairs that training crops are drawn from, in the source's order.

    An edge is a scale times the short side, rounded down; within 2 pixels of `size` it is `size`.
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


def crop_offsets(
    width: int, height: int, crop: tuple[int, int], places: Sequence[tuple[int, int]] = PLACES
) -> list[tuple[int, int]]:
    """The left upper corners (x, y) of a crop (width, height) at the given places."""
    step_x, step_y = (width - crop[0]) // 4, (height - crop[1]) // 4
    return [(across * step_x, down * step_y) for across, down in places]


def draw_crop(
    width: int, height: int, size: int, scales: Sequence[float], dice: random.Random
) -> Box:
    """Draws the size of a crop, then its place."""
    crop = dice.choice(crop_candidates(width, height, size, scales))
    return (*dice.choice(crop_offsets(width, height, crop)), *crop)


def view_boxes(width: int, height: int, crop: int, crops: int) -> list[tuple[Box, bool]]:
    """The boxes that testing looks at, and whether each is mirrored.

    1: the middle. 3: left, right, middle. 5: the corners, middle. 10: each of these plain, then
    mirrored.
    """
    if crops not in CROPS:
        raise ValueError(f"eval.crops is {crops}; choose one of {', '.join(map(str, CROPS))}")
    middle = center_crop_box(width, height, crop)
    if crops == 1:
        return [(middle, False)]
    places = LEFT_RIGHT_MIDDLE if crops == 3 else PLACES[:5]
    mirrorings = (False, True) if crops == 10 else (False,)
    return [
        ((x, y, crop, crop), mirrored)
        for x, y in crop_offsets(width, height, (crop, crop), places)
        for mirrored in mirrorings
    ]
