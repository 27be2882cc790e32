"""Pictures of an evaluation: confusion, accuracy of every class, confidence against accuracy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.plotting import save, shortened

FEW = 40  # classes of which each is named
NUMBERED = 20  # classes whose counts stand in the matrix
LINED = 30  # classes whose cells have lines between them
WORST = 25  # classes named where there are many
LONGEST = 40  # letters of a name
DOUBTFUL, FADED = 10, 0.35  # a bar of fewer videos is so pale
BOOST = 0.35  # shares to this power are colours: a few mistakes among hundreds of classes show
BAR, PALE, SURE, MODEST = "#3182bd", "#9ecae1", "#e6550d", "#a1d99b"


def draw_confusion(path: Path, counts: np.ndarray, names: Sequence[str]) -> None:
    """Counts (true, predicted) as shares of the true class; raises ValueError as `save`."""
    classes = len(names)
    side = min(max(4.5, 2.2 + 0.45 * classes), 11)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(
        fractions, cmap="Blues", norm=PowerNorm(BOOST, 0, 1), interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, label="share of the true class (not linear)", shrink=0.8)
    if classes <= LINED:
        axes.set_xticks(np.arange(classes + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    if classes <= FEW:
        axes.set_xticks(range(classes))
        axes.set_xticklabels(short(names), rotation=90, fontsize=8, parse_math=False)
        axes.set_yticks(range(classes))
        axes.set_yticklabels(short(names), fontsize=8, parse_math=False)
    if classes <= NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if fractions[row, column] > 0.2 else "black"
            if count:
                axes.text(column, row, count, ha="center", va="center", color=color, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    right = np.trace(counts) / max(counts.sum(), 1)
    axes.set_title(f"{counts.sum()} videos, {right:.1%} on the diagonal", fontsize=10)
    save(figure, path, "--report")


def draw_classes(path: Path, classes: Sequence[tuple[str, float]]) -> None:
    """(name, top-1) of the classes that have videos, sorted; of many, the worst by name."""
    ranked = sorted(classes, key=lambda each: each[1])
    named = ranked if len(ranked) <= FEW else ranked[:WORST]
    below = 1.2 + 0.22 * max(len(named), 3)
    if len(ranked) > len(named):
        figure = Figure(figsize=(8, below + 3), layout="constrained")
        above, axes = figure.subplots(2, 1, height_ratios=[3, below])
        draw_curve(above, 100 * np.array([fraction for _, fraction in ranked]))
        title = f"the worst {len(named)} of {len(ranked)} classes"
    else:
        figure = Figure(figsize=(8, below), layout="constrained")
        axes, title = figure.add_subplot(), "top-1 of every class"
    fractions = [100 * fraction for _, fraction in named]
    axes.barh(range(len(named)), fractions, color=BAR)
    for row, fraction in enumerate(fractions):
        axes.text(fraction + 0.8, row, f"{fraction:.1f}", va="center", fontsize=7)
    axes.set_yticks(range(len(named)))
    axes.set_yticklabels(short([name for name, _ in named]), fontsize=8, parse_math=False)
    axes.set_ylim(len(named) - 0.4, -0.6)
    axes.set_xlim(0, 106)
    axes.set_xlabel("top-1, %")
    axes.set_title(title, fontsize=10, loc="left")
    save(figure, path, "--report")


def draw_curve(axes: Axes, fractions: np.ndarray) -> None:
    """Of all classes, the worst first, and their mean."""
    edges = np.arange(len(fractions) + 1)
    axes.fill_between(edges, [*fractions, fractions[-1]], step="post", color=BAR)
    axes.axhline(fractions.mean(), color=SURE, linewidth=1)
    axes.set_xlim(0, len(fractions))
    axes.set_ylim(0, 102)
    axes.set_xlabel("classes, the worst first")
    axes.set_ylabel("top-1, %")
    title = f"top-1 of {len(fractions)} classes; the line is their mean, {fractions.mean():.1f}"
    axes.set_title(title, fontsize=10, loc="left")


def draw_calibration(path: Path, table: np.ndarray, error: Optional[float]) -> None:
    """A reliability diagram of `calibration.bins`, with the videos of every bin above and below."""
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    some = table[table["videos"] > 0]
    sure, right = some["confidence"], some["accuracy"]
    bars = {"align": "edge", "width": 1 / len(table), "edgecolor": "white"}
    gap, low = np.abs(sure - right), np.minimum(sure, right)
    drawn = [*axes.bar(some["from"], right, color=BAR, **bars)]
    colors = np.where(sure > right, SURE, MODEST)
    drawn += axes.bar(some["from"], gap, bottom=low, color=colors, **bars)
    for bar, row in zip(drawn, [*some, *some]):
        bar.set_alpha(FADED if row["videos"] < DOUBTFUL else 1)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}  # numbers lie on the dashed line
    for row, top in zip(some, np.maximum(sure, right) + 0.012):
        position = ((row["from"] + row["to"]) / 2, top)
        axes.text(*position, row["videos"], ha="center", va="bottom", fontsize=6.5, bbox=box)
    axes.plot((0, 1), (0, 1), "--", color="black", linewidth=1)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share that is right")
    messages = "–" if error is None else f"{error:.3f}"
    axes.set_title(f"expected calibration error {messages}", fontsize=10)
    words = ((BAR, "right"), (SURE, "surer than right"), (MODEST, "right, but less sure"))
    handles = [Patch(color=color, label=label) for color, label in words]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    below.bar(table["from"], table["videos"], color=PALE, **bars)
    below.set_ylabel("videos")
    below.set_xlabel("confidence: probability of the predicted class")
    below.set_xlim(0, 1)
    save(figure, path, "--report")


def short(names: Sequence[str]) -> list[str]:
    return [shortened(name, LONGEST) for name in names]
