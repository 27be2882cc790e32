"""Smoke training: TSM learns from little synthetic data, with a falling, finite loss."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.verify_device.machine import Plan
from scripts.verify_device.processes import ProcessResult
from scripts.verify_device.report import FAILED, OK, SLOW, Finding
from utils.config import ROOT

MAX_LOSS = 0.99  # the lowest logged loss over the first one
MAX_WAITING = 0.3  # of the time for data; more is SLOW
VIDEOS = ("--train", "8", "--test", "1")  # of each class
SETTINGS = ("train.epochs=8", "train.lr=0.05", "data.batch=8", "run.log_every=8")
# A small form of the network, for a CPU.
TOY = ("model.first_width=8", "data.segments=4", "data.crop=32", "data.resize=40")


def verify_training(plan: Plan) -> tuple[list[Finding], dict]:
    data = draw_videos(plan)
    if data.status:
        return [data.build_failure("no data")], {}
    out = plan.work / "train"
    result = plan.runner.run_script("training", *build_command(plan, [f"run.out={out}"]))
    rows = read_log(out / "log.jsonl")
    return [assess_training(result, rows)], {**result.last, "log": rows}


def build_command(plan: Plan, settings: Sequence[str]) -> list[str]:
    """The training script and its arguments: the smoke recipe with `section.key=value` on top."""
    config = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
    overrides = [f"run.device={plan.device}", f"run.amp={plan.level}"]
    overrides.append(f"data.root={plan.work / 'videos'}")
    if plan.level != "O0":
        overrides += ["run.loss_scale=1024", "run.dynamic_loss_scale=true"]
    overrides += [*SETTINGS, *(TOY if plan.is_toy else []), *settings]
    options = [f"--{setting}" for setting in overrides]
    return ["tsm/train.py", "--config_path", str(config), *options]


def draw_videos(plan: Plan) -> ProcessResult:
    """Draws the videos, unless they exist."""
    script = "scripts/data/synthesize_videos.py"
    return plan.runner.run_script("draw_videos", script, "--out", plan.work / "videos", *VIDEOS)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The logged steps of a run; none if it has not started."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "loss" in row]


def assess_training(result: ProcessResult, rows: Sequence[dict]) -> Finding:
    """FAILED unless the run ends well with finite, falling loss; SLOW if it waits for data."""
    if result.status:
        return result.build_failure()
    losses = [row["loss"] for row in rows]
    if len(losses) < 2:
        return Finding(FAILED, "the log has fewer than two losses")
    text = f"loss {losses[0]:.3g} -> {losses[-1]:.3g} in {rows[-1]['step']} steps"
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
