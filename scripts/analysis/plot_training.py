"""Draws the curves of runs: loss, accuracy, learning rate, clips a second, waiting for data.

    python scripts/analysis/plot_training.py RUN [RUN ...] [--out FILE.png]

A RUN is the folder a training wrote into (its `log.jsonl`); several are laid over each other. FILE
may end in .png or .svg; without --out it is `curves.png` in the first RUN. The last line of stdout
is one JSON object: file, runs, and the last line of each run's log.
"""

import json
import sys
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from matplotlib.figure import Figure

from utils import cli
from utils.plotting import save

# What is drawn, from top to bottom: title, name in the log, and what one there is in the picture.
PANELS = (
    ("loss of training batches", "loss", 1),
    ("top-1, %: solid of training batches, dashed of tests", "top1", 100),
    ("learning rate", "lr", 1),
    ("clips a second", "clips_per_second", 1),
    ("waiting for data, % of the time", "waiting", 100),
)
FROM_ZERO = ("lr", "clips_per_second", "waiting")
FEW = 40  # points that are marked
FORMATS = (".png", ".svg")


def main(folders: list[str], *, out: Optional[Path] = None) -> None:
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = out or Path(folders[0]) / "curves.png"
    if target.suffix not in FORMATS:
        raise ValueError(f"--out: {target} must end in {' or '.join(FORMATS)}")
    save(drawn(runs), target)
    last = {folder: lines[-1] for folder, lines in runs.items()}
    print(json.dumps({"file": str(target), "runs": len(runs), "last": last}))


def read_log(folder: Path) -> list[dict]:
    """The lines of a run, those only that its newest start goes on from."""
    path = folder / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is not there: name the folder that a training wrote into")
    lines = [line for line in map(parsed, path.read_text().splitlines()) if "epoch" in line]
    if not lines:
        raise ValueError(f"{path} has no line yet")
    kept: list[dict] = []
    newest = 0
    for line in lines:
        if line.get("step", newest + 1) <= newest:  # a killed run repeats what it had not saved
            kept = [old for old in kept if is_before(old, line)]
        newest = line.get("step", newest)
        kept.append(line)
    return kept


def is_before(old: dict, line: dict) -> bool:
    """A test has no step."""
    return old["step"] < line["step"] if "step" in old else old["epoch"] < line["epoch"]


def parsed(text: str) -> dict:
    """Empty for a line that was cut: by a kill, or a full disk."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def drawn(runs: dict[str, list[dict]]) -> Figure:
    figure = Figure(figsize=(9, 2.1 * len(PANELS)), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    labels = names_of(list(runs))
    for axes, (title, name, unit) in zip(panels, PANELS):
        for number, lines in enumerate(runs.values()):
            draw_run(axes, lines, name, unit, labels[number], f"C{number}")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if name in FROM_ZERO:
            highest = axes.get_ylim()[1]
            axes.set_ylim(-0.05 * highest, 1.05 * highest)  # points at 0 are seen whole
    panels[-1].set_xlabel("epoch")
    result = dict(zip(*reversed(panels[1].get_legend_handles_labels())))
    columns = min(max(len(result), 1), 4)
    figure.legend(result.values(), result, loc="outside lower center", ncols=columns)
    return figure


def draw_run(axes, lines: list[dict], name: str, unit: float, label: str, color: str) -> None:
    """The values of the training, and dashed those of its tests, which count videos."""
    for tests in (False, True):
        points = [
            (line["epoch"], unit * line[name]) for line in lines if is_point(line, name, tests)
        ]
        style = "o--" if tests else ".-" if len(points) <= FEW else "-"
        if points:
            words = f"{label}, tests" if tests else label
            axes.plot(*zip(*points), style, color=color, label=words, markersize=4)


def names_of(folders: list[str]) -> list[str]:
    """The runs in the legend: names of folders, or whole paths where names are the same."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else folders


def is_point(line: dict, name: str, tests: bool) -> bool:
    return name in line and ("videos" in line) == tests


if __name__ == "__main__":
    cli.run_command(main, __doc__)
