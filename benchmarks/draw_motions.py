"""Draws the animated picture of README.md: videos of motions, and what two networks predict.

    python benchmarks/draw_motions.py --tsm CHECKPOINT --tsn CHECKPOINT [--number 1] [--out FILE]

--tsm and --tsn are checkpoints of the quickstart: TSM, and the same network without the shift. The
videos are its test videos with this number, which differ in their motion only. Writes
docs/motions.webp. The last line of stdout is one JSON object: out, bytes, and the classes that each
network predicts.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from utils import cli
from utils.files import ROOT
from utils.predict import model as api
from utils.video.decoders import open_video

VIDEOS = ROOT / "data/synthetic/videos/test"
MOTIONS = ("left", "up", "grow", "clockwise")
SETTINGS = {"TSM": (), "TSN": ("model.shift_div=0",)}
FRAMES = 24
MILLISECONDS = 90  # of each frame
# Pixels
SIDE = 168
GAP = 14
LINE = 26
# A dark ground suits a white page and a black one. Red and green differ in brightness too.
GROUND = (22, 27, 34)
TEXT = (230, 237, 243)
RIGHT = (86, 211, 100)
WRONG = (255, 123, 114)
TICK = ((0, 6), (4, 11), (12, 0))
CROSS = ((0, 0), (11, 11), (5, 5), (11, 0), (0, 11))


class Column(NamedTuple):
    """A video: its motion, frames uint8 (FRAMES, SIDE, SIDE, 3), and predictions by network."""

    motion: str
    frames: np.ndarray
    predictions: dict[str, tuple[str, float]]


def main(
    *,
    tsm: Path,
    tsn: Path,
    number: cli.NonNegativeInt = 1,
    out: Path = ROOT / "docs/motions.webp",
) -> None:
    models = {
        name: api.load("tsm_smoke", path, device="CPU", settings=SETTINGS[name])
        for name, path in {"TSM": tsm, "TSN": tsn}.items()
    }
    columns = []
    for motion in MOTIONS:
        path = VIDEOS / f"{motion}_{number:03d}.mp4"
        predictions = {name: model.predict(path, top=1)[0] for name, model in models.items()}
        columns.append(Column(motion, frames=read_frames(path), predictions=predictions))
    images = [draw_image(columns, k) for k in range(FRAMES)]
    options = {"save_all": True, "append_images": images[1:], "loop": 0, "method": 6}
    images[0].save(out, duration=MILLISECONDS, quality=75, **options)
    classes = {name: [column.predictions[name][0] for column in columns] for name in models}
    print(json.dumps({"out": str(out), "bytes": out.stat().st_size, **classes}))


def read_frames(path: Path) -> np.ndarray:
    """FRAMES frames at equal distances, each a square of SIDE pixels."""
    with open_video(path) as video:
        frames = video.frames(np.linspace(0, len(video) - 1, FRAMES).round().astype(int))
    size = (SIDE, SIDE)
    return np.stack([ImageOps.fit(Image.fromarray(frame), size) for frame in frames])


def draw_image(columns: list[Column], frame: int) -> Image.Image:
    """One frame of the picture: the videos beside each other, with the predictions below."""
    size = (GAP + len(columns) * (SIDE + GAP), SIDE + (1 + len(SETTINGS)) * LINE + GAP + GAP // 2)
    image = Image.new("RGB", size, GROUND)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(15)
    for k, column in enumerate(columns):
        x = GAP + k * (SIDE + GAP)
        draw.text((x + SIDE / 2, LINE / 2), column.motion, fill=TEXT, font=font, anchor="mm")
        image.paste(Image.fromarray(column.frames[frame]), (x, LINE))
        for number, (name, (label, probability)) in enumerate(column.predictions.items()):
            y = LINE + SIDE + GAP + number * LINE
            is_right = label == column.motion
            color = RIGHT if is_right else WRONG
            points = [(x + px, y + py) for px, py in (TICK if is_right else CROSS)]
            draw.line(points, fill=color, width=3)
            text = f"{name}: {label} {100 * probability:.0f} %"
            draw.text((x + 20, y + 6), text, fill=color, font=font, anchor="lm")
    return image


if __name__ == "__main__":
    cli.run_command(main, __doc__)
