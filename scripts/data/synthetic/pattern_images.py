"""A small synthetic image data set in CIFAR-10's binary format: ten patterns as classes.

Position and colours are random. Colours do not depend on the class; ground and body differ enough
for the pattern to be visible. Files: `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`,
`batches.meta.txt`.
"""

import os
from concurrent.futures import as_completed
from pathlib import Path

import cv2
import numpy as np

from scripts.executors.process_pool import start_process_pool
from utils.files import check_folder, write_beside, write_text
from utils.log import Progress

WAVES = ("horizontal", "vertical", "diagonal")
PATTERNS = ("disc", "square", "triangle", "cross", "ring", *WAVES, "checker", "dots")
FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
PER_FILE = 10_000  # images; readers of CIFAR-10 require it
SIZE = 32
CONTRAST = 60  # smallest difference of the two colours, in grey levels
NOISE = 40  # standard deviation, in levels


def draw_image(pattern: str, rng: np.random.RandomState) -> np.ndarray:
    """An image of a pattern: uint8 (32, 32, 3), RGB."""
    # The mask of the body: 0 or 255, antialiased at the edges
    mask = np.zeros((SIZE, SIZE), np.uint8)
    x, y, r = (int(v) for v in rng.randint((12, 12, 7), (20, 20, 11)))
    period = rng.uniform(6, 10)
    phase = rng.uniform(0, 2 * np.pi)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    waves = dict(zip(WAVES, (rows, columns, (rows + columns) / 1.4)))
    if pattern in waves:
        mask = np.where(np.sin(2 * np.pi * waves[pattern] / period + phase) > 0, 255, 0)
    elif pattern == "checker":
        squares = np.sin(rows * 6.3 / period) * np.sin(columns * 6.3 / period + 1)
        mask = np.where(squares > 0, 255, 0)
    elif pattern == "dots":
        for cx in range(x % 8, SIZE, 8):
            for cy in range(y % 8, SIZE, 8):
                cv2.circle(mask, (cx, cy), 2, 255, -1, cv2.LINE_AA)
    elif pattern in ("disc", "ring"):
        cv2.circle(mask, (x, y), r, 255, -1 if pattern == "disc" else 3, cv2.LINE_AA)
    elif pattern == "square":
        cv2.rectangle(mask, (x - r, y - r), (x + r, y + r), 255, -1)
    elif pattern == "cross":
        cv2.line(mask, (x - r, y), (x + r, y), 255, 4)
        cv2.line(mask, (x, y - r), (x, y + r), 255, 4)
    else:
        corners = np.array([[x - r, y + r], [x + r, y + r], [x, y - r]], np.int32)
        cv2.fillPoly(mask, [corners], 255, cv2.LINE_AA)
    ground = body = np.zeros(3)
    while abs(ground.mean() - body.mean()) <= CONTRAST:
        ground, body = rng.uniform(0, 255, (2, 3))
    image = ground + (body - ground) * (mask[..., None] / 255)
    image = image + rng.normal(0, NOISE, (SIZE, SIZE, 3))
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def draw_cifar10(root: Path, seed: int, distinct: int = PER_FILE) -> dict[str, int]:
    """Writes FILES of PER_FILE images, of which `distinct` differ; returns the counts.

    Raises ValueError if `root` has files and not the names of these classes.
    """
    names = "\n".join(PATTERNS) + "\n"
    check_folder(root, {"batches.meta.txt": names})
    write_text(root / "batches.meta.txt", names)
    count = len(FILES)
    with start_process_pool(min(os.cpu_count() or 1, count)) as pool:
        jobs = [pool.submit(draw_file, root / FILES[i], [seed, i], distinct) for i in range(count)]
        for job in Progress(as_completed(jobs), name="drawing", total=count, unit="files"):
            job.result()
    return {"train": 5 * PER_FILE, "test": PER_FILE}


def draw_file(path: Path, seed: list[int], distinct: int) -> None:
    """Writes records of 3073 bytes: the label, then the red, green and blue plane."""
    records = []
    rng = np.random.RandomState(seed)
    for i in range(distinct):
        label = i % len(PATTERNS)
        image = draw_image(PATTERNS[label], rng)
        records.append(bytes([label]) + image.transpose(2, 0, 1).tobytes())
    with write_beside(path) as temporary:
        temporary.write_bytes(b"".join(records) * (PER_FILE // distinct))
        temporary.replace(path)
