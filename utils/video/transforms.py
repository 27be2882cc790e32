"""Resizes and crops frames to clips and test views, like PySlowFast.

Input: frames as uint8 (n, H, W, 3). Output: clips as uint8 (3, T, crop, crop). The source resizes
normalised float32 frames, bilinear without antialiasing. Clips are uint8, so a pixel differs from
the source's by at most half a level of 255.
Source: facebookresearch/SlowFast, commit 287ec007 (`datasets/transform.py`).
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np

Box = tuple[int, int, int, int]  # x, y, width, height in pixels


def scale_short_side(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with the short side `side`, by floats; the long side is rounded down."""
    if min(width, height) == side:
        return width, height
    if width < height:
        return side, int(math.floor(float(height) / width * side))
    return int(math.floor(float(width) / height * side)), side


def view_box(width: int, height: int, crop: int, location: int) -> Box:
    """Location 0, 1, 2 along the longer side: left (top), centre, right (bottom)."""
    y = math.ceil((height - crop) / 2)
    x = math.ceil((width - crop) / 2)
    if height > width:
        y = (0, y, height - crop)[location]
    else:
        x = (0, x, width - crop)[location]
    return x, y, crop, crop


def cut_clips(
    frames: np.ndarray, size: tuple[int, int], boxes: Sequence[Box], mirrored: bool = False
) -> list[np.ndarray]:
    """Boxes of all frames resized to (width, height): each uint8 (C, n, h, w), contiguous."""
    count, *_, channels = frames.shape
    clips = [np.empty((channels, count, h, w), np.uint8) for _, _, w, h in boxes]
    cut_boxes(frames, size, boxes, [clip.swapaxes(0, 1) for clip in clips], mirrored)
    return clips


def cut_boxes(
    frames: np.ndarray,
    size: tuple[int, int],
    boxes: Sequence[Box],
    targets: Sequence[np.ndarray],
    mirrored: bool = False,
) -> None:
    """Writes each box of all frames resized to (width, height) into a target (n, C, h, w).

    Bilinear with half-pixel centres, in float32, then rounded (halves to even). All frames use the
    same buffers, which therefore stay in the processor's cache.
    """
    _, *shape, channels = frames.shape
    same = tuple(shape[::-1]) == size
    large = np.empty((*shape, channels), np.float32)
    small = np.empty((*size[::-1], channels), np.float32)
    for k, frame in enumerate(frames):
        if not same:
            large[...] = frame
            frame = cv2.resize(large, size, small, interpolation=cv2.INTER_LINEAR)
        for (x, y, w, h), target in zip(boxes, targets):
            part = frame[y : y + h, x : x + w]
            part = part if same else cv2.convertScaleAbs(part)
            cv2.split(cv2.flip(part, 1) if mirrored else part, list(target[k]))


def cut_crops(frames: np.ndarray, side: int, crop: int, crops: int) -> np.ndarray:
    """The crops of frames whose short side is resized to `side`: uint8 (n, crops, C, crop, crop).

    As in `view_box`; a single one is in the centre.
    """
    count, height, width, channels = frames.shape
    size = scale_short_side(width, height, side)
    boxes = [view_box(*size, crop, position) for position in ((0, 1, 2) if crops == 3 else (1,))]
    result = np.empty((count, len(boxes), channels, crop, crop), np.uint8)
    cut_boxes(frames, size=size, boxes=boxes, targets=[*result.swapaxes(0, 1)])
    return result


def arrange_views(crops: np.ndarray, clips: np.ndarray) -> np.ndarray:
    """All views of a video: uint8 (clips * crops, 3, T, crop, crop), crop after crop of a clip.

    `clips` (K, T) holds indices of `crops`, those of `cut_crops`.
    """
    _, boxes, *shape = crops.shape
    views = np.empty((len(clips), boxes, shape[0], clips.shape[1], *shape[1:]), np.uint8)
    for k, b, t in np.ndindex(len(clips), boxes, clips.shape[1]):
        views[k, b, :, t] = crops[clips[k, t], b]
    return views.reshape(-1, *views.shape[2:])
