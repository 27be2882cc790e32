"""Verifies the zoo on an Ascend or a GPU, in less than an hour, and writes a report for an issue.

    bash scripts/verify_device.sh [--devices 8] [--only parity,resume] [--out FOLDER]
        [--device Ascend|GPU|CPU] [--timeout SECONDS]

or, in an environment that is ready, python scripts/verify_device/verify_device.py with the same.

Parts, in order: parity (golden cases in float32 and at O2), training (TSM learns), communication
(AllReduce; the option --cluster of plan_allreduce.py), resume (after kill -9). After a failed part
the others still run.

Without a device it runs on the CPU with small sizes, as a rehearsal that proves nothing about a
device. --timeout limits each process (3600 s; 900 s on a CPU).

The report is in --out (out/verify_device): report.md, report.json and, with paths of this host,
logs/. The last line of stdout is one JSON object: report, device, verdicts. Exit status 0: no part
failed; 1: a part failed; 2: wrong arguments; 130: interrupted, with a report of the finished parts.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import shutil
import signal
import time
from typing import Any, Literal, NoReturn, Optional

from scripts.launcher.launch_config import check_devices
from scripts.verify_device.communication import verify_communication
from scripts.verify_device.machine import Plan, choose_device, describe_machine
from scripts.verify_device.parity import verify_parity
from scripts.verify_device.processes import Runner
from scripts.verify_device.report import FAILED, MARKDOWN, Finding, PartResult, Report, write_report
from scripts.verify_device.resume import verify_resume
from scripts.verify_device.training import verify_training
from utils import cli, signals
from utils.config import get_base_folder
from utils.files import make_own_folder, report_write_errors
from utils.messages import check_choice
from utils.processes import adopt_orphans

PARTS = {
    "parity": verify_parity,
    "training": verify_training,
    "communication": verify_communication,
    "resume": verify_resume,
}
LIMITS = {"CPU": 900, "GPU": 3600, "Ascend": 3600}  # seconds of one process


def main(*, only: str = ",".join(PARTS), out: Optional[Path] = None, **options) -> int:
    names = only.split(",")
    for name in names:
        check_choice(name, PARTS, "part")
    out = out or get_base_folder() / "out/verify_device"
    plan = make_plan(out.resolve(), **options)
    adopt_orphans()
    for number in signals.WATCHED:
        signal.signal(number, interrupt)
    signals.release()
    report, status = run_parts(plan, [name for name in PARTS if name in names], out)
    shutil.rmtree(plan.work, ignore_errors=True)
    verdicts = {part.name: part.verdict for part in report.parts}
    result = {"report": str(out / MARKDOWN), "device": plan.device, "verdicts": verdicts}
    print(json.dumps(result))
    return status


def interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


def make_plan(
    out: Path,
    *,
    device: Optional[Literal[tuple(LIMITS)]] = None,
    devices: Optional[cli.PositiveInt] = None,
    timeout: Optional[cli.PositiveInt] = None,
) -> Plan:
    """The plan of a call, with empty folders. Raises ValueError for wrong arguments.

    `device` and `devices` are by default the best ones of this host, `timeout` depends on them.
    """
    best, count = choose_device(os.environ)
    device = device or best
    if device != best:
        count = 1
    if devices:
        count = devices
        check_devices(count, [f"--run.device={device}"], os.environ)
    for name in ("logs", "work"):
        make_own_folder(out / name)
    runner = Runner(out / "logs", timeout or LIMITS[device])
    return Plan(device, devices=count, work=out / "work", runner=runner)


def run_parts(plan: Plan, names: list[str], out: Path) -> tuple[Report, int]:
    """The report, which is written after every part, and the exit status."""
    machine = describe_machine(plan.device, os.environ)
    completed = []
    status = 0

    def write() -> Report:
        report = Report(
            machine, mode=plan.describe(), parts=completed, missing=names[len(completed) :]
        )
        with report_write_errors(out, "--out"):
            write_report(report, out)
        return report

    print_progress(plan.describe())
    try:
        for name in names:
            print_progress(f"{name} ...")
            completed.append(run_part(plan, name))
            print_progress(f"{name}: {completed[-1].verdict}, {completed[-1].seconds:.0f} s")
            write()
    except KeyboardInterrupt as error:
        print_progress("interrupted; the report holds the finished parts")
        status = 128 + error.args[0]
    report = write()
    return report, status or int(report.failed)


def run_part(plan: Plan, name: str) -> PartResult:
    """The result of one part; an error in its code is a finding too."""
    start = time.monotonic()
    try:
        findings, values = PARTS[name](plan)
    except Exception as error:  # of any kind: the other parts must run
        text = f"{type(error).__name__}: {error}"
        findings = [Finding(FAILED, text, "report this as an issue")]
        values = {}
    return PartResult(
        name, findings=findings, values=values, seconds=round(time.monotonic() - start, 1)
    )


def print_progress(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli.run_command(main, __doc__, make_plan)
