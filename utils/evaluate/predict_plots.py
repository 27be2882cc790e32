"""Pictures of predictions: the frames that the network saw with its scores, classes over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import cv2
import numpy as np
from matplotlib.figure import Figure  # draws into files; no screen is needed

from utils.plotting import DPI, save, shortened

LINE, ACROSS, TILE = 1440, 16, 224  # pixels and frames of a line; pixels of a frame, at most
GAP, BELOW = 4, 20  # pixels between frames, and below those whose times are told
EDGE, HEAD, BAR, LEAST = 10, 30, 26, 760  # pixels: margin, a line of text, a bar, the whole width
TEXT = 38  # letters of a name
SHOWN = 8  # classes over time


class Row(NamedTuple):
    """What is shown of one head: pictures uint8 (clips, T, H, W, 3), and entries with scores.

    `times` (clips, T) are the frames' seconds in the video, None where nobody knows.
    """

    caption: str
    pictures: np.ndarray
    entries: list[dict]
    times: Optional[np.ndarray] = None


def draw_sheet(path: Path, title: str, rows: Sequence[Row]) -> None:
    """The clips of each row, beside bars of its best classes. `path` ends in .png.

    Frames lie on whole pixels of the file, so that nothing blurs them.
    """
    pages = [page(fitted(row.pictures), row.times) for row in rows]  # (picture, texts)
    left = max(picture.shape[1] for picture, _ in pages)
    right = 20 + 9 * max(len(named(entry)) for row in rows for entry in row.entries)
    bars = [BAR * len(row.entries) for row in rows]
    heights = [max(picture.shape[0], bar) for (picture, _), bar in zip(pages, bars)]
    width, height = max(left + right + 3 * EDGE, LEAST), HEAD + sum(heights) + HEAD * len(rows)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def write(x: float, y: float, words: str, size: float, **how: str) -> None:
        figure.text(x / width, 1 - y / height, words, size=size, va="top", parse_math=False, **how)

    write(EDGE, 6, title, 11)
    top = HEAD
    for row, (picture, texts), bar, high in zip(rows, pages, bars, heights):
        write(EDGE, top + 8, row.caption, 9)
        top += HEAD
        figure.figimage(picture, EDGE, height - top - picture.shape[0], origin="upper")
        for x, y, words in texts:
            write(EDGE + x, top + y, words, 6.5, ha="center")
        box = np.divide((left + 2 * EDGE, height - top - bar, right, bar), (width, height) * 2)
        draw_bars(figure.add_axes(box), row.entries)
        top += high
    save(figure, path)


def fitted(pictures: np.ndarray) -> np.ndarray:
    """Frames (clips, T, H, W, 3) for a page: a whole number of times as large, or smaller."""
    clips, count, height, width, _ = pictures.shape
    side = min(TILE, LINE // min(count, ACROSS))
    if side >= width:
        return pictures.repeat(side // width, axis=2).repeat(side // width, axis=3)
    size = (side, max(round(side * height / width), 1))
    small = [cv2.resize(f, size, interpolation=cv2.INTER_AREA) for clip in pictures for f in clip]
    return np.reshape(small, (clips, count, size[1], size[0], 3))


def page(frames: np.ndarray, times: Optional[np.ndarray]) -> tuple[np.ndarray, list[tuple]]:
    """All frames as one picture (H, W, 3), and texts for it: x, y, words.

    A clip begins a new line, long ones take several.
    """
    clips, count, height, width, _ = frames.shape
    across = min(count, ACROSS)
    lines, high = -(-count // across), height + (GAP if times is None else BELOW)
    whole = np.full((clips * lines * high, across * (width + GAP) - GAP, 3), 255, np.uint8)
    texts = []
    for k, t in np.ndindex(clips, count):
        y, x = (k * lines + t // across) * high, t % across * (width + GAP)
        whole[y : y + height, x : x + width] = frames[k, t]
        if times is not None:
            texts.append((x + width / 2, y + height + 2, f"{times[k, t]:.2f} s"))
    return whole, texts


def draw_bars(axes, entries: Sequence[dict]) -> None:
    axes.barh(range(len(entries)), [e["probability"] for e in entries], color="#9ecae1")
    for k, entry in enumerate(entries):
        axes.text(0.02, k, named(entry), va="center", fontsize=9, parse_math=False)
    axes.set(xlim=(0, 1), ylim=(len(entries) - 0.5, -0.5), xticks=[], yticks=[])


def named(entry: dict) -> str:
    return f"{title_of(entry)}  {100 * entry['probability']:.1f} %"


def title_of(entry: dict) -> str:
    name = entry["name"] or f"label {entry['label']}"
    return shortened(name, TEXT)


def draw_classes(
    path: Path,
    title: str,
    spans: np.ndarray,
    panels: Sequence[tuple[str, Sequence[str], np.ndarray]],
) -> None:
    """Probabilities over time: one panel for each (caption, names, (n, classes)).

    `spans` (n, 2) are seconds from which and to which each of the n holds. The classes that come
    highest have a colour each: a piece for every span, and a thin line through their middles.
    """
    figure = Figure(figsize=(12, 0.6 + 3.2 * len(panels)), layout="constrained")
    figure.suptitle(title, fontsize=11, parse_math=False)
    for axes, (caption, names, fractions) in zip(
        figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels
    ):
        best = np.argsort(-fractions.max(axis=0), kind="stable")[:SHOWN]
        for number, label in enumerate(best):
            values = 100 * fractions[:, label]
            style = {"color": f"C{number}", "zorder": 10 - number}  # the highest covers the others
            axes.plot(spans.mean(axis=1), values, ".-", linewidth=0.8, **style)
            name = title_of({"name": names[label] if len(names) else "", "label": label})
            axes.hlines(values, *spans.T, linewidth=2.5, label=name, **style)
        axes.set(ylim=(-4, 104), ylabel="%")
        axes.set_title(caption, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
        legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    axes.set_xlabel("seconds")
    save(figure, path)
