"""scripts/verify_device.sh: its arguments, its verdicts, its report, and a whole rehearsal."""

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
from utils.verify import measuring
from utils.verify.communication import (
    assess_communication,
    assess_order,
    assess_overlap,
    fit_ring,
    format_cluster,
)
from utils.verify.convolutions import assess_convolutions
from utils.verify.environment import assess_environment
from utils.verify.machine import choose_device, find_ascend_names
from utils.verify.parity import LIMITS, assess_parity
from utils.verify.processes import Ended, Runner
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
CRASH = Ended(1, (), "ended with status 1: error: no such device", 1.0)


def ended(*lines: dict) -> Ended:
    return Ended(0, lines, "", 1.0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "parity,sped"], "unknown part sped; nearest: speed"),
        (["--devices", "none"], "--devices: must be a whole number of at least 1, not none"),
        (["--timeout", "0"], "--timeout: must be a whole number of at least 1, not 0"),
        (["--chip", "ascend911"], "--chip: ascend911 is not known"),
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
    assert find_ascend_names(table) == ["910B3", "910B3"]


def test_an_environment_without_the_device_fails():
    result = ended({"found": {"devices": "CPU"}, "missing": []})
    assert assess_environment(result, "CPU", [])[0].verdict == OK
    assert assess_environment(result, "Ascend", [])[0].verdict == FAILED
    assert assess_environment(result, "CPU", ["PyAV not installed"])[0].verdict == SLOW
    missing = Ended(1, ({"found": {"devices": "CPU"}, "missing": ["OpenCV"]},), "", 1.0)
    assert assess_environment(missing, "CPU", ["x"])[0].text == "missing: OpenCV"
    assert assess_environment(CRASH, "CPU", [])[0].verdict == FAILED


def parity_line(level: str, **changed: float) -> dict:
    return {"level": level, **{name: limit / 2 for name, limit in LIMITS[level].items()}, **changed}


def test_parity_fails_beyond_a_limit_and_without_a_level():
    both = ended(parity_line("O0"), parity_line("O2"))
    assert [each.verdict for each in assess_parity("tsm", "c.json", "CPU", both)] == [OK, OK]
    beyond = ended(parity_line("O0", loss=0.1), parity_line("O2", scores=float("nan")))
    findings = assess_parity("tsm", "c.json", "Ascend", beyond)
    assert [each.verdict for each in findings] == [FAILED, FAILED]
    assert "--case c.json --run.device=Ascend" in findings[0].advice
    half = Ended(1, (parity_line("O0"),), "killed by SIGSEGV", 1.0)
    findings = assess_parity("tsm", "c.json", "Ascend", half)
    assert [each.verdict for each in findings] == [OK, FAILED]
    assert "killed by SIGSEGV" in findings[1].text


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
    assert assess_training("tsm", ended({}), log).verdict == verdict


def test_training_that_crashes_fails():
    finding = assess_training("tsm", CRASH, rows(2.0, 1.0))
    assert finding == Finding(FAILED, f"tsm: {CRASH.reason}", "the log is logs/training_tsm.log")


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
    result = ended({**STEP, "shares": FRACTIONS, "launches": 2000, **changed})
    assert assess_speed("tsm", device, result).verdict == verdict


def test_a_step_without_a_trace_is_slow_and_one_without_a_time_fails():
    assert assess_speed("tsm", "Ascend", Ended(-11, (STEP,), "killed", 1.0)).verdict == SLOW
    assert assess_speed("tsm", "Ascend", CRASH).verdict == FAILED


def test_a_dry_run_must_compile_without_python_and_ai_cpu():
    result = {"finished": True, "chip": "ascend910b", "launches": 900, "peak_gb": 2.5}
    result.update(python=0, ai_cpu=[])
    assert assess_dry_run("tsm", ended(result)).verdict == OK
    assert assess_dry_run("tsm", ended({**result, "python": 2})).verdict == SLOW
    assert assess_dry_run("tsm", ended({**result, "ai_cpu": ["MaxPool3D"]})).verdict == SLOW
    failed = Ended(1, ({"finished": False, "reason": "ValueError: group"},), "", 1.0)
    assert assess_dry_run("x3d", failed).text == "x3d: ValueError: group"
    assert assess_dry_run("x3d", CRASH).verdict == FAILED


SHAPES = [["x3d s2", (1, 2, 3, 4, 4), (3, 3, 3), 1, 3], ["mvit_multi q", (1,), (3,), 1, 2]]


def form(x3d: float, mvit: float) -> Ended:
    return ended({"shape": "x3d s2", "seconds": x3d}, {"shape": "mvit_multi q", "seconds": mvit})


def test_the_best_depthwise_form_is_named():
    forms = {"taps": form(0.3, 0.1), "grouped": CRASH, "frames": form(0.1, 0.2)}
    missing, x3d, mvit = assess_convolutions("Ascend", SHAPES, forms)
    assert (missing.verdict, missing.text[:22]) == (OK, "grouped: not available")
    assert x3d.verdict == SLOW
    assert x3d.text == "x3d: taps 900.0 ms, frames 300.0 ms; best: frames"
    assert x3d.advice == "train x3d with --model.depthwise_impl=frames, not taps"
    assert (mvit.verdict, mvit.advice) == (OK, "")


def test_a_default_form_that_fails_on_the_device_fails():
    forms = {"taps": CRASH, "grouped": CRASH, "frames": form(0.1, 0.1)}
    verdicts = [each.verdict for each in assess_convolutions("Ascend", SHAPES, forms)]
    assert verdicts == [FAILED, OK, OK, OK]


def probes(latency: float, bandwidth: float, ranks: int = 8) -> dict:
    """What a ring of microseconds and GB/s would take."""
    sizes = [4 * 2**k for k in (10, 16, 20, 24)]
    times = [2 * (ranks - 1) * (latency * 1e-6 + n / ranks / bandwidth / 1e9) for n in sizes]
    return {"ranks": ranks, "correct": True, "probes": list(zip(sizes, times))}


def test_latency_and_bandwidth_are_found_from_the_times_of_a_ring():
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
    assert assess_communication(device, ended(result)).verdict == verdict


def test_all_reduce_that_crashes_fails():
    assert assess_communication("Ascend", CRASH).verdict == FAILED


@pytest.mark.parametrize(
    ("times", "device", "verdict", "words"),
    [
        ((0.1, 0.12, 0.102, 0.02), "Ascend", OK, "overlaps the backward pass"),
        ((0.1, 0.12, 0.119, 0.02), "Ascend", SLOW, "does not overlap"),
        ((0.1, 0.12, 0.119, 0.02), "CPU", OK, "as expected on a CPU"),
        ((0.1, 0.103, 0.103, 0.002), "Ascend", OK, "too little to matter"),
    ],
)
def test_overlap_is_found_from_the_times_of_steps(times, device, verdict, words):
    names = ("alone", "one", "several", "exchange")
    result = {**dict(zip(names, times)), "segments": 4, "bytes": 10**8}
    finding = assess_overlap(device, ended(result))
    assert finding.verdict == verdict
    assert words in finding.text


def test_overlap_without_a_result_fails():
    assert assess_overlap("Ascend", CRASH).verdict == FAILED


@pytest.mark.parametrize(("after", "verdict"), [([0.9, 0.5, 0.0], OK), ([0.0], SLOW), ([], SLOW)])
def test_all_reduces_must_come_before_the_end_of_the_backward_pass(after, verdict):
    result = {"finished": True, "all_reduces": [{"row": 1, "backward_after": x} for x in after]}
    assert assess_order(ended(result)).verdict == verdict


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
    assert assess_resume(device, values, ended({})).verdict == verdict
    assert assess_resume(device, values, CRASH).verdict == FAILED


def test_launches_are_counted_from_the_trace_of_an_ascend(tmp_path):
    assert measuring.count_launches(tmp_path) == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernel_details.csv").write_text("Name,Type\n" + "x,MatMul\n" * 50)
    assert measuring.count_launches(tmp_path) == 10


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
