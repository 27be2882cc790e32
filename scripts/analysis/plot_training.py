#!/usr/bin/env python3
"""Plots the curves of training runs: loss, accuracy, learning rate, clips a second, data waiting.

    python scripts/analysis/plot_training.py RUN [RUN ...] [--out FILE.png] [--overwrite]

A RUN is the output folder of a training (with its `log.jsonl`); several share the axes. FILE may
end in .png or .svg; without --out it is `curves.png` in the first RUN. The last line of stdout is
one JSON object: file, runs, and the last line of each run's log. Loss and top-1 of training batches
jump; a bold line is their average over the epoch before, a pale one the batches. A vertical line is
the 95 % interval of a test of few videos.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Optional

import numpy as np
from matplotlib.figure import Figure

from scripts.prediction.plots import save
from utils import cli
from utils.files import check_target, parse_line

# From top to bottom: title, name in the log, and factor between the log and the plot.
PANELS = (
    ("loss", "loss", 1),
    ("top-1, %", "top1", 100),
    ("learning rate", "lr", 1),
    ("clips a second", "clips_per_second", 1),
    ("waiting for data, % of the time", "waiting", 100),
)
LINES = ": solid of training batches (with mixing, dropout, augmentation), dashed of validations"
FROM_ZERO = ("lr", "clips_per_second", "waiting")
AVERAGED = ("loss", "top1")  # of training batches
PALE = 0.3  # opacity of what is averaged


def main(folders: list[str], *, out: Optional[Path] = None, overwrite: bool = False) -> None:
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = out or Path(folders[0]) / "curves.png"
    check_target(target, [], "--out", overwrite)
    save(draw_runs(runs), target)
    last = {folder: lines[-1] for folder, lines in runs.items()}
    print(json.dumps({"file": str(target), "runs": len(runs), "last": last}))


def read_log(folder: Path) -> list[dict]:
    """The lines of a run; of those that a later start has repeated, only the later ones."""
    path = folder / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name the output folder of a training")
    lines = [line for line in map(parse_line, path.read_text().splitlines()) if "epoch" in line]
    if not lines:
        raise ValueError(f"{path} has no line yet")
    # A killed run repeats the steps after its save. The lines of an evaluation have no step.
    return [*{line.get("step", f"evaluation {line['epoch']}"): line for line in lines}.values()]


def draw_runs(runs: dict[str, list[dict]]) -> Figure:
    """A panel for each curve; the curves of training, and dashed those of evaluations."""
    figure = Figure(figsize=(9, 2.1 * len(PANELS)), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (title, name, unit) in zip(panels, PANELS):
        for number, (folder, lines) in enumerate(runs.items()):
            color = f"C{number}"
            known = [line for line in lines if line.get(name) is not None]
            tests = [line for line in known if "videos" in line]
            training = [line for line in known if "videos" not in line]
            if training:
                epochs = np.array([line["epoch"] for line in training], np.float64)
                values = np.array([unit * line[name] for line in training], np.float64)
                style = ".-" if len(epochs) == 1 else "-"
                if name in AVERAGED:
                    axes.plot(epochs, values, style, color=color, alpha=PALE)
                    values = average_epochs(epochs, values)
                axes.plot(epochs, values, style, color=color, label=folder, markersize=4)
            if tests:
                epochs = [line["epoch"] for line in tests]
                values = [unit * line[name] for line in tests]
                text = f"{folder}, validation"
                axes.plot(epochs, values, "o--", color=color, label=text, markersize=4)
            for line in tests:
                if f"{name}_low" in line:  # of few videos
                    bounds = unit * line[f"{name}_low"], unit * line[f"{name}_high"]
                    axes.vlines(line["epoch"], *bounds, color=color, alpha=PALE)
        text = title + LINES if name in AVERAGED else title
        axes.set_title(text, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if name in FROM_ZERO:
            axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("epoch")
    handles = dict(zip(*reversed(panels[1].get_legend_handles_labels())))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2)
    return figure


def average_epochs(epochs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each point the mean of the points in the epoch that ends with it."""
    starts = np.searchsorted(epochs, epochs - 1 + 1e-6, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return (sums[ends] - sums[starts]) / (ends - starts)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
