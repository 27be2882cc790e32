"""Rotation, shear and shift as Pillow's bicubic `transform`, for all frames of a clip at once.

A matrix (a, b, c, d, e, f) takes the centre (x, y) of an output pixel to a x + b y + c and
d x + e y + f of the input. Pillow's cubic has the coefficient -1 where OpenCV's has -0.75, and
OpenCV rounds places to 1/32 pixel: so OpenCV only filters and transposes here. Sums are float32
where Pillow's are float64: a level differs by one where a sum is that close to the next level.
"""

import math

import cv2
import numpy as np
from scipy import sparse

from mvit_multi.crop_region import Window, inside
from utils.video.decoders import Box

FILL = 128
TILE = 64
Matrix = tuple[float, float, float, float, float, float]
# OpenCV rounds where Pillow cuts: half a level less, but whole levels must not fall below.
CUT = 1e-4 - 0.5
EDGE = cv2.BORDER_REPLICATE


def shear(x: float, y: float) -> Matrix:
    return 1, x, 0, y, 1, 0


def shift(x: float, y: float) -> Matrix:
    return 1, 0, x, 0, 1, y


def rotation(degrees: float, width: int, height: int) -> Matrix:
    """Counterclockwise about the middle; digits cut off as by Pillow."""
    angle = -math.radians(degrees)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def source_box(matrix: Matrix, box: Box, width: int, height: int) -> Box:
    """What of the input a box of the output is made of."""
    x, y, w, h = box
    a, b, c, d, e, f = matrix
    corners = [(p, q) for p in (x, x + w) for q in (y, y + h)]
    across = [a * p + b * q + c for p, q in corners]
    down = [d * p + e * q + f for p, q in corners]
    ends = min(across) - 3, min(down) - 3, max(across) + 3, max(down) + 3
    return inside(*ends, width, height)


def warp(window: Window, matrix: Matrix, box: Box) -> np.ndarray:
    """A box of the output, uint8 (n, h, w, 3); the window holds the box's `source_box`."""
    a, b, c, d, e, f = matrix
    if (a, d, e, f) == (1, 0, 1, 0):
        return slid_rows(window, b, c, box)
    if (a, b, c, e) == (1, 0, 0, 1):
        x, y, w, h = box
        turned = Window(transposed(window.pixels), window.y, window.x, window.height, window.width)
        return transposed(slid_rows(turned, d, f, (y, x, h, w)))
    return turned_frames(window, matrix, box)


def cubic(part: np.ndarray) -> np.ndarray:
    """Weights float32 (4, k) of the pixels -1, 0, 1, 2 for places `part` (k,) of the way to 1."""
    square = part * part
    cube = square * part
    weights = 2 * square - part - cube, 1 - 2 * square + cube, part + square - cube, cube - square
    return np.array(weights, np.float32)


def slid_rows(window: Window, slope: float, start: float, box: Box) -> np.ndarray:
    """Every row slides by itself: the same four weights along a row of all frames."""
    x, y, w, h = box
    pixels = window.pixels[:, y - window.y : y - window.y + h]
    out = np.empty((len(pixels), h, w, 3), np.uint8)
    if slope:
        places, lines = slope * (np.arange(y, y + h) + 0.5) + start, pixels.swapaxes(0, 1)
        targets = out.swapaxes(0, 1)
    else:  # all rows alike: frame by frame
        places, lines, targets = np.full(len(pixels), start), pixels, out
    low, nearest = np.floor(places), np.floor(places + 0.5)
    # The weights are anchored at the nearest pixel: where that is in the frame, so are all.
    anchors = (1 + nearest - low).astype(int).tolist()
    moves, kernels = nearest.astype(int).tolist(), cubic(places - low).T.copy()
    for line, target, move, anchor, kernel in zip(lines, targets, moves, anchors, kernels):
        first, last = (min(max(end - move, x), x + w) for end in (0, window.width))
        target[:, : first - x], target[:, last - x :] = FILL, FILL
        if first < last:
            found = cv2.filter2D(line, -1, kernel[None], None, (anchor, 0), CUT, EDGE)
            target[:, first - x : last - x] = found[:, first + move - window.x :][:, : last - first]
    return out


def transposed(frames: np.ndarray) -> np.ndarray:
    """uint8 (n, H, W, 3) to (n, W, H, 3)."""
    n, height, width, _ = frames.shape
    out = np.empty((n, width, height, 3), np.uint8)
    for frame, target in zip(frames, out):
        cv2.transpose(frame, dst=target)
    return out


def turned_frames(window: Window, matrix: Matrix, box: Box) -> np.ndarray:
    """Any matrix, tile by tile, so that all floats of one fit the cache."""
    x, y, w, h = box
    out = np.full((len(window.pixels), h, w, 3), FILL, np.uint8)
    for top in range(0, h, TILE):
        for left in range(0, w, TILE):
            part = out[:, top : top + TILE, left : left + TILE]
            tile = x + left, y + top, part.shape[2], part.shape[1]
            fill_tile(part, window, matrix, tile)
    return out


def fill_tile(out: np.ndarray, window: Window, matrix: Matrix, tile: Box) -> None:
    """Sixteen weights a pixel, which are one sparse matrix for all frames."""
    x, y, w, h = tile
    a, b, c, d, e, f = matrix
    columns, rows = np.arange(x, x + w) + 0.5, (np.arange(y, y + h) + 0.5)[:, None]
    across, down = a * columns + b * rows + c, d * columns + e * rows + f
    valid = (across >= 0) & (across < window.width) & (down >= 0) & (down < window.height)
    if not valid.any():
        return
    source = window.cut(source_box(matrix, tile, window.width, window.height))
    weights = weight_matrix(source, across[valid], down[valid])
    found = weights @ pixels_first(source.pixels).astype(np.float32)
    found = cv2.add(found, CUT, dtype=cv2.CV_8U)
    if not valid.all():
        found, known = np.full((h * w, found.shape[1]), FILL, np.uint8), found
        found[valid.ravel()] = known
    out[...] = frames_first(found, h, w)


def weight_matrix(window: Window, across: np.ndarray, down: np.ndarray) -> sparse.csr_matrix:
    """float32 (places, pixels of the window); beyond the frame's edge is the edge again."""
    height, width = window.pixels.shape[1:3]
    xs, columns = taps(across, window.width, window.x)
    ys, rows = taps(down, window.height, window.y)
    values = (ys[:, None] * xs).reshape(16, -1)
    places = (rows[:, None] * np.int32(width) + columns).reshape(16, -1)
    starts = np.arange(0, values.size + 1, 16, dtype=np.int32)
    shape = len(across), height * width
    parts = cv2.transpose(values).ravel(), cv2.transpose(places).ravel(), starts
    return sparse.csr_matrix(parts, shape)


def taps(places: np.ndarray, size: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Four weights and four indices, counted from `start`, each (4, places)."""
    low = np.floor(places - 0.5)
    indices = low.astype(np.int32) + np.arange(-1, 3, dtype=np.int32)[:, None]
    return cubic(places - 0.5 - low), np.clip(indices, 0, size - 1) - np.int32(start)


def pixels_first(frames: np.ndarray) -> np.ndarray:
    """uint8 (n, H, W, 3) to (H * W, n * 3), by way of four-byte pixels, which OpenCV turns fast."""
    n, height, width, _ = frames.shape
    padded = cv2.cvtColor(frames.reshape(n * height, width, 3), cv2.COLOR_RGB2RGBA)
    turned = cv2.transpose(padded.view(np.int32).reshape(n, height * width))
    turned = turned.view(np.uint8).reshape(height * width, n, 4)
    return cv2.cvtColor(turned, cv2.COLOR_RGBA2RGB).reshape(height * width, n * 3)


def frames_first(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The way back: uint8 (H * W, n * 3) to (n, H, W, 3)."""
    n = pixels.shape[1] // 3
    padded = cv2.cvtColor(pixels.reshape(height * width, n, 3), cv2.COLOR_RGB2RGBA)
    turned = cv2.transpose(padded.view(np.int32).reshape(height * width, n))
    turned = turned.view(np.uint8).reshape(n * height, width, 4)
    return cv2.cvtColor(turned, cv2.COLOR_RGBA2RGB).reshape(n, height, width, 3)
