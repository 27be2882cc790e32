"""Pictures of predictions: the frames that the network saw with its scores, classes over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure  # draws into files; no screen is needed

from utils.plots import save, shortened

ACROSS, TILE, TEXT = 16, 112, 38  # tiles in a row; pixels of a tile at most; letters of a name
SHOWN = 8  # classes over time


class Row(NamedTuple):
    """What is shown of one head: pictures uint8 (clips, T, H, W, 3), and entries with scores."""

    caption: str
    pictures: np.ndarray
    entries: list[dict]


def draw_sheet(path: Path, title: str, rows: Sequence[Row]) -> None:
    """The clips of each row, beside bars of its best classes. `path` ends in .png."""
    sheets = [sheet(row.pictures) for row in rows]
    heights = [
        max(9 * s.shape[0] / s.shape[1], 0.45 + 0.3 * len(r.entries)) for s, r in zip(sheets, rows)
    ]
    figure = Figure(
        figsize=(14, 0.5 + sum(height + 0.35 for height in heights)), layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(
        len(rows), 2, squeeze=False, width_ratios=(9, 4), height_ratios=heights
    )
    for (left, right), row, image in zip(panels, rows, sheets):
        left.imshow(image, interpolation="none")
        left.set_title(row.caption, fontsize=9, loc="left")
        left.set_axis_off()
        draw_bars(right, row.entries)
    save(figure, path)


def sheet(pictures: np.ndarray) -> np.ndarray:
    """All frames as one picture (H, W, 3): a clip begins a new line, long ones take several."""
    step = -(-pictures.shape[2] // TILE)
    clips, count, height, width, _ = (small := pictures[:, :, ::step, ::step]).shape
    across = min(count, ACROSS)
    lines, gap = -(-count // across), 2
    page = np.full((clips * lines * (height + gap) - gap, across * (width + gap) - gap, 3), 255)
    for k, t in np.ndindex(clips, count):
        y, x = (k * lines + t // across) * (height + gap), t % across * (width + gap)
        page[y : y + height, x : x + width] = small[k, t]
    return page.astype(np.uint8)


def draw_bars(axes, entries: Sequence[dict]) -> None:
    values = [100 * entry["probability"] for entry in entries]
    axes.barh(range(len(entries)), values, color="#9ecae1")
    for k, (entry, value) in enumerate(zip(entries, values)):
        axes.text(1, k, f"{title_of(entry)}  {value:.1f} %", va="center", fontsize=9)
    axes.set(xlim=(0, 100), ylim=(max(len(entries), 5) - 0.5, -0.5), xticks=[], yticks=[])


def title_of(entry: dict) -> str:
    name = entry["name"] or f"label {entry['label']}"
    return shortened(name, TEXT)


def draw_classes(
    path: Path,
    title: str,
    times: np.ndarray,
    panels: Sequence[tuple[str, Sequence[str], np.ndarray]],
) -> None:
    """Probabilities over time, seconds (n,): one panel for each (caption, names, (n, classes)).

    The classes that come highest have a line each.
    """
    figure = Figure(figsize=(12, 0.6 + 3.2 * len(panels)), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for axes, (caption, names, shares) in zip(
        figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels
    ):
        best = np.argsort(-shares.max(axis=0), kind="stable")[:SHOWN]
        for label in best:
            name = title_of({"name": names[label] if len(names) else "", "label": label})
            axes.plot(times, 100 * shares[:, label], marker=".", label=name)
        axes.set(ylim=(0, 100), ylabel="%")
        axes.set_title(caption, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    axes.set_xlabel("seconds")
    save(figure, path)
