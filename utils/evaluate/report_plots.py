"""Plots of a report for a paper: confusion matrix and reliability diagram."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.evaluate.metrics import list_bounds
from utils.messages import format_line
from utils.plotting import save

FEW_CLASSES = 40  # up to which each class is named
COUNT_CLASSES = 20  # up to which the matrix shows counts
GRID_CLASSES = 30  # up to which cells have lines between them
NAME_LENGTH = 40  # characters
# A bar of fewer videos has this opacity
FEW_VIDEOS = 10
FADED = 0.35
GAMMA = 0.35  # of the colours: a few mistakes among hundreds of classes are visible
BLUE = "#3182bd"
PALE = "#9ecae1"
ORANGE = "#e6550d"
GREEN = "#a1d99b"


def draw_confusion(path: Path, counts: np.ndarray, names: Sequence[str]) -> None:
    """Counts (true, predicted), coloured as fractions of the true class. Raises ValueError."""
    classes = len(names)
    side = min(max(4.5, 2.2 + 0.45 * classes), 11)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(
        fractions, cmap="Blues", norm=PowerNorm(GAMMA, 0, 1), interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, label="fraction of the true class (not linear)", shrink=0.8)
    if classes <= GRID_CLASSES:
        axes.set_xticks(np.arange(classes + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    if classes <= FEW_CLASSES:
        style = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(classes), shorten_names(names), rotation=90, **style)
        axes.set_yticks(range(classes), shorten_names(names), **style)
    if classes <= COUNT_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if fractions[row, column] > 0.2 else "black"
            if count:
                axes.text(column, row, count, ha="center", va="center", color=color, fontsize=8)
    axes.set(xlabel="predicted", ylabel="true")
    hits = int(np.trace(counts))
    videos = int(counts.sum())
    title = f"{videos} videos, {hits / max(videos, 1):.1%} on the diagonal"
    bounds = [f"{100 * bound:.1f}" for bound in list_bounds("top1", hits, videos).values()]
    axes.set_title(title + (f" ({' to '.join(bounds)})" if bounds else ""), fontsize=10)
    save(figure, path, "--report")


def draw_calibration(path: Path, table: np.ndarray, error: Optional[float]) -> None:
    """A reliability diagram of `report.compute_bins`, with the number of videos of every bin."""
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    axes, histogram = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    nonempty = table[table["videos"] > 0]
    confidence = nonempty["confidence"]
    accuracy = nonempty["accuracy"]
    bars = {"align": "edge", "width": 1 / len(table), "edgecolor": "white"}
    gap = np.abs(confidence - accuracy)
    low = np.minimum(confidence, accuracy)
    bars_of_bins = [*axes.bar(nonempty["from"], accuracy, color=BLUE, **bars)]
    colors = np.where(confidence > accuracy, ORANGE, GREEN)
    bars_of_bins += axes.bar(nonempty["from"], gap, bottom=low, color=colors, **bars)
    for bar, row in zip(bars_of_bins, [*nonempty, *nonempty]):
        bar.set_alpha(FADED if row["videos"] < FEW_VIDEOS else 1)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}  # numbers lie on the dashed line
    for row, top in zip(nonempty, np.maximum(confidence, accuracy) + 0.012):
        position = ((row["from"] + row["to"]) / 2, top)
        axes.text(*position, row["videos"], ha="center", va="bottom", fontsize=6.5, bbox=box)
    axes.plot((0, 1), (0, 1), "--", color="black", linewidth=1)
    axes.set(ylim=(0, 1.05), ylabel="accuracy")
    text = "–" if error is None else f"{error:.3f}"
    axes.set_title(f"expected calibration error {text}", fontsize=10)
    parts = ((BLUE, "correct"), (ORANGE, "overconfident"), (GREEN, "underconfident"))
    handles = [Patch(color=color, label=label) for color, label in parts]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    histogram.bar(table["from"], table["videos"], color=PALE, **bars)
    histogram.set(xlim=(0, 1), ylabel="videos")
    histogram.set_xlabel("confidence: probability of the predicted class")
    save(figure, path, "--report")


def shorten_names(names: Sequence[str]) -> list[str]:
    return [format_line(name, NAME_LENGTH) for name in names]
