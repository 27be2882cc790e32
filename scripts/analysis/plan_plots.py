"""Plots AllReduce plans: the timeline of a step, and efficiency over the number of devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure  # draws into files; no screen is needed
from matplotlib.patches import Patch

from utils.distributed.fusion_planner import Prediction
from utils.distributed.gradient_timing import Backward
from utils.plotting import save

FORWARD = "#9ecae1"
BACKWARD = "#3182bd"
ALL_REDUCE = "#e6550d"
WAIT = "#bdbdbd"


def draw_timeline(path: Path, backward: Backward, plans: Mapping[str, Prediction]) -> None:
    """Draws two bars for each split: computation of the device, and AllReduces in the network.

    `path` ends in .png; times are in milliseconds. Raises ValueError if it cannot be written.
    """
    figure = Figure(figsize=(11, 1.2 + 1.1 * len(plans)), layout="constrained")
    axes = figure.add_subplot()
    for row, (name, result) in enumerate(plans.items()):
        draw_step(axes, 2.6 * row, backward, result)
        axes.text(0, 2.6 * row - 0.62, f"{name}: {1e3 * result.step:.1f} ms", fontsize=9)
    ticks = [2.6 * row + offset for row in range(len(plans)) for offset in (0, 0.9)]
    axes.set_yticks(ticks, ["compute", "network"] * len(plans))
    axes.set_ylim(2.6 * len(plans) - 0.9, -1.2)  # the first plan on top
    axes.set_xlabel("milliseconds of a step")
    devices = next(iter(plans.values())).devices
    title = f"A step on {devices} devices (gradients: {backward.source})"
    axes.set_title(title, parse_math=False)
    colors = (FORWARD, BACKWARD, ALL_REDUCE, WAIT)
    labels = ("forward", "backward", "AllReduce", "waiting")
    handles = [Patch(color=color, label=label) for color, label in zip(colors, labels)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    save(figure, path)


def draw_step(axes, location: float, backward: Backward, result: Prediction) -> None:
    forward = 1e3 * backward.forward
    end = 1e3 * backward.end
    upper = (location - 0.4, 0.8)
    lower = (location + 0.5, 0.8)
    passes = [(0, forward), (forward, end - forward)]
    axes.broken_barh(passes, upper, facecolors=(FORWARD, BACKWARD))
    bars = [(1e3 * s.begin, 1e3 * (s.end - s.begin)) for s in result.segments]
    axes.broken_barh(bars, lower, facecolors=ALL_REDUCE, edgecolor="white", linewidth=0.8)
    computed = 1e3 * (result.compute + result.exposed)
    axes.broken_barh([(computed, 1e3 * result.waiting)], upper, facecolors=WAIT)


def draw_scaling(path: Path, plans: Mapping[str, Sequence[Prediction]]) -> None:
    """Draws efficiency over devices, a line for each plan; raises as `draw_timeline`."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, result in plans.items():
        fractions = [100 * p.efficiency for p in result]
        axes.plot([p.devices for p in result], fractions, marker=".", label=name)
    counts = sorted({p.devices for result in plans.values() for p in result})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    efficiencies = [p.efficiency for result in plans.values() for p in result]
    axes.set_ylim(max(0, 10 * int(10 * min(efficiencies)) - 10), 102)
    axes.set_xlabel("devices")
    axes.set_ylabel("efficiency, %")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)
