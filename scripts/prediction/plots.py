"""Plots of predictions: a preview of the frames with the best classes, and classes over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import cv2
import numpy as np
from matplotlib.figure import Figure  # draws into files; no screen is needed

from utils.files import report_write_errors, write_beside
from utils.messages import format_line

# At most; widths in pixels
LINE_WIDTH = 1440
LINE_FRAMES = 16
FRAME_WIDTH = 224
# Pixels between frames, and below frames with a time
GAP = 4
TIME_HEIGHT = 20
# Pixels
MARGIN = 10
TEXT_HEIGHT = 30
LINE = 26  # of a class
MIN_WIDTH = 760
NAME_LENGTH = 38  # characters of a class name
TIMELINE_CLASSES = 8
DPI = 120  # pixels of an inch


def save(figure: Figure, path: Path, option: str = "--out") -> None:
    """Writes a picture whole or not at all; ValueError, with the option, if not."""
    with report_write_errors(path, option), write_beside(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=DPI)
        temporary.replace(path)


class PreviewRow(NamedTuple):
    """One head: frames uint8 (clips, T, H, W, 3), and the entries of its best classes, if any.

    `times` (clips, T) are the frames' seconds in the video; None if unknown.
    """

    caption: str
    frames: np.ndarray
    entries: list[dict]
    times: Optional[np.ndarray] = None


def draw_preview(path: Path, title: str, rows: Sequence[PreviewRow]) -> None:
    """The clips of each row, beside its best classes. `path` ends in .png.

    Frames start at whole pixels of the file, so that they are not blurred.
    """
    tiled = [tile_frames(resize_to_fit(row.frames), row.times) for row in rows]
    left = max(image.shape[1] for image, _ in tiled)
    texts = [[format_entry(entry) for entry in row.entries] for row in rows]
    right = 20 + 9 * max((len(text) for lines in texts for text in lines), default=0)
    heights = [max(image.shape[0], LINE * len(lines)) for (image, _), lines in zip(tiled, texts)]
    width = max(left + right + 3 * MARGIN, MIN_WIDTH)
    height = TEXT_HEIGHT + sum(heights) + TEXT_HEIGHT * len(rows)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def write(x: float, y: float, text: str, size: float, **style: str) -> None:
        y = 1 - y / height
        figure.text(x / width, y, text, size=size, va="top", parse_math=False, **style)

    write(MARGIN, 6, title, 11)
    top = TEXT_HEIGHT
    for row, (image, labels), lines, row_height in zip(rows, tiled, texts, heights):
        write(MARGIN, top + 8, row.caption, 9)
        top += TEXT_HEIGHT
        figure.figimage(image, MARGIN, height - top - image.shape[0], origin="upper")
        for x, y, text in labels:
            write(MARGIN + x, top + y, text, 6.5, ha="center")
        for k, text in enumerate(lines):
            write(left + 2 * MARGIN, top + LINE * k, text, 9)
        top += row_height
    save(figure, path)


def resize_to_fit(frames: np.ndarray) -> np.ndarray:
    """Frames (clips, T, H, W, 3), enlarged by an integer or reduced to the width of a line."""
    clips, count, height, width, _ = frames.shape
    side = min(FRAME_WIDTH, LINE_WIDTH // min(count, LINE_FRAMES))
    if side >= width:
        return frames.repeat(side // width, axis=2).repeat(side // width, axis=3)
    size = (side, max(round(side * height / width), 1))
    small = [cv2.resize(f, size, interpolation=cv2.INTER_AREA) for clip in frames for f in clip]
    return np.reshape(small, (clips, count, size[1], size[0], 3))


def tile_frames(
    frames: np.ndarray, times: Optional[np.ndarray]
) -> tuple[np.ndarray, list[tuple[float, int, str]]]:
    """All frames as one image (H, W, 3), and labels for it: x, y, text.

    Each clip begins a new line; a long one takes several.
    """
    clips, count, height, width, _ = frames.shape
    columns = min(count, LINE_FRAMES)
    lines = -(-count // columns)
    line_height = height + (GAP if times is None else TIME_HEIGHT)
    shape = (clips * lines * line_height, columns * (width + GAP) - GAP, 3)
    image = np.full(shape, 255, np.uint8)
    labels = []
    for k, t in np.ndindex(clips, count):
        y = (k * lines + t // columns) * line_height
        x = t % columns * (width + GAP)
        image[y : y + height, x : x + width] = frames[k, t]
        if times is not None:
            labels.append((x + width / 2, y + height + 2, f"{times[k, t]:.2f} s"))
    return image, labels


def format_entry(entry: dict) -> str:
    return f"{format_class(entry['name'], entry['label'])}  {100 * entry['probability']:.1f} %"


def format_class(name: str, label: int) -> str:
    return format_line(name or f"label {label}", NAME_LENGTH)


def draw_timeline(
    path: Path,
    title: str,
    spans: np.ndarray,
    panels: Sequence[tuple[str, Sequence[str], np.ndarray]],
) -> None:
    """Probabilities over time: one panel for each (caption, names, (n, classes)).

    `spans` (n, 2) are the start and end of each row in seconds. Each of the most probable classes
    has a colour: a bar for every span, and a thin line through the middles.
    """
    figure = Figure(figsize=(12, 0.6 + 3.2 * len(panels)), layout="constrained")
    figure.suptitle(title, fontsize=11, parse_math=False)
    for axes, (caption, names, fractions) in zip(
        figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels
    ):
        best = np.argsort(-fractions.max(axis=0), kind="stable")[:TIMELINE_CLASSES]
        for number, label in enumerate(best):
            values = 100 * fractions[:, label]
            style = {"color": f"C{number}", "zorder": 10 - number}  # the best class in front
            axes.plot(spans.mean(axis=1), values, ".-", linewidth=0.8, **style)
            name = format_class(names[label] if len(names) else "", label)
            axes.hlines(values, *spans.T, linewidth=2.5, label=name, **style)
        axes.set(ylim=(-4, 104), ylabel="%")
        axes.set_title(caption, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
        legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    axes.set_xlabel("seconds")
    save(figure, path)
