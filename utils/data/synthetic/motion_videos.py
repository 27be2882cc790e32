"""Draws videos whose class is their motion and nothing else, and writes them as H.264 files.

A clip shows one shape on a still background. Four properties of the shape (x, y, size, angle) are
places on circles of length one: a shape that leaves on the left returns on the right, one that
outgrows the largest size starts again at the smallest. Two classes move steadily along each
circle, one either way. A start uniform on its circle makes every later place uniform, whatever the
motion, so no single frame tells one class from another. A clip played backwards is the clip of the
opposite class, pixel for pixel, so without their order the frames of such a pair are the same;
between pairs, a wobble of the resting properties hides the plainest sign, a property that never
changes. Videos of one number share all but the motion: there is no background to learn by heart.
"""

import json
import os
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Optional, Union

import av
import cv2
import numpy as np
from tqdm import tqdm

from utils.process_pool import start_process_pool

MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "clockwise", "counterclockwise")
# The circle a motion follows (0 x, 1 y, 2 size, 3 angle) and which way; images count y downwards.
COURSES = ((0, -1), (0, 1), (1, -1), (1, 1), (2, 1), (2, -1), (3, 1), (3, -1))
# Turns of each circle in one clip, however long: a clear step from each of eight frames to the
# next, far from the half turn where directions are confused, and at most one jump in size.
TURNS = ((0.6, 0.8), (0.6, 0.8), (0.7, 0.9), (0.5, 0.7))
# Farthest a resting property strays, in turns: less than one step of the motion.
WOBBLE = 0.05
# Radius of the shape over the short side: legible at 48 pixels, never wider than the frame.
RADII = (0.22, 0.45)
# Light on dark throughout. Both contrasts would say no more about motion and take a small network
# twice as long to learn.
GROUND, TEXTURE, BODY, MARK = (30, 90), (-25, 25), (150, 240), (0, 90)

SIDES = (64, 128)  # pixels of the short side
ASPECTS = (1.0, 1.2, 1 / 1.2)  # mild, so that a central square crop seldom loses the shape
RATES = (12, 15, 24, 25, 30)
SECONDS = (1.0, 3.0)
EDITION = 1  # of the drawings: one higher whenever the same seed comes to give other pixels

GRID, DIGITS = (3, 4), 10  # a numbered frame: a white cell, ten binary digits, a black cell


def draw_clip(
    motion: str, rng: np.random.Generator, width: int, height: int, frames: int
) -> np.ndarray:
    """Draws one clip: uint8 RGB (frames, height, width, 3).

    Every motion asks rng for the same numbers. Generators of equal state therefore give eight clips
    that differ in motion only and, when frames is odd, have their middle frame in common.

    Raises:
        ValueError: motion is not one of MOTIONS.
    """
    if motion not in MOTIONS:
        raise ValueError(f"motion {motion!r} is none of {', '.join(MOTIONS)}")
    ground = _draw_ground(rng, width, height)
    parts = _draw_shape(rng)
    clip = np.empty((frames, height, width, 3), np.uint8)
    for frame, position in zip(clip, _places(motion, rng, frames)):
        picture = ground
        for outline, color in parts:
            picture = picture + _coverage(outline, position, width, height) * (color - picture)
        frame[:] = np.rint(picture)
    return clip


def _places(motion: str, rng: np.random.Generator, frames: int) -> np.ndarray:
    """Places on the circles of x, y, size and angle at each frame: (frames, 4), in [0, 1)."""
    axis, sign = COURSES[MOTIONS.index(motion)]
    start, stray, pace = rng.random(4), rng.uniform(-WOBBLE, WOBBLE, 4), rng.random()
    # Odd about the middle, and the wobble even: backwards is exactly the opposite motion.
    time = (np.arange(frames) - (frames - 1) / 2) / max(frames - 1, 1)
    positions = start + stray * (1 - np.cos(2 * np.pi * np.abs(time)))[:, None] / 2
    # A resting size turns back at the ends: jumps belong to growing and shrinking alone.
    positions[:, 2] = 1 - np.abs(1 - np.abs(positions[:, 2]))
    slow, fast = TURNS[axis]
    positions[:, axis] = start[axis] + sign * (slow + pace * (fast - slow)) * time
    return positions % 1.0


def _draw_ground(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A dark, faintly cloudy background: float32 (height, width, 3)."""
    clouds = cv2.resize(rng.uniform(*TEXTURE, (4, 4, 3)), (width, height))
    return (rng.uniform(*GROUND, 3) + clouds).astype(np.float32)


def _draw_shape(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outlines within radius 1 of (0, 0) and their colours: a body, and a mark at its foot.

    The mark leaves no shape any rotational symmetry.
    """
    bodies = (
        ((-0.6, -0.8), (-0.1, -0.8), (-0.1, 0.3), (0.6, 0.3), (0.6, 0.8), (-0.6, 0.8)),
        ((0, -1), (0.7, 0), (0.3, 0), (0.3, 0.95), (-0.3, 0.95), (-0.3, 0), (-0.7, 0)),
        ((0, -1), (0.62, 0.78), (-0.62, 0.78)),
        ((-0.3, -0.95), (0.3, -0.95), (0.3, 0.95), (-0.3, 0.95)),
    )
    body = np.array(bodies[rng.integers(len(bodies))])
    around = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    mark = (0, 0.6) + 0.28 * np.stack((np.cos(around), np.sin(around)), axis=1)
    colors = (rng.uniform(*tones, 3).astype(np.float32) for tones in (BODY, MARK))
    return list(zip((body, mark), colors))


def _coverage(outline: np.ndarray, location: np.ndarray, width: int, height: int) -> np.ndarray:
    """The share of each pixel inside the outline: float32 (height, width, 1) in [0, 1]."""
    small, large = RADII
    radius = small * (large / small) ** location[2] * min(width, height)
    cos, sin = np.cos(2 * np.pi * location[3]), np.sin(2 * np.pi * location[3])
    points = radius * outline @ np.array(((cos, sin), (-sin, cos))) + location[:2] * (width, height)
    # Drawn whole on a canvas of twice the sides, then folded: what crosses an edge comes in at the
    # opposite one, without the seam that clipping an antialiased outline leaves.
    half = np.array((width // 2, height // 2))
    canvas = np.zeros((2 * height, 2 * width), np.uint8)
    sixteenths = np.rint((points + half) * 16).astype(np.int32)
    cv2.fillPoly(canvas, [sixteenths], 255, cv2.LINE_AA, shift=4)
    mask = np.roll(canvas.reshape(2, height, 2, width).max(axis=(0, 2)), -half[::-1], axis=(0, 1))
    return mask[..., None].astype(np.float32) / 255


def write_video(
    path: Union[str, Path],
    frames: Iterable[np.ndarray],
    rate: float,
    codec: str = "libx264",
    gop: int = 30,
    options: Optional[dict[str, str]] = None,
) -> None:
    """Encodes uint8 RGB frames (height, width, 3) into an mp4 file that appears only when whole.

    Args:
        rate: frames per second.
        gop: most frames from one key frame to the next.
        options: encoder options on top of ours: two B-frames, crf 16, preset veryfast, one thread.

    Raises:
        ValueError: there is no frame, or a side is odd, which yuv420p cannot hold.
    """
    path, frames = Path(path), iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError(f"{path}: a video needs at least one frame")
    height, width = first.shape[:2]
    if width % 2 or height % 2:
        raise ValueError(f"{path}: sides must be even, not {width}x{height}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with av.open(str(part), "w", format="mp4") as container:
            stream = container.add_stream(codec, Fraction(rate).limit_denominator(1001))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            ours = {"preset": "veryfast", "crf": "16", "bf": "2", "threads": "1", "g": str(gop)}
            if codec == "libx264":  # its look-ahead differs from run to run
                ours["x264-params"] = (
                    "rc-lookahead=0:mbtree=0:cpu-independent=1:lookahead-threads=1"
                )
            stream.codec_context.options = {**ours, **(options or {})}
            for frame in chain((first,), frames):
                # Converted here: FFmpeg's scaler reads past the right edge of narrow frames, and
                # the same pixels came out as different files.
                planes = cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
            container.mux(stream.encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_numbered_video(
    path: Union[str, Path], frames: int, width: int, height: int, rate: float, **encoding
) -> None:
    """Writes a video whose every frame shows its number, from 0, for read_number to read.

    Args:
        encoding: codec, gop and options of write_video.

    Raises:
        ValueError: more frames than ten binary digits can number, or as write_video.
    """
    if frames > 1 << DIGITS:
        raise ValueError(f"{path}: {frames} frames, but numbers end at {(1 << DIGITS) - 1}")
    pictures = (_draw_number(number, width, height) for number in range(frames))
    write_video(path, pictures, rate, **encoding)


def _draw_number(number: int, width: int, height: int) -> np.ndarray:
    digits = [number >> position & 1 for position in range(DIGITS)]
    cells = np.array([1, *digits, 0], np.uint8).reshape(GRID) * 255
    gray = cv2.resize(cells, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.repeat(gray[..., None], 3, axis=2)


def read_number(frame: np.ndarray) -> int:
    """Reads the number off a whole frame (height, width[, channels]), resized or normalised.

    Raises:
        ValueError: the frame is a mixture of two, or shows no number.
    """
    gray = frame.astype(np.float32).reshape(*frame.shape[:2], -1).mean(axis=2)
    white, *digits, black = cv2.resize(gray, GRID[::-1], interpolation=cv2.INTER_AREA).ravel()
    levels = (np.array(digits) - black) / max(white - black, 1e-6)
    if white - black < 0.1 or np.any(np.abs(np.abs(levels - 0.5) - 0.5) > 0.3):
        raise ValueError("the frame shows no single number")
    return sum(1 << position for position, level in enumerate(levels) if level > 0.5)


class _Video(NamedTuple):
    """One file to draw; the seed knows its number and split but not its motion."""

    path: str
    motion: str
    seed: tuple[int, int, int]


def draw_dataset(
    root: Union[str, Path], train_per_class: int = 40, test_per_class: int = 10, seed: int = 0
) -> dict[str, int]:
    """Draws root/videos/{train,test}/<motion>_<number>.mp4, train.txt, test.txt and labels.txt.

    A line of a list is "videos/train/left_000.mp4 0": path below root, label. Finished videos are
    kept, so an interrupted call is completed by the next and a larger set begins with a smaller
    one of the same seed. Videos are drawn in fresh processes, one per core: a script that calls
    this keeps its own work under `if __name__ == "__main__"`.

    Returns:
        The videos of each split, and "drawn", how many of them this call has drawn.

    Raises:
        ValueError: a count below 1, a negative seed, or a root that holds other videos.
    """
    root, splits = Path(root), {"train": train_per_class, "test": test_per_class}
    if min(splits.values()) < 1 or seed < 0:
        raise ValueError(f"counts begin at 1 and the seed at 0, not {splits} and {seed}")
    recipe = {"edition": EDITION, "seed": seed}
    videos = {
        split: [
            _Video(f"videos/{split}/{motion}_{number:03d}.mp4", motion, (seed, position, number))
            for number in range(count)
            for motion in MOTIONS
        ]
        for position, (split, count) in enumerate(splits.items())
    }
    missing = [v for v in chain(*videos.values()) if not (root / v.path).exists()]
    if missing or _read_json(root / "drawn.json") != {**recipe, **splits}:
        _claim(root, recipe)
        _draw_videos(root, missing)
        for split, drawn in videos.items():
            lines = (f"{v.path} {MOTIONS.index(v.motion)}\n" for v in drawn)
            write_text(root / f"{split}.txt", "".join(lines))
        write_text(root / "labels.txt", "".join(f"{motion}\n" for motion in MOTIONS))
        write_text(root / "drawn.json", json.dumps({**recipe, **splits}))
    return {**{split: len(drawn) for split, drawn in videos.items()}, "drawn": len(missing)}


def _claim(root: Path, recipe: dict[str, int]) -> None:
    """Says in the folder, before the first video, what is being drawn there."""
    result = _read_json(root / "recipe.json")
    foreign = [name for name in ("videos", "train.txt", "test.txt") if (root / name).exists()]
    if result is None and foreign:
        raise ValueError(f"{root} holds {', '.join(foreign)} of another origin; name a new folder")
    if result not in (None, recipe):
        raise ValueError(f"{root} was drawn with {result}, not {recipe}; delete it or name another")
    for split in ("train", "test"):
        (root / "videos" / split).mkdir(parents=True, exist_ok=True)
    write_text(root / "recipe.json", json.dumps(recipe))
    (root / "drawn.json").unlink(missing_ok=True)


def _draw_videos(root: Path, videos: list[_Video]) -> None:
    if not videos:
        return
    with start_process_pool(min(os.cpu_count() or 1, 16, len(videos))) as pool:
        jobs = pool.map(_draw_video, [root] * len(videos), videos, chunksize=4)
        for _ in tqdm(jobs, "drawing", len(videos), unit="video", disable=None):
            pass


def _draw_video(root: Path, video: _Video) -> None:
    cv2.setNumThreads(1)  # there is a process for each core
    rng = np.random.default_rng(video.seed)
    short, aspect = rng.integers(SIDES[0], SIDES[1] + 1), rng.choice(ASPECTS)
    width, height = (2 * round(short * long / 2) for long in (max(aspect, 1), max(1 / aspect, 1)))
    rate = int(rng.choice(RATES))
    frames = round(rate * rng.uniform(*SECONDS))
    write_video(root / video.path, draw_clip(video.motion, rng, width, height, frames), rate)


def _read_json(path: Path) -> Optional[dict[str, int]]:
    return json.loads(path.read_text()) if path.exists() else None


def write_text(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


# Each motion its own class; only the axis; all but turns, in another order.
SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "eight": {motion: (motion,) for motion in MOTIONS},
    "axes": {
        "horizontal": ("right", "left"),
        "angle": ("clockwise", "counterclockwise"),
        "vertical": ("up", "down"),
        "size": ("grow", "shrink"),
    },
    "moves": {motion: (motion,) for motion in reversed(MOTIONS[:6])},
}


def draw_sets(
    root: Union[str, Path], train_per_motion: int = 20, test_per_motion: int = 8, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Draws root/<name> for each of SETS, with train.csv, val.csv, test.csv and labels.txt.

    No two sets share a video. A line of a list is "videos/train/left_000.mp4 0".

    Returns:
        {name: lines of train.csv and test.csv, and how many videos this call has drawn}.

    Raises:
        ValueError: as `draw_dataset`.
    """
    result = {}
    for number, (name, classes) in enumerate(SETS.items()):
        home = Path(root) / name
        counts = draw_dataset(home, train_per_motion, test_per_motion, len(SETS) * seed + number)
        label_of = {motion: k for k, motions in enumerate(classes.values()) for motion in motions}
        for split in ("train", "test"):
            pairs = [line.split() for line in (home / f"{split}.txt").read_text().splitlines()]
            named = [(path, MOTIONS[int(label)]) for path, label in pairs]
            lines = [f"{path} {label_of[motion]}\n" for path, motion in named if motion in label_of]
            counts[split] = len(lines)
            for target in ("train",) if split == "train" else ("val", "test"):
                write_text(home / f"{target}.csv", "".join(lines))
        write_text(home / "labels.txt", "".join(f"{each}\n" for each in classes))
        result[name] = counts
    return result
