"""Smoke training: each network learns from a little synthetic data, with falling, finite loss."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from utils.config import ROOT
from utils.data.synthetic.pattern_images import draw_cifar10
from utils.verify.machine import Plan
from utils.verify.processes import Ended
from utils.verify.report import FAILED, OK, SLOW, Finding

DISTINCT_IMAGES = 200  # of the 10,000 in each file
FALL = 0.99  # the lowest logged loss over the first one must be below
WAITING = 0.3  # of the time for data; more is SLOW
VIDEOS = {"resnet50": "images", "tsm": "videos", "x3d": "videos", "mvit_multi": "sets"}
DRAWN = {"videos": ["--train", "8", "--test", "1"], "sets": ["--train", "3", "--test", "1"]}
SETTINGS = {
    "resnet50": ["train.epochs=1", "data.batch=256", "run.log_every=20"],
    "tsm": ["train.epochs=8", "train.lr=0.05", "data.batch=8", "run.log_every=8"],
    "x3d": ["train.epochs=8", "train.precise_bn=2", "data.batch=8", "run.log_every=8"],
    "mvit_multi": ["train.epochs=8", "train.lr=3e-3", "data.batch=8", "run.log_every=8"],
}
# In addition, on a CPU.
TOY = {
    "resnet50": ["model.first_width=2"],
    "tsm": ["model.first_width=8", "data.segments=4", "data.crop=32", "data.resize=40"],
    "x3d": ["data.scales=[32,36]", "data.crop=32", "data.frames=4"],
    "mvit_multi": [
        "data.crop=32",
        "data.frames=4",
        "model.dim=8",
        "model.depth=2",
        "model.stage_starts=[1]",
    ],
}


def verify_training(plan: Plan) -> tuple[list[Finding], dict]:
    findings, values = [], {}
    for network in SETTINGS:
        drawn = draw_data(plan, VIDEOS[network])
        if drawn.status:
            findings.append(Finding(FAILED, f"{network}: no data: {drawn.reason}", ""))
            continue
        out = plan.work / f"train_{network}"
        settings = [*training_settings(plan, network), f"run.out={out}"]
        ended = run_training(plan, f"training_{network}", network, settings)
        rows = read_log(out / "log.jsonl")
        values[network] = {**ended.last, "log": rows}
        findings.append(assess_training(network, ended, rows))
    return findings, values


def training_settings(plan: Plan, network: str) -> list[str]:
    """section.key=value on top of the smoke yaml."""
    own = [*SETTINGS[network], *(TOY[network] if plan.is_toy else [])]
    data = plan.work / VIDEOS[network]
    scale = [] if plan.level == "O0" else ["run.loss_scale=1024", "run.dynamic_loss_scale=true"]
    return [f"run.device={plan.device}", f"run.amp={plan.level}", f"data.root={data}", *scale, *own]


def run_training(plan: Plan, name: str, network: str, settings: Sequence[str]) -> Ended:
    return plan.runner.run_script(name, *training_command(network, settings))


def training_command(network: str, settings: Sequence[str]) -> list[str]:
    """The script and its arguments."""
    config = ROOT / network / "configs" / f"{network}_smoke.yaml"
    overrides = [f"--{setting}" for setting in settings]
    return [f"{network}/train.py", "--config_path", str(config), *overrides]


def draw_data(plan: Plan, kind: str) -> Ended:
    """Draws the videos, sets of videos or images, unless they are there."""
    folder, name = plan.work / kind, f"draw_{kind}"
    if kind == "images":
        request = {"device": "CPU", "folder": str(folder)}
        return plan.runner.run_worker(name, "images", request)
    sets = ["--sets"] if kind == "sets" else []
    script = "scripts/data/synthesize_videos.py"
    return plan.runner.run_script(name, script, "--out", folder, *DRAWN[kind], *sets)


def draw_images(request: dict[str, Any]) -> Iterator[dict[str, int]]:
    """A task of `utils.verify.worker`. `request`: folder."""
    yield draw_cifar10(Path(request["folder"]), 0, DISTINCT_IMAGES)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The logged steps of a run; none if it has not begun."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def assess_training(network: str, ended: Ended, rows: Sequence[dict[str, Any]]) -> Finding:
    """FAILED unless the run ends well with finite, falling loss; SLOW if it waits for data."""
    if ended.status:
        advice = f"the log is logs/training_{network}.log"
        return Finding(FAILED, f"{network}: {ended.reason}", advice)
    losses = [row["loss"] for row in rows]
    if len(losses) < 2:
        return Finding(FAILED, f"{network}: the log has fewer than two losses", "")
    text = f"{network}: loss {losses[0]:.3g} -> {losses[-1]:.3g} in {rows[-1]['step']} steps"
    if not all(map(math.isfinite, losses)):
        advice = "run part parity; if O0 passes and O2 fails, train with --run.amp=O0"
        return Finding(FAILED, f"{text}, not finite", advice)
    if min(losses) > FALL * losses[0]:
        advice = "run part parity, and train with --run.amp=O0 --run.tf32=false"
        return Finding(FAILED, f"{text}: it does not fall", advice)
    waiting = max(row["waiting"] for row in rows[1:])
    text += f", {rows[-1]['clips_per_second']:g} clips/s, waiting for data {waiting:.0%}"
    if waiting > WAITING:
        advice = "smoke clips are small; if a real recipe waits too, see docs/data_path.md"
        return Finding(SLOW, text, advice)
    return Finding(OK, text)
