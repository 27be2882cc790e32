"""Resume: a run that is killed and resumed must end with the weights of an uninterrupted run.

On a CPU they must be equal bit for bit. A device adds in another order each time, so there the
relative error of each array must be at most LIMIT.
"""

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.verify_device.machine import Plan
from scripts.verify_device.processes import ProcessResult, read_reason
from scripts.verify_device.report import FAILED, OK, Finding
from scripts.verify_device.training import build_command, draw_videos
from utils.config import ROOT

LIMIT = 1e-2
EPOCHS = 20
TOY_EPOCHS = 3
KILL_AFTER = 4  # steps that were saved
SAVING = ["run.save_steps=2", "run.save_every=1", "run.amp=O0", "run.tf32=false"]


def verify_resume(plan: Plan) -> tuple[list[Finding], dict]:
    data = draw_videos(plan)
    if data.status:
        return [data.build_failure("no data")], {}
    settings = [f"train.epochs={TOY_EPOCHS if plan.is_toy else EPOCHS}", *SAVING]
    killed = plan.work / "resumed"
    command = build_command(plan, [*settings, f"run.out={killed}"])
    failure = kill_run(plan, command, killed)
    if failure:
        return [Finding(FAILED, failure, "the log is logs/resume_killed.log")], {}
    killed_at = read_step(killed)
    resumed = plan.runner.run_script("resume_again", *command)
    command = build_command(plan, [*settings, f"run.out={plan.work / 'undisturbed'}"])
    whole = plan.runner.run_script("resume_whole", *command)
    for result in (resumed, whole):
        if result.status:
            return [result.build_failure()], {}
    result = plan.measure(
        "resume_difference",
        "difference",
        first=whole.last["checkpoint"],
        second=resumed.last["checkpoint"],
    )
    values = {"killed_at": killed_at, "steps": resumed.last["steps"], **result.last}
    return [assess_resume(plan.device, values, result)], values


def kill_run(plan: Plan, command: Sequence[str], out: Path) -> str:
    """Starts a run and kills it after a save; the reason if that fails, or else empty."""
    script, *arguments = command
    command = [sys.executable, ROOT / script, *arguments]
    with plan.runner.start_process("resume_killed", command) as (process, _, log):
        deadline = time.monotonic() + plan.runner.limit
        while read_step(out) < KILL_AFTER:
            if process.poll() is not None:
                if process.returncode:
                    return read_reason(process.returncode, log)
                return "the run ended before it could be killed"
            if time.monotonic() > deadline:
                return f"nothing saved after {plan.runner.limit:g} s"
            time.sleep(0.02)
        process.kill()
        process.wait()
    return ""


def read_step(out: Path) -> int:
    """The last step that a run has saved; 0 before the first save."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((out / "state.json").read_text())["step"]
    return 0


def assess_resume(device: str, values: dict, result: ProcessResult) -> Finding:
    """FAILED unless the weights are equal: on a CPU bit for bit, on a device within LIMIT."""
    if result.status or "equal" not in values:
        return result.build_failure()
    text = f"killed at step {values['killed_at']} of {values['steps']}, resumed: "
    if values["killed_at"] >= values["steps"]:
        return Finding(FAILED, f"{text}the kill came too late to prove anything", "run it again")
    if values["equal"]:
        text += "the final weights are those of an uninterrupted run, bit for bit"
        return Finding(OK, text)
    limit = 0.0 if device == "CPU" else LIMIT
    text += f"the final weights differ by {values['largest']:.2g} (limit {limit:g})"
    if values["largest"] <= limit:
        return Finding(OK, text)
    return Finding(FAILED, text, "do not rely on resuming; attach logs/resume_*.log to an issue")
