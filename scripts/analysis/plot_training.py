"""Plots the curves of training runs: loss, accuracy, learning rate, clips a second, data waiting.

    python scripts/analysis/plot_training.py RUN [RUN ...] [--out FILE.png]

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

from utils import cli
from utils.files import check_outputs
from utils.plotting import save

# From top to bottom: title, name in the log, and factor between the log and the plot.
PANELS = (
    ("loss", "loss", 1),
    ("top-1, %", "top1", 100),
    ("learning rate", "lr", 1),
    ("clips a second", "clips_per_second", 1),
    ("waiting for data, % of the time", "waiting", 100),
)
LINES = ": solid of training batches (bold: average over an epoch), dashed of validations"
FROM_ZERO = ("lr", "clips_per_second", "waiting")
AVERAGED = ("loss", "top1")  # of training batches
PALE = 0.3  # opacity of what is averaged
FORMATS = (".png", ".svg")


def main(folders: list[str], *, out: Optional[Path] = None) -> None:
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = out or Path(folders[0]) / "curves.png"
    if target.suffix not in FORMATS:
        raise ValueError(f"--out: {target} must end in {' or '.join(FORMATS)}")
    check_outputs([target], inputs=[Path(folder) / "log.jsonl" for folder in folders])
    save(draw_runs(runs), target)
    last = {folder: lines[-1] for folder, lines in runs.items()}
    print(json.dumps({"file": str(target), "runs": len(runs), "last": last}))


def read_log(folder: Path) -> list[dict]:
    """The lines of a run, without those that a later start has repeated."""
    path = folder / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name the output folder of a training")
    lines = [line for line in map(parse_line, path.read_text().splitlines()) if "epoch" in line]
    if not lines:
        raise ValueError(f"{path} has no line yet")
    latest_lines: list[dict] = []
    newest = 0
    for line in lines:
        if line.get("step", newest + 1) <= newest:  # a killed run repeats the steps after its save
            latest_lines = [old for old in latest_lines if is_before(old, line)]
        newest = line.get("step", newest)
        latest_lines.append(line)
    return latest_lines


def is_before(old: dict, line: dict) -> bool:
    """Compares epochs if the older line is of an evaluation, which has no step."""
    return old["step"] < line["step"] if "step" in old else old["epoch"] < line["epoch"]


def parse_line(text: str) -> dict:
    """The line, or empty if a kill or a full disk has cut it off."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def draw_runs(runs: dict[str, list[dict]]) -> Figure:
    figure = Figure(figsize=(9, 2.1 * len(PANELS)), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    labels = name_runs(runs)
    for axes, (title, name, unit) in zip(panels, PANELS):
        for number, (label, lines) in enumerate(zip(labels, runs.values())):
            draw_run(axes, lines=lines, name=name, unit=unit, label=label, color=f"C{number}")
        text = title + LINES if name in AVERAGED else title
        axes.set_title(text, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if name in FROM_ZERO:
            highest = axes.get_ylim()[1]
            axes.set_ylim(-0.05 * highest, 1.05 * highest)  # shows whole markers at 0
    panels[-1].set_xlabel(f"epoch ({describe_steps(runs, labels)})")
    handles = dict(zip(*reversed(panels[1].get_legend_handles_labels())))
    columns = min(max(len(handles), 1), 4)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
    return figure


def name_runs(runs: dict[str, list[dict]]) -> list[str]:
    """The names of the folders, or their paths if two names are equal."""
    names = [Path(folder).resolve().name for folder in runs]
    return names if len(set(names)) == len(names) else list(runs)


def draw_run(axes, lines: list[dict], name: str, unit: float, label: str, color: str) -> None:
    """The values of training, and dashed those of evaluations, whose lines count videos."""
    for is_test in (False, True):
        epochs, values = select_points(lines, name=name, unit=unit, of_tests=is_test)
        if not len(epochs):
            continue
        text = f"{label}, validation" if is_test else label
        style = "o--" if is_test else ".-" if len(epochs) == 1 else "-"
        if name in AVERAGED and not is_test:
            axes.plot(epochs, values, style, color=color, alpha=PALE)
            values = average_epoch(epochs, values)
        axes.plot(epochs, values, style, color=color, label=text, markersize=4)
    bounded = [line for line in lines if f"{name}_low" in line]  # of tests with few videos
    axes.vlines(
        [line["epoch"] for line in bounded],
        [unit * line[f"{name}_low"] for line in bounded],
        [unit * line[f"{name}_high"] for line in bounded],
        color=color,
        alpha=PALE,
    )


def select_points(
    lines: list[dict], name: str, unit: float, of_tests: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of the lines of training, or of tests, whose lines count videos."""
    points = [
        (line["epoch"], unit * line[name])
        for line in lines
        if line.get(name) is not None and ("videos" in line) == of_tests
    ]
    epochs, values = np.array(points, np.float64).reshape(-1, 2).T
    return epochs, values


def average_epoch(epochs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each point the mean of the points in the epoch that ends with it; `epochs` ascend."""
    starts = np.searchsorted(epochs, epochs - 1 + 1e-6, side="right")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return (sums[ends] - sums[starts]) / (ends - starts)


def describe_steps(runs: dict[str, list[dict]], labels: list[str]) -> str:
    """The steps of an epoch, of each run if they differ."""
    counts = []
    for lines in runs.values():
        last = [line for line in lines if "step" in line][-1:]
        counts += [round(line["step"] / line["epoch"]) for line in last]
    if len(set(counts)) == 1:
        return f"{counts[0]} steps"
    return ", ".join(f"{label}: {count} steps" for label, count in zip(labels, counts))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
