"""Resume: a run that is killed and started again must end with the weights of an undisturbed one.

Bit for bit on a CPU. A device adds in another order each time, so there the lengths of the
differences must stay below LIMIT of the weights' own.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from utils.config import ROOT
from utils.verify.machine import Plan
from utils.verify.processes import Ended, describe_failure
from utils.verify.report import FAILED, OK, Finding
from utils.verify.training import draw_data, run_training, training_command, training_settings

LIMIT = 1e-2
NETWORK = "tsm"
EPOCHS, TOY_EPOCHS = 20, 3
KILL_AFTER = 4  # steps that were saved
SAVING = ["run.save_steps=2", "run.save_every=1", "run.amp=O0", "run.tf32=false"]


def verify_resume(plan: Plan) -> tuple[list[Finding], dict]:
    drawn = draw_data(plan, "videos")
    if drawn.status:
        return [Finding(FAILED, f"no data: {drawn.reason}")], {}
    epochs = TOY_EPOCHS if plan.is_toy else EPOCHS
    settings = [*training_settings(plan, NETWORK), f"train.epochs={epochs}", *SAVING]
    out = plan.work / "resumed"
    killed_at = kill_run(plan, [*settings, f"run.out={out}"], out)
    if isinstance(killed_at, str):
        return [Finding(FAILED, killed_at, "the log is logs/resume_killed.log")], {}
    runs = [
        run_training(plan, f"resume_{name}", NETWORK, [*settings, f"run.out={plan.work / folder}"])
        for name, folder in (("again", "resumed"), ("whole", "undisturbed"))
    ]
    for ended in runs:
        if ended.status:
            return [Finding(FAILED, ended.reason, "the logs are logs/resume_*.log")], {}
    names = dict(zip(("second", "first"), (ended.last["checkpoint"] for ended in runs)))
    request = {"device": plan.device, **names}
    ended = plan.runner.run_worker("resume_difference", "difference", request)
    values = {"killed_at": killed_at, "steps": runs[0].last["steps"], **ended.last}
    return [assess_resume(plan.device, values, ended)], values


def kill_run(plan: Plan, settings: Sequence[str], out: Path):
    """Starts a run and kills it after a save: the saved step, or a text that says what failed."""
    script, *arguments = training_command(NETWORK, settings)
    command = [sys.executable, ROOT / script, *arguments]
    with plan.runner.started("resume_killed", command) as (process, _, log):
        deadline = time.monotonic() + plan.runner.limit
        while read_step(out) < KILL_AFTER:
            if process.poll() is not None:
                if process.returncode:
                    return describe_failure(process.returncode, log)
                return "the run ended before it could be killed"
            if time.monotonic() > deadline:
                return f"nothing saved after {plan.runner.limit:g} s"
            time.sleep(0.02)
        process.kill()
        process.wait()
    return read_step(out)


def read_step(out: Path) -> int:
    """The step that a run has saved; 0 before the first save."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((out / "state.json").read_text())["step"]
    return 0


def assess_resume(device: str, values: dict, ended: Ended) -> Finding:
    """FAILED unless the weights are equal: on a CPU bit for bit, on a device within LIMIT."""
    if ended.status or "equal" not in values:
        return Finding(FAILED, ended.reason or "no result", "the log is logs/resume_difference.log")
    text = f"killed at step {values['killed_at']} of {values['steps']}, resumed: "
    advice = "do not rely on resuming; attach logs/resume_*.log to an issue"
    if values["killed_at"] >= values["steps"]:
        return Finding(FAILED, f"{text}the kill came too late to prove anything", "run it again")
    if values["equal"]:
        return Finding(OK, f"{text}the final weights are those of an undisturbed run, bit for bit")
    text += f"the final weights differ by {values['largest']:.2g}"
    limit = 0.0 if device == "CPU" else LIMIT
    fits = math.isfinite(values["largest"]) and values["largest"] <= limit
    return Finding(OK if fits else FAILED, f"{text} (limit {limit:g})", "" if fits else advice)
