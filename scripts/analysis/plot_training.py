"""Plots the curves of training runs: loss, accuracy, learning rate, clips a second, data waiting.

    python scripts/analysis/plot_training.py RUN [RUN ...] [--out FILE.png]

A RUN is the output folder of a training (with its `log.jsonl`); several share the axes. FILE may
end in .png or .svg; without --out it is `curves.png` in the first RUN. The last line of stdout
is one JSON object: file, runs, and the last line of each run's log.
"""

import json
import sys
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli  # isort: split

from matplotlib.figure import Figure

from utils.plotting import save

# From top to bottom: title, name in the log, and factor between the log and the plot.
PANELS = (
    ("loss of training batches", "loss", 1),
    ("top-1, %: solid of training batches, dashed of tests", "top1", 100),
    ("learning rate", "lr", 1),
    ("clips a second", "clips_per_second", 1),
    ("waiting for data, % of the time", "waiting", 100),
)
FROM_ZERO = ("lr", "clips_per_second", "waiting")
MAX_MARKERS = 40  # points of a curve that get markers
FORMATS = (".png", ".svg")


def main(folders: list[str], *, out: Optional[Path] = None) -> None:
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = out or Path(folders[0]) / "curves.png"
    if target.suffix not in FORMATS:
        raise ValueError(f"--out: {target} must end in {' or '.join(FORMATS)}")
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
    kept: list[dict] = []
    newest = 0
    for line in lines:
        if line.get("step", newest + 1) <= newest:  # a killed run repeats the steps after its save
            kept = [old for old in kept if is_before(old, line)]
        newest = line.get("step", newest)
        kept.append(line)
    return kept


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
    names = [Path(folder).resolve().name for folder in runs]
    labels = names if len(set(names)) == len(names) else list(runs)
    for axes, (title, name, unit) in zip(panels, PANELS):
        for number, (label, lines) in enumerate(zip(labels, runs.values())):
            draw_run(axes, lines, name, unit, label, f"C{number}")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if name in FROM_ZERO:
            highest = axes.get_ylim()[1]
            axes.set_ylim(-0.05 * highest, 1.05 * highest)  # shows whole markers at 0
    panels[-1].set_xlabel("epoch")
    handles = dict(zip(*reversed(panels[1].get_legend_handles_labels())))
    columns = min(max(len(handles), 1), 4)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)
    return figure


def draw_run(axes, lines: list[dict], name: str, unit: float, label: str, color: str) -> None:
    """The values of training, and dashed those of evaluations, whose lines count videos."""
    for is_test in (False, True):
        points = [
            (line["epoch"], unit * line[name])
            for line in lines
            if name in line and ("videos" in line) == is_test
        ]
        if points:
            style = "o--" if is_test else ".-" if len(points) <= MAX_MARKERS else "-"
            text = f"{label}, tests" if is_test else label
            axes.plot(*zip(*points), style, color=color, label=text, markersize=4)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
