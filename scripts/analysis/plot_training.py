"""Plots the curves of training runs: loss, accuracy, learning rate, clips a second, data waiting.

    python scripts/analysis/plot_training.py RUN [RUN ...] [--out FILE.png] [--html]

A RUN is the output folder of a training (with its `log.jsonl`); several share the axes. FILE may
end in .png or .svg; without --out it is `curves.png` in the first RUN. `--html` also writes a page
beside it, with the values under the mouse and the settings that differ. The last line of stdout is
one JSON object: file, with --html page, runs, and the last line of each run's log. Loss and top-1
of training batches jump; a bold line is their average over the epoch before, a pale one the
batches. A vertical line is the 95 % interval of a test of few videos.
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
from utils.messages import escape_control
from utils.pages import write_page
from utils.plotting import save
from utils.yaml_text import load_yaml_file

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
PAGE_POINTS = 2000  # of a curve of the page; of more, some are left out
SCRIPT = Path(__file__).with_suffix(".js")


def main(folders: list[str], *, out: Optional[Path] = None, html: bool = False) -> None:
    runs = {folder: read_log(Path(folder)) for folder in folders}
    target = out or Path(folders[0]) / "curves.png"
    if target.suffix not in FORMATS:
        raise ValueError(f"--out: {target} must end in {' or '.join(FORMATS)}")
    page = target.with_suffix(".html")
    logs = [Path(folder) / name for folder in folders for name in ("log.jsonl", "config.yaml")]
    check_outputs([target, *[page] * html], inputs=logs)
    save(draw_runs(runs), target)
    result = {"file": str(target)}
    if html:
        write_page(page, script=SCRIPT, data=describe_runs(runs), option="--html")
        result["page"] = str(page)
    last = {folder: lines[-1] for folder, lines in runs.items()}
    print(json.dumps({**result, "runs": len(runs), "last": last}))


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


def describe_runs(runs: dict[str, list[dict]]) -> dict:
    """What the page shows: a summary, the curves of all panels and the settings that differ."""
    names = [escape_control(name) for name in name_runs(runs)]
    summaries = map(summarize_run, runs.values())
    panels = [
        {
            "title": title,
            "unit": "\u202f%" if unit == 100 else "",
            "zero": name in FROM_ZERO,
            "logarithm": name in ("loss", "lr"),
            "curves": [describe_curve(lines, name, unit) for lines in runs.values()],
        }
        for title, name, unit in PANELS
    ]
    return {
        "title": "Training curves",
        "panels": panels,
        "runs": [{"name": name, "last": last} for name, last in zip(names, summaries)],
        "settings": list_differences([read_settings(Path(folder)) for folder in runs]),
    }


def summarize_run(lines: list[dict]) -> dict:
    """The last values of the training, and the last and the best top-1 of its tests."""
    training = [line for line in lines if "videos" not in line]
    summary = dict(training[-1]) if training else {}
    tests = [line for line in lines if "videos" in line and line.get("top1") is not None]
    if tests:
        best = max(tests, key=lambda line: line["top1"])
        summary.update(last=tests[-1]["top1"], best=best["top1"], best_epoch=best["epoch"])
    return summary


def describe_curve(lines: list[dict], name: str, unit: float) -> dict[str, list]:
    """Points [epoch, value] of training batches, their means and tests, and intervals of these."""
    epochs, values = select_points(lines, name=name, unit=unit, of_tests=False)
    means = average_epoch(epochs, values) if name in AVERAGED else values[:0]
    tests = np.stack(select_points(lines, name=name, unit=unit, of_tests=True), 1)
    bounded = [line for line in lines if f"{name}_low" in line]
    intervals = [
        [line["epoch"], unit * line[f"{name}_low"], unit * line[f"{name}_high"]] for line in bounded
    ]
    chosen = np.unique(np.linspace(0, len(epochs) - 1, PAGE_POINTS).astype(int))
    chosen = chosen[chosen >= 0][: len(epochs)]
    curve = {"batches": np.stack([epochs, values], 1)[chosen], "tests": tests}
    curve["means"] = np.stack([epochs[: len(means)], means], 1)[chosen[: len(means)]]
    rounded = {part: np.round(points, 7).tolist() for part, points in curve.items()}
    return {**rounded, "intervals": intervals}


def read_settings(folder: Path) -> dict[str, str]:
    """The settings of a run, `train.lr` and others; empty without its config file."""
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    return {
        f"{section}.{name}": json.dumps(value)
        for section, values in load_yaml_file(path).items()
        for name, value in values.items()
    }


def list_differences(runs: list[dict[str, str]]) -> list[list]:
    """[setting, its values] of the settings that are not the same in all runs; None: not set."""
    names = dict.fromkeys(name for settings in runs for name in settings)
    table = {name: [settings.get(name) for settings in runs] for name in names}
    return [[name, values] for name, values in table.items() if len(set(values)) > 1]


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
