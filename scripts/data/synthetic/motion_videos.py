"""Synthetic videos whose class is their motion and nothing else, as H.264 files.

A clip shows one shape on a still background. Four properties of the shape (x, y, size, angle) move
on circles of length one: a shape that leaves on the left returns on the right, one that grows
beyond the largest size starts again at the smallest. Two classes move steadily along each circle,
one in each direction. The start is uniform on its circle, so every later position is uniform for
every motion, and no single frame shows the class. A clip played backwards is the clip of the
opposite class, pixel for pixel. So without their order, the frames of the two classes are the same.
Between other pairs of classes, a small movement (wobble) of the resting properties hides the
simplest sign, a property that never changes. Videos with the same number share everything but the
motion, so a network cannot learn backgrounds.
"""

import itertools
import json
import os
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Union

import av
import cv2
import numpy as np

from scripts.data.prepare.encoder import DETERMINISTIC, to_yuv420p
from scripts.executors.process_pool import start_process_pool
from utils.files import check_folder, make_drafts, write_text
from utils.log import Progress

MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "clockwise", "counterclockwise")
# Of each motion: its circle (0 x, 1 y, 2 size, 3 angle) and direction; images count y downwards.
COURSES = ((0, -1), (0, 1), (1, -1), (1, 1), (2, 1), (2, -1), (3, 1), (3, -1))
# Turns on each circle in one clip of any length: a clear step between eight frames, far from the
# half turn at which directions look alike, and at most one jump in size.
TURNS = ((0.6, 0.8), (0.6, 0.8), (0.7, 0.9), (0.5, 0.7))
# Largest movement of a resting property, in turns: less than one step of the motion.
WOBBLE = 0.05
# Radius of the shape over the short side: visible at 48 pixels, never wider than the frame.
RADII = (0.22, 0.45)
# Light on dark only. A small network takes twice as long to learn both contrasts, which show no
# more about motion.
GROUND = (30, 90)
TEXTURE = (-25, 25)
BODY = (150, 240)
MARK = (0, 90)

# Outlines within radius 1 of (0, 0)
BODIES = (
    ((-0.6, -0.8), (-0.1, -0.8), (-0.1, 0.3), (0.6, 0.3), (0.6, 0.8), (-0.6, 0.8)),
    ((0, -1), (0.7, 0), (0.3, 0), (0.3, 0.95), (-0.3, 0.95), (-0.3, 0), (-0.7, 0)),
    ((0, -1), (0.62, 0.78), (-0.62, 0.78)),
    ((-0.3, -0.95), (0.3, -0.95), (0.3, 0.95), (-0.3, 0.95)),
)
SIDES = (64, 128)  # pixels of the short side
ASPECTS = (1.0, 1.2, 1 / 1.2)  # mild, so that a central square crop seldom loses the shape
RATES = (12, 15, 24, 25, 30)
SECONDS = (1.0, 3.0)
RECIPE = "recipe.json"  # edition and seed
EDITION = 1  # increased whenever the same seed gives other pixels


def draw_clip(
    motion: str, rng: np.random.Generator, width: int, height: int, frames: int
) -> np.ndarray:
    """Draws one clip: uint8 RGB (frames, height, width, 3).

    Every motion draws the same numbers from rng. So generators with equal state give eight clips
    that differ in motion only and, if frames is odd, have the same middle frame.
    """
    clouds = cv2.resize(rng.uniform(*TEXTURE, (4, 4, 3)), (width, height))
    ground = (rng.uniform(*GROUND, 3) + clouds).astype(np.float32)  # dark, faintly cloudy
    # The shape is a body, and a mark at its foot, with which it has no rotational symmetry.
    body = np.array(BODIES[rng.integers(len(BODIES))])
    around = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    mark = (0, 0.6) + 0.28 * np.stack((np.cos(around), np.sin(around)), axis=1)
    colors = [rng.uniform(*tones, 3).astype(np.float32) for tones in (BODY, MARK)]

    # Positions on the circles of x, y, size and angle in every frame: (frames, 4), in [0, 1)
    axis, sign = COURSES[MOTIONS.index(motion)]
    start = rng.random(4)
    stray = rng.uniform(-WOBBLE, WOBBLE, 4)
    pace = rng.random()
    # Time is odd about the middle and the wobble even, so backwards is the opposite motion.
    time = (np.arange(frames) - (frames - 1) / 2) / max(frames - 1, 1)
    positions = start + stray * (1 - np.cos(2 * np.pi * np.abs(time)))[:, None] / 2
    # A resting size turns back at the ends: only growing and shrinking jump.
    positions[:, 2] = 1 - np.abs(1 - np.abs(positions[:, 2]))
    slow, fast = TURNS[axis]
    positions[:, axis] = start[axis] + sign * (slow + pace * (fast - slow)) * time

    clip = np.empty((frames, height, width, 3), np.uint8)
    for frame, position in zip(clip, positions % 1.0):
        picture = ground
        for outline, color in zip((body, mark), colors):
            mask = _coverage(outline, location=position, width=width, height=height)
            picture = picture + mask * (color - picture)
        frame[:] = np.rint(picture)
    return clip


def _coverage(outline: np.ndarray, location: np.ndarray, width: int, height: int) -> np.ndarray:
    """The fraction of every pixel inside the outline: float32 (height, width, 1) in [0, 1]."""
    small, large = RADII
    radius = small * (large / small) ** location[2] * min(width, height)
    cos = np.cos(2 * np.pi * location[3])
    sin = np.sin(2 * np.pi * location[3])
    points = radius * outline @ np.array(((cos, sin), (-sin, cos))) + location[:2] * (width, height)
    # Drawn on a canvas with twice the sides, which is then folded: parts beyond an edge reappear at
    # the opposite one, without the seam that clipping an antialiased outline leaves.
    half = np.array((width // 2, height // 2))
    canvas = np.zeros((2 * height, 2 * width), np.uint8)
    sixteenths = np.rint((points + half) * 16).astype(np.int32)
    cv2.fillPoly(canvas, [sixteenths], 255, cv2.LINE_AA, shift=4)
    mask = np.roll(canvas.reshape(2, height, 2, width).max(axis=(0, 2)), -half[::-1], axis=(0, 1))
    return mask[..., None].astype(np.float32) / 255


def write_video(
    path: Union[str, Path], frames: Iterable[np.ndarray], rate: float, **options: str
) -> None:
    """Encodes uint8 RGB frames (height, width, 3), of even sides, into an H.264 file.

    `rate` is in frames per second. `options` of the encoder come besides two B-frames, crf 16,
    preset veryfast, one thread, a key frame every 30 frames.
    """
    frames = iter(frames)
    first_frame = next(frames)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", Fraction(rate).limit_denominator(1001))
        stream.height, stream.width = first_frame.shape[:2]
        stream.pix_fmt = "yuv420p"
        defaults = {"preset": "veryfast", "crf": "16", "bf": "2", "threads": "1", "g": "30"}
        defaults["x264-params"] = DETERMINISTIC
        stream.codec_context.options = {**defaults, **options}
        for frame in itertools.chain((first_frame,), frames):
            container.mux(stream.encode(to_yuv420p(frame)))
        container.mux(stream.encode())


Names = dict[str, tuple[str, ...]]
LISTS: Names = {"train": ("train.txt",), "test": ("test.txt",)}
CSV_LISTS: Names = {"train": ("train.csv",), "test": ("val.csv", "test.csv")}
EIGHT_CLASSES: Names = {motion: (motion,) for motion in MOTIONS}
# {data set: {class: its motions}}: one class for each motion; one for each axis; without turns, in
# another order.
SETS: dict[str, Names] = {
    "eight": EIGHT_CLASSES,
    "axes": {
        "horizontal": ("right", "left"),
        "angle": ("clockwise", "counterclockwise"),
        "vertical": ("up", "down"),
        "size": ("grow", "shrink"),
    },
    "moves": {motion: (motion,) for motion in reversed(MOTIONS[:6])},
}


def draw_dataset(
    root: Union[str, Path],
    train_per_motion: int = 40,
    test_per_motion: int = 10,
    seed: int = 0,
    classes: Names = EIGHT_CLASSES,
    lists: Names = LISTS,
) -> dict[str, int]:
    """Writes root/videos/{train,test}/<motion>_<number>.mp4, the lists and labels.txt.

    A line of a list is "videos/train/left_000.mp4 0": path below root, label. Complete videos are
    kept, so the next call completes an interrupted one, and a larger set begins with a smaller one
    of the same seed. Videos are made in spawned processes, one per core: a script that calls this
    needs `if __name__ == "__main__"`.

    `classes` holds the motions of every class, in the order of the labels; others are in no list.
    `lists` holds the file names of the train and the test list. Returns the number of lines of each
    list, and "drawn", the number of videos that this call has made. Raises ValueError for a root
    with other videos.
    """
    root = Path(root)
    counts = {"train": train_per_motion, "test": test_per_motion}
    check_folder(root, {RECIPE: r'\{"edition": \d+, "seed": \d+'})
    recipe = {"edition": EDITION, "seed": seed}
    existing = json.loads((root / RECIPE).read_text()) if (root / RECIPE).exists() else {}
    if existing and not recipe.items() <= existing.items():
        raise ValueError(f"{root} was drawn with {existing}, not {recipe}; name another")

    label_of = {motion: k for k, motions in enumerate(classes.values()) for motion in motions}
    lines: dict[str, list[str]] = {"train": [], "test": []}
    missing = []  # (path, motion, seed of the video, which is that of all motions)
    for index, (split, count) in enumerate(counts.items()):
        (root / "videos" / split).mkdir(parents=True, exist_ok=True)
        for number, motion in itertools.product(range(count), MOTIONS):
            path = f"videos/{split}/{motion}_{number:03d}.mp4"
            if not (root / path).exists():
                missing.append((path, motion, (seed, index, number)))
            if motion in label_of:
                lines[split].append(f"{path} {label_of[motion]}")
    if not existing:
        write_text(root / RECIPE, json.dumps(recipe))
    if missing:
        workers = min(os.cpu_count() or 1, 16, len(missing))
        with make_drafts(root) as drafts, start_process_pool(workers) as pool:
            jobs = pool.map(partial(_write_one, root, drafts), missing, chunksize=4)
            for _ in Progress(jobs, "drawn", len(missing)):
                pass
    texts = {root / name: lines[split] for split in lines for name in lists[split]}
    for path, names in {**texts, root / "labels.txt": list(classes)}.items():
        text = "".join(f"{name}\n" for name in names)
        if not path.is_file() or path.read_text() != text:
            write_text(path, text)
    return {**{split: len(part) for split, part in lines.items()}, "drawn": len(missing)}


def _write_one(root: Path, drafts: Path, video: tuple[str, str, tuple[int, int, int]]) -> None:
    path, motion, seed = video
    cv2.setNumThreads(1)  # there is a process for each core
    rng = np.random.default_rng(seed)
    short = rng.integers(SIDES[0], SIDES[1] + 1)
    aspect = rng.choice(ASPECTS)
    width, height = (2 * round(short * long / 2) for long in (max(aspect, 1), max(1 / aspect, 1)))
    rate = int(rng.choice(RATES))
    frames = round(rate * rng.uniform(*SECONDS))
    draft = drafts / "_".join(Path(path).parts)
    clip = draw_clip(motion, rng=rng, width=width, height=height, frames=frames)
    write_video(draft, clip, rate)
    draft.replace(root / path)


def draw_sets(
    root: Union[str, Path], train_per_motion: int = 20, test_per_motion: int = 8, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Writes root/<name> for each of SETS, without a common video; {name: counts of its lists}."""
    counts = train_per_motion, test_per_motion
    return {
        name: draw_dataset(Path(root) / name, *counts, len(SETS) * seed + k, classes, CSV_LISTS)
        for k, (name, classes) in enumerate(SETS.items())
    }
