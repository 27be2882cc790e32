"""scripts/verify_device.sh: arguments, verdicts, report, and a complete rehearsal."""

import getpass
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.verify_device.communication import assess_communication, fit_ring, format_cluster
from scripts.verify_device.machine import choose_device, parse_npu_smi
from scripts.verify_device.parity import LIMITS, assess_parity
from scripts.verify_device.processes import ProcessResult, Runner
from scripts.verify_device.report import (
    FAILED,
    OK,
    SKIPPED,
    SLOW,
    Finding,
    PartResult,
    Report,
    redact,
    write_report,
)
from scripts.verify_device.resume import assess_resume
from scripts.verify_device.training import assess_training
from tests.helpers import read_result, run_script, start_script
from utils.config import ROOT

SCRIPT = "scripts/verify_device/verify_device.py"
PARTS = ["parity", "training", "communication", "resume"]
CRASH = ProcessResult(
    "crash", status=1, lines=(), reason="ended with status 1: error: no such device"
)


def build_result(*lines: dict) -> ProcessResult:
    return ProcessResult("complete", status=0, lines=lines, reason="")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "parity,resum"], "unknown part resum; nearest: resume"),
        (["--devices", "none"], "--devices: must be an integer of at least 1, not none"),
        (["--timeout", "0"], "--timeout: must be an integer of at least 1, not 0"),
        (["--device", "TPU"], "invalid choice: 'TPU'"),
        (["--devices"], "--devices: expected one argument"),
        (["now"], "unexpected argument now"),
    ],
)
def test_a_wrong_argument_ends_the_command_with_one_line(arguments, reason, tmp_path):
    done = run_script(SCRIPT, *arguments, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_ends_the_command_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    done = run_script(SCRIPT, "--out", tmp_path / "file" / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --out: cannot write ")


def test_the_shell_script_names_every_part_and_option_of_the_command():
    shell = run_script("scripts/verify_device.sh", "--help").stdout
    python = run_script(SCRIPT, "--help").stdout
    for word in [*PARTS, "--devices", "--only", "--out", "--device", "--timeout"]:
        assert word in shell
        assert word in python


def test_only_the_chosen_part_runs_and_one_for_several_devices_is_skipped(tmp_path):
    parts = "communication"
    result = read_result(run_script(SCRIPT, "--only", parts, "--device", "CPU", "--out", tmp_path))
    assert result["verdicts"] == {"communication": SKIPPED}
    assert result["report"] == str(tmp_path / "report.md")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"]
    assert report["mode"] == "Rehearsal on a CPU, proves nothing about a device."
    assert report["machine"]["host cores"] == os.cpu_count()
    assert not (tmp_path / "work").exists()


def test_a_failed_part_does_not_stop_the_others(tmp_path):
    """No process can finish within a second."""
    parts = ["--only", "resume,training", "--timeout", "1"]
    done = run_script(SCRIPT, *parts, "--device", "CPU", "--out", tmp_path)
    assert done.returncode == 1
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    assert verdicts == dict.fromkeys(["training", "resume"], FAILED)
    assert "not finished after 1 s" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_an_interruption_ends_all_processes_and_writes_a_report(number, tmp_path):
    arguments = ["--only", "parity,communication,resume", "--device", "CPU", "--out", tmp_path]
    process = start_script(SCRIPT, *arguments)
    deadline = time.monotonic() + 600
    children = []
    while not ((tmp_path / "logs" / "parity_resnet50.log").exists() and children):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert children
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not alive
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["complete"]
    assert report["parts"] == []
    assert report["missing"] == ["parity", "communication", "resume"]
    assert "| resume | not run |" in (tmp_path / "report.md").read_text()


def test_a_report_shows_each_part_with_its_most_severe_verdict(tmp_path):
    findings = [Finding(OK, "good"), Finding(SLOW, "slow | slower", "do this"), Finding(OK, "x")]
    parts = [
        PartResult("training", findings=findings, values={"a": 1.5}, seconds=12.4),
        PartResult("parity", findings=[], values={}, seconds=0.0),
    ]
    machine = {"device": "Ascend", "device names": ["910B3", "910B3"]}
    report = Report(machine, mode="Measured on 2 x Ascend.", parts=parts, missing=["resume"])
    write_report(report, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**Measured on 2 x Ascend.**" in text
    assert "* device names: 910B3, 910B3" in text
    assert "| training | SLOW | 12 | do this |" in text
    assert "| parity | FAILED | 0 |  |" in text
    assert "* SLOW: slow | slower\n  What to do: do this" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["parts"][0]["values"] == {"a": 1.5}
    assert content["parts"][0]["verdict"] == SLOW
    assert content["failed"]
    assert not content["complete"]


def test_a_report_contains_no_absolute_paths_or_names_of_users_and_hosts(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.example.org")
    values = {
        "cannot read /home/bob/zoo/data/a.txt: no such file; see ~/zoo/log": (
            "cannot read .../a.txt: no such file; see .../log"
        ),
        "93 clips/s, --data.root=/data/k400 and out/logs/a.log": (
            "93 clips/s, --data.root=.../k400 and out/logs/a.log"
        ),
        "alice on node17.example.org, node17: malice": "USER on HOST, HOST: malice",
    }
    for text, expected in values.items():
        assert redact({"a": [text, 3]}) == {"a": [expected, 3]}


def test_a_process_that_fails_is_described_by_its_last_error(tmp_path):
    code = "import sys; print('{\"a\": 1}'); print('error: bad', file=sys.stderr); sys.exit(3)"
    result = Runner(tmp_path, 60).run("name", [sys.executable, "-c", code])
    assert (result.status, result.last) == (3, {"a": 1})
    assert result.reason == "ended with status 3: error: bad"


def test_a_process_beyond_its_time_limit_is_killed_with_its_children(tmp_path):
    code = "import subprocess; subprocess.run(['sleep', '123456'])"
    result = Runner(tmp_path, 2).run("name", [sys.executable, "-c", code])
    assert result.reason == "not finished after 2 s"
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if "123456" in command]


def test_the_device_is_chosen_by_device_files(monkeypatch, tmp_path):
    monkeypatch.setattr("scripts.launcher.devices.DEVICE_FILES", tmp_path)
    assert choose_device({}) == ("CPU", 1)
    for number in range(4):
        (tmp_path / f"davinci{number}").touch()
    assert choose_device({}) == ("Ascend", 4)
    assert choose_device({"ASCEND_RT_VISIBLE_DEVICES": "2,3"}) == ("Ascend", 2)


def test_names_and_driver_of_ascend_devices_are_read_from_npu_smi():
    table = (
        "| npu-smi 23.0.0                   Version: 23.0.0                               |\n"
        "| NPU   Name                | Health        | Power(W)    Temp(C)               |\n"
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)      |\n"
        "| 0     910B3               | OK            | 93.6        37                    |\n"
        "| 0                         | 0000:C1:00.0  | 0           0    / 0              |\n"
        "| 1     910B3               | Warning       | 93.6        37                    |\n"
    )
    assert parse_npu_smi(table) == (["910B3", "910B3"], "23.0.0")


def test_the_limits_of_float16_are_looser():
    assert all(LIMITS["O2"][name] > LIMITS["O0"][name] for name in LIMITS["O0"])


RESUMED = {"killed_at": 6, "steps": 24, "equal": True, "largest": 0.0}


def measure_parity(**changed: float) -> dict:
    """Values at half of their limits."""
    return {"level": "O0", **{name: limit / 2 for name, limit in LIMITS["O0"].items()}, **changed}


def rate_parity(**changed: float) -> Finding:
    return assess_parity(
        "tsm", case="c.json", device="Ascend", result=build_result(measure_parity(**changed))
    )[0]


def rate_training(losses: list[float], waiting: float = 0.0) -> Finding:
    row = {"step": 10, "clips_per_second": 50.0, "waiting": waiting}
    return assess_training(build_result({}), [{**row, "loss": loss} for loss in losses])


def rate_resume(device: str = "Ascend", **changed) -> Finding:
    return assess_resume(device, {**RESUMED, **changed}, build_result({}))


def probe_ring(latency: float, bandwidth: float, ranks: int = 8) -> dict:
    """The times of a ring with this latency, microseconds, and bandwidth, GB/s."""
    sizes = [4 * 2**k for k in (10, 16, 20, 24)]
    times = [2 * (ranks - 1) * (latency * 1e-6 + n / ranks / bandwidth / 1e9) for n in sizes]
    return {"ranks": ranks, "correct": True, "probes": list(zip(sizes, times))}


def rate_ring(
    device: str = "Ascend", latency: float = 12.0, bandwidth: float = 25.0, correct: bool = True
) -> Finding:
    result = build_result({**probe_ring(latency, bandwidth), "correct": correct})
    return assess_communication(device, result)


@pytest.mark.parametrize(
    ("rate", "values", "verdict", "words"),
    [
        (rate_parity, {}, OK, "tsm O0"),
        (rate_parity, {"loss": 0.1}, FAILED, "loss 0.1 (limit 0.001)"),
        (rate_parity, {"scores": float("nan")}, FAILED, "scores nan"),
        (rate_training, {"losses": [2.0, 1.9, 1.5]}, OK, "2 -> 1.5"),
        (rate_training, {"losses": [2.0, 1.5], "waiting": 0.6}, SLOW, "waiting for data 60%"),
        (rate_training, {"losses": [2.0, 1.99, 2.1]}, FAILED, "does not fall"),
        (rate_training, {"losses": [2.0, float("nan")]}, FAILED, "not finite"),
        (rate_training, {"losses": [2.0]}, FAILED, "fewer than two losses"),
        (rate_training, {"losses": []}, FAILED, "fewer than two losses"),
        (rate_ring, {"bandwidth": 25.0}, OK, "12 us a message, 25 GB/s"),
        (rate_ring, {"bandwidth": 1.0}, SLOW, "1 GB/s"),
        (rate_ring, {"device": "GPU", "latency": 900.0}, SLOW, "900 us"),
        (rate_ring, {"device": "CPU", "latency": 900.0, "bandwidth": 1.0}, OK, "900 us"),
        (rate_ring, {"correct": False}, FAILED, "wrong sums"),
        (rate_resume, {"device": "CPU"}, OK, "bit for bit"),
        (rate_resume, {"device": "CPU", "equal": False, "largest": 1e-7}, FAILED, "(limit 0)"),
        (rate_resume, {"equal": False, "largest": 1e-4}, OK, "0.0001 (limit 0.01)"),
        (rate_resume, {"equal": False, "largest": 0.5}, FAILED, "0.5 (limit 0.01)"),
        (rate_resume, {"device": "CPU", "killed_at": 24}, FAILED, "too late"),
    ],
)
def test_a_verdict_follows_from_the_measured_values(rate, values, verdict, words):
    finding = rate(**values)
    assert finding.verdict == verdict, finding
    assert words in finding.text


def test_a_crash_is_a_failure_with_its_reason_and_log():
    for finding in (
        assess_parity("tsm", case="c.json", device="CPU", result=CRASH)[0],
        assess_training(CRASH, [{"loss": 2.0}, {"loss": 1.0}]),
        assess_communication("Ascend", CRASH),
        assess_resume("CPU", {}, CRASH),
    ):
        assert finding.verdict == FAILED
        assert CRASH.reason in finding.text
        assert finding.advice == "the log is logs/crash.log"


def test_parity_fails_if_a_level_has_no_result():
    crashed = ProcessResult(
        "parity_tsm", status=-11, lines=(measure_parity(),), reason="was killed by SIGSEGV"
    )
    ieee, float16 = assess_parity("tsm", case="c.json", device="Ascend", result=crashed)
    assert (ieee.verdict, float16.verdict) == (OK, FAILED)
    assert float16.text == "tsm O2: was killed by SIGSEGV"
    assert "--case c.json --run.device=Ascend" in rate_parity(loss=0.1).advice


def test_latency_and_bandwidth_are_fitted_to_the_times_of_a_ring():
    assert fit_ring(probe_ring(12.0, 25.0)["probes"], 8) == pytest.approx((12.0, 25.0))
    line = format_cluster(probe_ring(12.0, 25.0), "Ascend")
    assert line == "--cluster='{devices_per_node: 8, local_latency: 12.0, local_bandwidth: 25}'"
    assert "overlap: false" in format_cluster(probe_ring(12.0, 25.0), "CPU")


@pytest.mark.slow
def test_a_complete_rehearsal_on_two_workers_of_the_cpu(tmp_path):
    arguments = ["--device", "CPU", "--devices", "2", "--out", tmp_path]
    done = run_script(SCRIPT, *arguments, timeout=2400)
    text = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, text
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    assert verdicts == dict.fromkeys(PARTS, OK)
    assert "Rehearsal on a CPU, proves nothing about a device." in text
    assert "`--cluster='{devices_per_node: 2, " in text
    assert "bit for bit" in text
    assert str(tmp_path) not in text
    assert str(Path(ROOT)) not in (tmp_path / "report.json").read_text()
