"""Affine warps of all frames of a clip: rotation, shear and shift as Pillow's bicubic `transform`.

A matrix (a, b, c, d, e, f) maps the centre (x, y) of an output pixel to the input position
(a x + b y + c, d x + e y + f). The coefficient of Pillow's cubic kernel is -1, that of OpenCV's is
-0.75, and OpenCV rounds positions to 1/32 pixel. So OpenCV is used here only to filter and to
transpose. Sums are float32, Pillow's are float64: a level differs by one if a sum is very close to
the next level.
"""

import itertools
import math
from typing import NamedTuple

import cv2
import numpy as np
from scipy import sparse

from utils.video.transforms import Box

FILL = 128
TILE = 64
Matrix = tuple[float, float, float, float, float, float]
# OpenCV rounds, Pillow truncates: this offset turns rounding into truncation. The 1e-4 keeps sums
# that are whole levels from falling to the next lower level.
TRUNCATE = 1e-4 - 0.5
EDGE = cv2.BORDER_REPLICATE


class CropRegion(NamedTuple):
    """A crop of the frames of a clip: uint8 pixels (n, h, w, 3) of frames of `width` x `height`.

    The upper left pixel of the region is at (x, y) of the full frame.
    """

    pixels: np.ndarray
    x: int
    y: int
    width: int
    height: int

    def cut(self, box: Box) -> "CropRegion":
        """Cuts out a box, given in pixels of the full frame, without a copy."""
        x, y, width, height = box
        rows = slice(y - self.y, y - self.y + height)
        pixels = self.pixels[:, rows, x - self.x : x - self.x + width]
        return self._replace(pixels=pixels, x=x, y=y)


def clip_to_frame(
    left: float, top: float, right: float, bottom: float, width: int, height: int
) -> Box:
    """The box of all pixels of a frame that a rectangle overlaps, at least one pixel."""
    x0 = min(max(int(left), 0), width - 1)
    y0 = min(max(int(top), 0), height - 1)
    x1 = min(int(np.ceil(right)), width)
    y1 = min(int(np.ceil(bottom)), height)
    return x0, y0, max(x1 - x0, 1), max(y1 - y0, 1)


def make_rotation_matrix(width: int, height: int, degrees: float) -> Matrix:
    """Counterclockwise rotation about the centre; sine and cosine are rounded like Pillow's."""
    angle = -math.radians(degrees)
    cos = round(math.cos(angle), 15)
    sin = round(math.sin(angle), 15)
    x = width / 2
    y = height / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def compute_source_box(matrix: Matrix, box: Box, width: int, height: int) -> Box:
    """The box of the input from which a box of the output is computed."""
    x, y, w, h = box
    a, b, c, d, e, f = matrix
    corners = [(p, q) for p in (x, x + w) for q in (y, y + h)]
    across = [a * p + b * q + c for p, q in corners]
    down = [d * p + e * q + f for p, q in corners]
    ends = min(across) - 3, min(down) - 3, max(across) + 3, max(down) + 3
    return clip_to_frame(*ends, width, height)


def warp_region(region: CropRegion, matrix: Matrix, box: Box) -> np.ndarray:
    """Warps `region`; returns a box of the output, uint8 (n, h, w, 3).

    `region` must contain the `compute_source_box` of `box`.
    """
    a, b, c, d, e, f = matrix
    if (a, d, e, f) == (1, 0, 1, 0):
        return shift_rows(region, slope=b, start=c, box=box)
    if (a, b, c, e) == (1, 0, 0, 1):
        x, y, w, h = box
        size = region.height, region.width
        flipped = CropRegion(transpose_frames(region.pixels), region.y, region.x, *size)
        return transpose_frames(shift_rows(flipped, slope=d, start=f, box=(y, x, h, w)))
    return warp_tiles(region, matrix, box)


def compute_cubic_weights(t: np.ndarray) -> np.ndarray:
    """Weights float32 (4, k) of the pixels -1, 0, 1, 2 for positions `t` (k,) from 0 to 1."""
    square = t * t
    cube = square * t
    weights = 2 * square - t - cube, 1 - 2 * square + cube, t + square - cube, cube - square
    return np.array(weights, np.float32)


def shift_rows(region: CropRegion, slope: float, start: float, box: Box) -> np.ndarray:
    """Shifts each row by slope * (row + 0.5) + start: one set of four weights for a whole row."""
    x, y, w, h = box
    pixels = region.pixels[:, y - region.y : y - region.y + h]
    out = np.empty((len(pixels), h, w, 3), np.uint8)
    if slope:
        shifts = slope * (np.arange(y, y + h) + 0.5) + start
        lines = pixels.swapaxes(0, 1)
        targets = out.swapaxes(0, 1)
    else:  # the same shift for all rows: frame by frame
        shifts = np.full(len(pixels), start)
        lines = pixels
        targets = out
    low = np.floor(shifts)
    nearest = np.floor(shifts + 0.5)
    # The kernel is anchored at the nearest pixel. If that is outside the frame, the result is FILL.
    anchors = (1 + nearest - low).astype(int).tolist()
    moves = nearest.astype(int).tolist()
    kernels = compute_cubic_weights(shifts - low).T.copy()
    for line, target, move, anchor, kernel in zip(lines, targets, moves, anchors, kernels):
        begin, end = (min(max(edge - move, x), x + w) for edge in (0, region.width))
        target[:, : begin - x] = FILL
        target[:, end - x :] = FILL
        if begin < end:
            filtered = cv2.filter2D(line, -1, kernel[None], None, (anchor, 0), TRUNCATE, EDGE)
            source = begin + move - region.x
            target[:, begin - x : end - x] = filtered[:, source : source + end - begin]
    return out


def transpose_frames(frames: np.ndarray) -> np.ndarray:
    """Transposes frames uint8 (n, H, W, 3) to (n, W, H, 3)."""
    n, height, width, _ = frames.shape
    out = np.empty((n, width, height, 3), np.uint8)
    for frame, target in zip(frames, out):
        cv2.transpose(frame, dst=target)
    return out


def warp_tiles(region: CropRegion, matrix: Matrix, box: Box) -> np.ndarray:
    """Warps by any matrix, tile by tile, so that the float32 data of a tile fits into the cache.

    The weights of a tile are a sparse matrix of sixteen for each pixel, the same for all frames.
    Positions outside the frame are filled, and those at its edge read the edge.
    """
    x, y, w, h = box
    a, b, c, d, e, f = matrix
    count = len(region.pixels)
    size = region.width, region.height
    out = np.full((count, h, w, 3), FILL, np.uint8)
    for top, left in itertools.product(range(0, h, TILE), range(0, w, TILE)):
        target = out[:, top : top + TILE, left : left + TILE]
        tile = x + left, y + top, target.shape[2], target.shape[1]
        columns = np.arange(tile[0], tile[0] + tile[2]) + 0.5
        rows = (np.arange(tile[1], tile[1] + tile[3]) + 0.5)[:, None]
        across = a * columns + b * rows + c
        down = d * columns + e * rows + f
        valid = (across >= 0) & (across < size[0]) & (down >= 0) & (down < size[1])
        if not valid.any():
            continue
        source = region.cut(compute_source_box(matrix, tile, *size))
        xs, columns = compute_taps(across[valid], size[0], source.x)
        ys, rows = compute_taps(down[valid], size[1], source.y)
        height, width = source.pixels.shape[1:3]
        values = (ys[:, None] * xs).reshape(16, -1)
        indices = (rows[:, None] * np.int32(width) + columns).reshape(16, -1)
        starts = np.arange(0, values.size + 1, 16, dtype=np.int32)
        parts = cv2.transpose(values).ravel(), cv2.transpose(indices).ravel(), starts
        weights = sparse.csr_matrix(parts, (values.shape[1], height * width))
        frames = swap_axes(source.pixels.reshape(count, -1, 3)).reshape(-1, count * 3)
        levels = cv2.add(weights @ frames.astype(np.float32), TRUNCATE, dtype=cv2.CV_8U)
        if not valid.all():
            inside = levels
            levels = np.full((valid.size, inside.shape[1]), FILL, np.uint8)
            levels[valid.ravel()] = inside
        target[...] = swap_axes(levels.reshape(valid.size, -1, 3)).reshape(target.shape)
    return out


def compute_taps(positions: np.ndarray, size: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Four weights and four pixel indices, counted from `start`, both (4, positions)."""
    low = np.floor(positions - 0.5)
    indices = low.astype(np.int32) + np.arange(-1, 3, dtype=np.int32)[:, None]
    indices = np.clip(indices, 0, size - 1) - np.int32(start)
    return compute_cubic_weights(positions - 0.5 - low), indices


def swap_axes(pixels: np.ndarray) -> np.ndarray:
    """uint8 (n, k, 3) to (k, n, 3), by way of four-byte pixels, which OpenCV transposes fast."""
    n, k, _ = pixels.shape
    padded = cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA).view(np.int32).reshape(n, k)
    transposed = cv2.transpose(padded).view(np.uint8).reshape(k, n, 4)
    return cv2.cvtColor(transposed, cv2.COLOR_RGBA2RGB)
