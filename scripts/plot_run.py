"""Draws the curves of runs: loss, accuracy, learning rate, clips a second, waiting for data.

    python scripts/plot_run.py RUN [RUN ...] [--out FILE.png]

A RUN is the folder a training wrote into (its `log.jsonl`); several are laid over each other. FILE
may end in .png or .svg; without --out it is `curves.png` in the first RUN. The last line of stdout
is one JSON object: file, runs, and the last line of each run's log.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from matplotlib.figure import Figure

from utils import command
from utils.plots import save

# What is drawn, from top to bottom: title, name in the log, and whether the axis is logarithmic.
PANELS = (
    ("loss", "loss", False),
    ("top-1; of tests dashed", "top1", False),
    ("learning rate", "lr", True),
    ("clips a second", "clips_per_second", False),
    ("waiting for data, share of the time", "waiting", False),
)
FORMATS = (".png", ".svg")


def main(folders: list[str], out: str = "") -> None:
    if not folders:
        raise ValueError("name at least one run: the folder a training wrote into")
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = Path(out or Path(folders[0]) / "curves.png")
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
    for line in lines:  # a run that was killed repeats what it had not saved
        while kept and "step" in line and kept[-1].get("step", 0) >= line["step"]:
            kept.pop()
        kept.append(line)
    return kept


def parsed(text: str) -> dict:
    """Empty for a line that was cut: by a kill, or a full disk."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def drawn(runs: dict[str, list[dict]]) -> Figure:
    figure = Figure(figsize=(9, 2.1 * len(PANELS)), layout="constrained")
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (title, name, logarithmic) in zip(panels, PANELS):
        for color, (folder, lines) in enumerate(runs.items()):
            for tests in (False, True):  # a test counts videos
                points = [(li["epoch"], li[name]) for li in lines if is_point(li, name, tests)]
                if points:
                    style = "o--" if tests else "-"
                    label = None if tests else Path(folder).name
                    axes.plot(*zip(*points), style, color=f"C{color}", label=label, markersize=4)
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        if logarithmic:
            axes.set_yscale("log")
    panels[-1].set_xlabel("epoch")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(max(len(labels), 1), 4))
    return figure


def is_point(line: dict, name: str, tests: bool) -> bool:
    return name in line and ("videos" in line) == tests


def start() -> None:
    given, _ = command.parse(sys.argv[1:], [], optional=["out"], free="folders")
    main(**given)


if __name__ == "__main__":
    command.enter(__doc__, start)
