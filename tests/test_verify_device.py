"""scripts/verify_device.sh: arguments, verdicts, report, and a whole rehearsal."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers import call, environment, last_json
from utils.config import ROOT
from utils.verify import measurements
from utils.verify.communication import (
    assess_communication,
    assess_order,
    assess_overlap,
    fit_ring,
    format_cluster,
)
from utils.verify.convolutions import assess_convolutions
from utils.verify.machine import assess_environment, choose_device, parse_npu_smi
from utils.verify.parity import LIMITS, assess_parity
from utils.verify.processes import ProcessResult, Runner
from utils.verify.report import (
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
from utils.verify.resume import assess_resume
from utils.verify.speed import assess_dry_run, assess_speed
from utils.verify.training import assess_training

SCRIPT = "scripts/analysis/verify_device.py"
PARTS = ["environment", "parity", "training", "speed", "convolutions"]
PARTS += ["communication", "overlap", "resume"]
CRASH = ProcessResult("crash", 1, (), "ended with status 1: error: no such device")


def complete(*lines: dict) -> ProcessResult:
    return ProcessResult("complete", 0, lines, "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "parity,sped"], "unknown part sped; nearest: speed"),
        (["--devices", "none"], "--devices: must be a whole number of at least 1, not none"),
        (["--timeout", "0"], "--timeout: must be a whole number of at least 1, not 0"),
        (["--chip", "ascend911"], "--chip: invalid choice: 'ascend911'"),
        (["--rehearse", "--device", "Ascend"], "--rehearse goes with a CPU"),
        (["--device", "TPU"], "invalid choice: 'TPU'"),
        (["--devices"], "--devices: expected one argument"),
        (["now"], "unexpected argument now"),
    ],
)
def test_a_wrong_argument_ends_the_command_with_one_line(arguments, reason, tmp_path):
    done = call(SCRIPT, *arguments, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_ends_the_command_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    done = call(SCRIPT, "--out", tmp_path / "file" / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --out: cannot write ")


def test_the_shell_script_names_every_part_and_option_of_the_command():
    shell = call("scripts/verify_device.sh", "--help").stdout
    python = call(SCRIPT, "--help").stdout
    for word in [*PARTS, "--devices", "--only", "--out", "--device", "--rehearse", "--timeout"]:
        assert word in shell
        assert word in python


def test_one_part_alone_is_run_and_reported(tmp_path):
    done = call(SCRIPT, "--only", "environment", "--device", "CPU", "--out", tmp_path)
    result = last_json(done)
    assert result["verdicts"].keys() == {"environment"}
    assert result["report"] == str(tmp_path / "report.md")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"]
    assert report["mode"] == "Rehearsal on a CPU, proves nothing about a device."
    assert report["machine"]["host cores"] == os.cpu_count()
    assert not (tmp_path / "work").exists()


def test_parts_that_need_several_devices_are_skipped_on_one(tmp_path):
    done = call(SCRIPT, "--only", "overlap,communication", "--device", "CPU", "--out", tmp_path)
    assert last_json(done)["verdicts"] == {"communication": SKIPPED, "overlap": SKIPPED}


def test_a_part_that_fails_stops_no_other(tmp_path):
    """No process can finish within a second."""
    parts = ["--only", "environment,convolutions,resume", "--timeout", "1"]
    done = call(SCRIPT, *parts, "--device", "CPU", "--out", tmp_path)
    assert done.returncode == 1
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    assert verdicts == dict.fromkeys(["environment", "convolutions", "resume"], FAILED)
    assert "not finished after 1 s" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_processes_and_leaves_a_report(number, tmp_path):
    command = [sys.executable, ROOT / SCRIPT, "--only", "environment,parity,speed"]
    command += ["--device", "CPU", "--out", tmp_path]
    process = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "logs" / "parity_resnet50.log").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["complete"]
    assert [part["name"] for part in report["parts"]] == ["environment"]
    assert report["missing"] == ["parity", "speed"]
    assert "| speed | not run |" in (tmp_path / "report.md").read_text()


def test_a_report_shows_each_part_with_its_most_severe_verdict(tmp_path):
    findings = [Finding(OK, "good"), Finding(SLOW, "slow | slower", "do this"), Finding(OK, "x")]
    parts = [PartResult("speed", findings, {"a": 1.5}, 12.4), PartResult("parity", [], {}, 0.0)]
    machine = {"device": "Ascend", "device names": ["910B3", "910B3"]}
    report = Report(machine, "Measured on 2 x Ascend.", parts, ["resume"])
    write_report(report, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**Measured on 2 x Ascend.**" in text
    assert "* device names: 910B3, 910B3" in text
    assert "| speed | SLOW | 12 | do this |" in text
    assert "| parity | FAILED | 0 |  |" in text
    assert "* SLOW: slow | slower\n  What to do: do this" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["parts"][0]["values"] == {"a": 1.5}
    assert content["parts"][0]["verdict"] == SLOW
    assert content["failed"]
    assert not content["complete"]


def test_a_report_has_no_absolute_paths_and_no_names_of_users_or_hosts():
    value = {
        "text": "cannot read /home/alice/zoo/data/a.txt: no such file; see ~/zoo/log",
        "file": ["/usr/local/Ascend/cann/set_env.sh"],
        "rates": "93 clips/s, --data.root=/data/k400 and out/logs/a.log",
        "number": 3,
    }
    assert redact(value) == {
        "text": "cannot read .../a.txt: no such file; see .../log",
        "file": [".../set_env.sh"],
        "rates": "93 clips/s, --data.root=.../k400 and out/logs/a.log",
        "number": 3,
    }


def test_names_of_this_user_and_host_are_replaced(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.example.org")
    assert redact("alice on node17.example.org, node17: malice") == "USER on HOST, HOST: malice"


def test_a_process_that_fails_is_described_by_its_last_error(tmp_path):
    code = "import sys; print('{\"a\": 1}'); print('error: bad', file=sys.stderr); sys.exit(3)"
    result = Runner(tmp_path, 60).run("name", [sys.executable, "-c", code])
    assert (result.status, result.last) == (3, {"a": 1})
    assert result.reason == "ended with status 3: error: bad"


def test_a_process_beyond_its_time_limit_is_ended_with_its_children(tmp_path):
    code = "import subprocess; subprocess.run(['sleep', '123456'])"
    result = Runner(tmp_path, 2).run("name", [sys.executable, "-c", code])
    assert result.reason == "not finished after 2 s"
    sleeping = [
        p for p in psutil.process_iter(["cmdline"]) if "123456" in (p.info["cmdline"] or [])
    ]
    assert sleeping == []


def test_devices_are_chosen_by_their_files(monkeypatch, tmp_path):
    monkeypatch.setattr("utils.distributed.devices.DEVICE_FILES", tmp_path)
    assert choose_device({}) == ("CPU", 1)
    for number in range(4):
        (tmp_path / f"davinci{number}").touch()
    assert choose_device({}) == ("Ascend", 4)
    assert choose_device({"ASCEND_RT_VISIBLE_DEVICES": "2,3"}) == ("Ascend", 2)


def test_names_of_ascend_devices_are_read_from_npu_smi():
    table = (
        "| npu-smi 23.0.0                   Version: 23.0.0                               |\n"
        "| NPU   Name                | Health        | Power(W)    Temp(C)               |\n"
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)      |\n"
        "| 0     910B3               | OK            | 93.6        37                    |\n"
        "| 0                         | 0000:C1:00.0  | 0           0    / 0              |\n"
        "| 1     910B3               | Warning       | 93.6        37                    |\n"
    )
    assert parse_npu_smi(table) == ["910B3", "910B3"]


ENVIRONMENT = {"found": {"devices": "CPU"}, "missing": []}


@pytest.mark.parametrize(
    ("lines", "device", "warnings", "verdict"),
    [
        ([ENVIRONMENT], "CPU", [], OK),
        ([ENVIRONMENT], "Ascend", [], FAILED),
        ([ENVIRONMENT], "CPU", ["PyAV not installed"], SLOW),
        ([{**ENVIRONMENT, "missing": ["OpenCV"]}], "CPU", ["x"], FAILED),
        ([], "CPU", [], FAILED),
    ],
)
def test_an_environment_without_the_device_fails(lines, device, warnings, verdict):
    assert assess_environment(complete(*lines), device, warnings)[0].verdict == verdict


def parity_line(level: str, **changed: float) -> dict:
    return {"level": level, **{name: limit / 2 for name, limit in LIMITS[level].items()}, **changed}


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        (({}, {}), [OK, OK]),
        (({"loss": 0.1}, {"scores": float("nan")}), [FAILED, FAILED]),
        (({},), [OK, FAILED]),
    ],
)
def test_parity_fails_beyond_a_limit_and_without_a_level(changed, verdicts):
    lines = [parity_line(level, **values) for level, values in zip(("O0", "O2"), changed)]
    findings = assess_parity("tsm", "c.json", "Ascend", complete(*lines))
    assert [finding.verdict for finding in findings] == verdicts
    if len(lines) == 1:
        assert findings[1].text == "tsm O2: no result"
    elif FAILED in verdicts:
        assert "--case c.json --run.device=Ascend" in findings[0].advice


def test_the_limits_of_float16_are_looser():
    assert all(LIMITS["O2"][name] > LIMITS["O0"][name] for name in LIMITS["O0"])


def rows(*losses: float, waiting: float = 0.0) -> list:
    result = {"step": 10, "clips_per_second": 50.0, "waiting": waiting}
    return [{**result, "loss": loss} for loss in losses]


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (rows(2.0, 1.9, 1.5), OK),
        (rows(2.0, 1.5, waiting=0.6), SLOW),
        (rows(2.0, 1.99, 2.1), FAILED),
        (rows(2.0, float("nan")), FAILED),
        (rows(2.0), FAILED),
        ([], FAILED),
    ],
)
def test_training_must_have_finite_falling_loss(log, verdict):
    assert assess_training("tsm", complete({}), log).verdict == verdict


SHAPES = [["x3d s2", (1, 2, 3, 4, 4), (3, 3, 3), 1, 3], ["mvit_multi q", (1,), (3,), 1, 2]]


@pytest.mark.parametrize(
    "assess",
    [
        lambda result: assess_training("tsm", result, rows(2.0, 1.0)),
        lambda result: assess_speed("tsm", "Ascend", result),
        lambda result: assess_dry_run("tsm", result),
        lambda result: assess_communication("Ascend", result),
        lambda result: assess_overlap("Ascend", result),
        lambda result: assess_order(result),
        lambda result: assess_resume("CPU", {}, result),
        lambda result: assess_convolutions("Ascend", SHAPES, {"taps": result})[0],
        lambda result: assess_parity("tsm", "c.json", "CPU", result)[0],
    ],
)
def test_a_process_that_crashes_is_a_failure_with_its_reason_and_log(assess):
    finding = assess(CRASH)
    assert finding.verdict == FAILED
    assert CRASH.reason in finding.text
    assert finding.advice == "the log is logs/crash.log"


STEP = {"batch": 8, "compile": 20.0, "first_step": 30.0, "step": 0.05, "loss": 1.0}
FRACTIONS = {"computing": 0.9, "communication": 0.0, "waiting": 0.1}


@pytest.mark.parametrize(
    ("changed", "device", "verdict"),
    [
        ({}, "Ascend", OK),
        ({"shares": {**FRACTIONS, "waiting": 0.6}}, "Ascend", SLOW),
        ({"shares": {**FRACTIONS, "waiting": 0.6}}, "CPU", OK),
        ({"shares": {}, "launches": 0}, "GPU", OK),
        ({"first_step": 900.0}, "Ascend", SLOW),
    ],
)
def test_a_step_is_slow_if_the_device_waits_or_starts_late(changed, device, verdict):
    result = complete({**STEP, "shares": FRACTIONS, "launches": 2000, **changed})
    assert assess_speed("tsm", device, result).verdict == verdict


def test_a_step_without_a_trace_is_slow():
    result = ProcessResult("speed_tsm", -11, (STEP,), "was killed by SIGSEGV")
    assert assess_speed("tsm", "Ascend", result).verdict == SLOW


DRY_RUN = {"finished": True, "chip": "ascend910b", "launches": 900, "peak_gb": 2.5}


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        ({}, OK, "compiles, 900 launches, 2.5 GB"),
        ({"python": 2}, SLOW, "2 calls of Python"),
        ({"ai_cpu": ["MaxPool3D"]}, SLOW, "AI CPU: MaxPool3D"),
        ({"finished": False, "reason": "ValueError: group"}, FAILED, "x3d: ValueError: group"),
    ],
)
def test_a_dry_run_must_compile_without_python_and_ai_cpu(changed, verdict, words):
    result = complete({**DRY_RUN, "python": 0, "ai_cpu": [], **changed})
    finding = assess_dry_run("x3d", result)
    assert finding.verdict == verdict
    assert words in finding.text


def time_shapes(x3d: float, mvit: float) -> ProcessResult:
    lines = {"shape": "x3d s2", "seconds": x3d}, {"shape": "mvit_multi q", "seconds": mvit}
    return complete(*lines)


def test_the_fastest_depthwise_implementation_is_named():
    results = {"taps": time_shapes(0.3, 0.1), "grouped": CRASH, "frames": time_shapes(0.1, 0.2)}
    missing, x3d, mvit = assess_convolutions("Ascend", SHAPES, results)
    assert (missing.verdict, missing.text[:22]) == (OK, "grouped: not available")
    assert x3d.verdict == SLOW
    assert x3d.text == "x3d: taps 900.0 ms, frames 300.0 ms; best: frames"
    assert x3d.advice == "train x3d with --model.depthwise_impl=frames, not taps"
    assert (mvit.verdict, mvit.advice) == (OK, "")


def probes(latency: float, bandwidth: float, ranks: int = 8) -> dict:
    """The times of a ring with this latency, microseconds, and bandwidth, GB/s."""
    sizes = [4 * 2**k for k in (10, 16, 20, 24)]
    times = [2 * (ranks - 1) * (latency * 1e-6 + n / ranks / bandwidth / 1e9) for n in sizes]
    return {"ranks": ranks, "correct": True, "probes": list(zip(sizes, times))}


def test_latency_and_bandwidth_are_fitted_to_the_times_of_a_ring():
    assert fit_ring(probes(12.0, 25.0)["probes"], 8) == pytest.approx((12.0, 25.0))
    line = format_cluster(probes(12.0, 25.0), "Ascend")
    assert line == "cluster: {devices_per_node: 8, local_latency: 12.0, local_bandwidth: 25}"
    assert "overlap: false" in format_cluster(probes(12.0, 25.0), "CPU")


@pytest.mark.parametrize(
    ("result", "device", "verdict"),
    [
        (probes(12.0, 25.0), "Ascend", OK),
        (probes(12.0, 1.0), "Ascend", SLOW),
        (probes(900.0, 25.0), "GPU", SLOW),
        (probes(900.0, 1.0), "CPU", OK),
        ({**probes(12.0, 25.0), "correct": False}, "Ascend", FAILED),
    ],
)
def test_all_reduce_must_be_right_and_fast(result, device, verdict):
    assert assess_communication(device, complete(result)).verdict == verdict


@pytest.mark.parametrize(
    ("times", "device", "verdict", "words"),
    [
        ((0.1, 0.12, 0.102, 0.02), "Ascend", OK, "overlaps the backward pass"),
        ((0.1, 0.12, 0.119, 0.02), "Ascend", SLOW, "does not overlap"),
        ((0.1, 0.12, 0.119, 0.02), "CPU", OK, "as expected on a CPU"),
        ((0.1, 0.103, 0.103, 0.002), "Ascend", OK, "too little to matter"),
    ],
)
def test_overlap_is_computed_from_the_times_of_steps(times, device, verdict, words):
    names = ("alone", "one", "several", "exchange")
    result = {**dict(zip(names, times)), "segments": 4, "bytes": 10**8}
    finding = assess_overlap(device, complete(result))
    assert finding.verdict == verdict
    assert words in finding.text


@pytest.mark.parametrize(("after", "verdict"), [([0.9, 0.5, 0.0], OK), ([0.0], SLOW), ([], SLOW)])
def test_all_reduces_must_come_before_the_end_of_the_backward_pass(after, verdict):
    result = {"finished": True, "all_reduces": [{"row": 1, "backward_after": x} for x in after]}
    assert assess_order(complete(result)).verdict == verdict


@pytest.mark.parametrize(
    ("device", "changed", "verdict"),
    [
        ("CPU", {}, OK),
        ("CPU", {"equal": False, "largest": 1e-7}, FAILED),
        ("Ascend", {"equal": False, "largest": 1e-4}, OK),
        ("Ascend", {"equal": False, "largest": 0.5}, FAILED),
        ("CPU", {"killed_at": 24}, FAILED),
    ],
)
def test_a_resumed_run_must_end_with_the_same_weights(device, changed, verdict):
    values = {"killed_at": 6, "steps": 24, "equal": True, "largest": 0.0, **changed}
    assert assess_resume(device, values, complete({})).verdict == verdict


def test_launches_are_counted_from_the_trace_of_an_ascend(tmp_path):
    assert measurements.count_launches(tmp_path) == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernel_details.csv").write_text("Name,Type\n" + "x,MatMul\n" * 50)
    assert measurements.count_launches(tmp_path) == 10


@pytest.mark.slow
def test_a_whole_rehearsal_on_two_workers_of_the_cpu(tmp_path):
    command = [sys.executable, ROOT / SCRIPT, "--device", "CPU", "--devices", "2"]
    done = subprocess.run(
        [*map(str, command), "--out", str(tmp_path)],
        capture_output=True, text=True, env=environment(), timeout=2400, cwd="/",
    )  # fmt: skip
    text = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, text
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    assert list(verdicts) == PARTS
    # Which form of a convolution is the best depends on the processor.
    assert {name for name, verdict in verdicts.items() if verdict != OK} <= {"convolutions"}
    assert "Rehearsal on a CPU, proves nothing about a device." in text
    assert "`cluster: {devices_per_node: 2, " in text
    assert "bit for bit" in text
    assert str(tmp_path) not in text
    assert str(Path(ROOT)) not in (tmp_path / "report.json").read_text()
