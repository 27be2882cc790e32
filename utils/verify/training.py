"""Smoke training: each network learns from little synthetic data, with a falling, finite loss."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.config import ROOT
from utils.verify.machine import Plan
from utils.verify.processes import ProcessResult
from utils.verify.report import FAILED, OK, SLOW, Finding

MAX_LOSS = 0.99  # the lowest logged loss over the first one
MAX_WAITING = 0.3  # of the time for data; more is SLOW
DATA = {"resnet50": "images", "tsm": "videos", "x3d": "videos", "mvit_multi": "sets"}
VIDEO_COUNTS = {"videos": ["--train", "8", "--test", "1"], "sets": ["--train", "3", "--test", "1"]}
SETTINGS = {
    "resnet50": ["train.epochs=1", "data.batch=256", "run.log_every=20"],
    "tsm": ["train.epochs=8", "train.lr=0.05", "data.batch=8", "run.log_every=8"],
    "x3d": ["train.epochs=8", "train.precise_bn=2", "data.batch=8", "run.log_every=8"],
    "mvit_multi": ["train.epochs=8", "train.lr=3e-3", "data.batch=8", "run.log_every=8"],
}
# Small forms of the networks, for a CPU.
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
        data = draw_data(plan, DATA[network])
        if data.status:
            findings.append(data.build_failure(f"{network}: no data"))
            continue
        out = plan.work / f"train_{network}"
        command = build_command(plan, network, [f"run.out={out}"])
        result = plan.runner.run_script(f"training_{network}", *command)
        rows = read_log(out / "log.jsonl")
        values[network] = {**result.last, "log": rows}
        findings.append(assess_training(network, result, rows))
    return findings, values


def build_command(plan: Plan, network: str, settings: Sequence[str]) -> list[str]:
    """The training script and its arguments: the smoke yaml with `section.key=value` on top."""
    config = ROOT / network / "configs" / f"{network}_smoke.yaml"
    data = plan.work / DATA[network]
    overrides = [f"run.device={plan.device}", f"run.amp={plan.level}", f"data.root={data}"]
    if plan.level != "O0":
        overrides += ["run.loss_scale=1024", "run.dynamic_loss_scale=true"]
    overrides += [*SETTINGS[network], *(TOY[network] if plan.is_toy else []), *settings]
    options = [f"--{setting}" for setting in overrides]
    return [f"{network}/train.py", "--config_path", str(config), *options]


def draw_data(plan: Plan, kind: str) -> ProcessResult:
    """Draws the videos, sets of videos or images, unless they exist."""
    folder, name = plan.work / kind, f"draw_{kind}"
    if kind == "images":
        return plan.measure(name, "images", folder=str(folder))
    options = [*VIDEO_COUNTS[kind], *(["--sets"] if kind == "sets" else [])]
    script = "scripts/data/synthesize_videos.py"
    return plan.runner.run_script(name, script, "--out", folder, *options)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The logged steps of a run; none if it has not started."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def assess_training(network: str, result: ProcessResult, rows: Sequence[dict]) -> Finding:
    """FAILED unless the run ends well with finite, falling loss; SLOW if it waits for data."""
    if result.status:
        return result.build_failure(network)
    losses = [row["loss"] for row in rows]
    if len(losses) < 2:
        return Finding(FAILED, f"{network}: the log has fewer than two losses")
    text = f"{network}: loss {losses[0]:.3g} -> {losses[-1]:.3g} in {rows[-1]['step']} steps"
    if not all(map(math.isfinite, losses)):
        advice = "run part parity; if O0 passes and O2 fails, train with --run.amp=O0"
        return Finding(FAILED, f"{text}, not finite", advice)
    if min(losses) > MAX_LOSS * losses[0]:
        advice = "run part parity, and train with --run.amp=O0 --run.tf32=false"
        return Finding(FAILED, f"{text}: it does not fall", advice)
    waiting = max(row["waiting"] for row in rows[1:])
    text += f", {rows[-1]['clips_per_second']:g} clips/s, waiting for data {waiting:.0%}"
    if waiting > MAX_WAITING:
        advice = "smoke clips are small; if a real recipe waits too, see docs/data_path.md"
        return Finding(SLOW, text, advice)
    return Finding(OK, text)
