"""Functions that run commands as users run them, and that compare the files they write."""

import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Sequence

import mindspore as ms
import numpy as np
import psutil
import pytest

from tests.golden_cases import build_state_dict, load_weights
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import Scorer
from utils.files import ROOT
from utils.inference.model import Model
from utils.load_config import load_config
from utils.networks import find_network
from utils.video.decoders import open_video
from utils.video.reader import FrameReader
from utils.weights import checkpoint
from utils.weights.checkpoint_file import pop_texts
from utils.weights.description import describe


class NoNetwork(Scorer):
    """The heads of a test compute probabilities themselves."""

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        raise AssertionError("no head asks for scores")

    features = __call__


class FileModel(Model):
    """Heads of a test with a scorer, for video files."""

    def __init__(self, scorer: Scorer, heads: list[LabelSpace]):
        super().__init__(None, cfg=load_smoke_config("tsm"), scorer=scorer, heads=heads)

    def open(self, source: str, fps: float = 0.0) -> FrameReader:
        return open_video(source)


def build_env() -> dict:
    """Returns variables with this interpreter first on PATH, as msrun's workers need it.

    Without MindSpore's log level of the tests: a command chooses it as for a user.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "GLOG_v"}
    return {**kept, "PATH": path}


def find_smoke_yaml(network: str) -> Path:
    return ROOT / network / "configs" / f"{network}_smoke.yaml"


def load_smoke_config(network: str, *settings: str):
    return load_config(find_network(network).config, find_smoke_yaml(network), [*settings])


def copy_checkout(folder: Path) -> None:
    """Copies the checkout without installed packages, results and downloads."""

    def ignore(path: str, names: list[str]) -> set[str]:
        if Path(path) != ROOT:
            return {"__pycache__"}
        hidden = {name for name in names if name.startswith(".")}
        return hidden | {"__pycache__", "out", "data", "build", "weights"}

    shutil.copytree(ROOT, folder, ignore=ignore)


REQUIREMENTS = [ROOT / name for name in ("requirements.txt", "constraints.txt")]


def copy_scripts(checkout: Path, python: str) -> None:
    """Writes a checkout with only the scripts and a .venv, whose Python is a shell script."""
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    for path in REQUIREMENTS:
        shutil.copy(path, checkout)
    file = checkout / ".venv" / "bin" / "python"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{python}\n")
    file.chmod(0o755)


def mark_installed(checkout: Path) -> None:
    """Marks the checkout's .venv, so that scripts/env.sh installs nothing."""
    for path in REQUIREMENTS:
        shutil.copy(path, checkout)
    text = b"".join(path.read_bytes() for path in REQUIREMENTS)
    stamp = subprocess.run(["cksum"], input=text, capture_output=True, check=True).stdout
    (checkout / ".venv").mkdir(exist_ok=True)
    (checkout / ".venv" / "installed-requirements").write_bytes(stamp)


def link_environment(checkout: Path) -> None:
    """Gives the checkout a .venv with the packages of this one, in which nothing is installed."""
    (checkout / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("installed-"):
            (checkout / ".venv" / part.name).symlink_to(part)
    mark_installed(checkout)


STUB_DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *pointer) { *pointer = COUNT; return 0; }
"""
# Those that MindSpore's GPU back end asks for
DRIVER_SYMBOLS = ("cuGetErrorName", "cuLaunchKernel", "cuModuleGetFunction", "cuModuleLoadDataEx")
DRIVER_SYMBOLS += ("cuModuleUnload", "cuStreamSynchronize", "cuDeviceGetAttribute")


def build_stub_driver(folder: Path, gpus: int = 2) -> None:
    """Writes a libcuda.so.1 without a GPU, which only says how many there are."""
    folder.mkdir(parents=True)
    stubs = "".join(f"int {name}(void) {{ return 0; }}\n" for name in DRIVER_SYMBOLS)
    (folder / "driver.c").write_text(STUB_DRIVER + stubs)
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-DCOUNT={gpus}", "-o"]
    subprocess.run([*command, folder / "libcuda.so.1", folder / "driver.c"], check=True)


def run_command(command: Sequence, **options) -> subprocess.CompletedProcess:
    """Runs a command to its end, and accepts any exit status; what it writes is text."""
    options = {"capture_output": True, "text": True, "timeout": 600, **options}
    return subprocess.run([*map(str, command)], **options)


def run_script(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs a script of the checkout from another folder, and accepts any exit status."""
    command = ["bash"] if script.endswith(".sh") else [sys.executable]
    command += [str(ROOT / script), *map(str, arguments)]
    variables = {**build_env(), **options.pop("environment", {})}
    return run_command(command, **{"cwd": "/", "env": variables, **options})


def run_json(script: str, *arguments: str) -> dict:
    """Runs a script that must succeed, and returns its result."""
    return read_result(run_script(script, *arguments))


def read_result(completed) -> dict:
    """Returns the JSON object in the last line of stdout; the process must have succeeded."""
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout.splitlines()[-1])


def assert_one_line_error(completed, *words: str) -> None:
    """Asserts that a command failed with one line on stderr that contains `words`."""
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1), completed.stderr
    for word in words:
        assert word in completed.stderr


def start_script(script: str, *arguments, inside=(), **variables: str) -> subprocess.Popen:
    """Starts a script in the background, with further environment variables.

    `inside` is a command that runs another command, such as nsenter.
    """
    command = [*map(str, (*inside, sys.executable, ROOT / script, *arguments))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**build_env(), **variables}, **pipes)


def wait_until(process: subprocess.Popen, is_done: Callable[[], bool]) -> None:
    """Waits for what a process does; it must not end before."""
    deadline = time.monotonic() + 600
    while not is_done():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_step(process: subprocess.Popen, out: Path, step: int) -> None:
    """Waits until a run has saved this step."""
    wait_until(process, lambda: read_step(out) >= step)


def watches_signals(process: int) -> bool:
    """Whether a process blocks SIGTERM, or has a handler for it; Python itself does neither."""
    masks = re.findall(r"Sig(?:Blk|Cgt):\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


def start_launcher(*arguments, **options) -> subprocess.Popen:
    return start_script("scripts/launch.py", *arguments, **options)


def start_and_stop(script: str, arguments, out: Path, steps: int, number: int) -> subprocess.Popen:
    """Starts a run, sends it a signal after `steps` saved steps, and waits for its end."""
    process = start_script(script, *arguments, f"--run.out={out}")
    wait_for_step(process, out, steps)
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)  # `timeout` also sends two: to the process, then to its group
    process.output, process.errors = process.communicate(timeout=600)
    return process


def run_with_kills(script: str, arguments, out: Path, times: int, seed: int) -> list[int]:
    """Kills a run `times` times at random moments, half of them during start, then completes it.

    Returns the number of saved steps at each kill.
    """
    generator = random.Random(seed)
    start_time = time.monotonic()
    steps = []
    start_up = 0.0  # seconds to the first step
    for attempt in range(times):
        process = start_script(script, *arguments, f"--run.out={out}")
        step = read_step(out)
        if attempt % 2 == 0:
            while read_step(out) < step + generator.randint(1, 3):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
            start_up = start_up or time.monotonic() - start_time
        wait = generator.uniform(0, start_up if attempt % 2 else 0.3)
        deadline = time.monotonic() + wait
        step = read_step(out)
        while time.monotonic() < deadline and read_step(out) == step:
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()
        process.communicate()
        steps.append(read_step(out))
    run_json(script, *arguments, f"--run.out={out}")
    return steps


def assert_kills_change_no_weight(script: str, arguments, folder: Path) -> None:
    """Asserts that a run that is killed at random moments ends with the files of another run."""
    arguments = [*arguments, "--run.save_steps=1", "--train.epochs=6"]
    whole = folder / "whole" / "run"  # the name of a run is in its checkpoints
    killed = folder / "killed" / "run"
    run_json(script, *arguments, f"--run.out={whole}")
    seed = random.SystemRandom().randrange(10**6)  # MindSpore seeds `random` at import
    print(f"seed {seed}")
    steps = run_with_kills(script, arguments=arguments, out=killed, times=4, seed=seed)
    print(f"steps saved at each kill: {steps}")
    assert_same_weights(whole / "epoch_006.ckpt", killed / "epoch_006.ckpt")
    assert (whole / "epoch_006.ckpt").read_bytes() == (killed / "epoch_006.ckpt").read_bytes()
    names = ({path.name for path in folder.glob("[!.]*")} for folder in (whole, killed))
    assert next(names) >= next(names)


def read_step(out: Path) -> int:
    """Returns the saved step of a run, or 0 if nothing is saved."""
    try:
        return json.loads((out / "state.json").read_text())["step"]
    except (OSError, ValueError):
        return 0


def read_weights(path) -> dict:
    arrays = {name: p.asnumpy() for name, p in ms.load_checkpoint(str(path)).items()}
    pop_texts(arrays)
    return arrays


def assert_same_weights(expected, actual) -> None:
    """Asserts that two checkpoint files hold the same bits."""
    expected = read_weights(expected)
    actual = read_weights(actual)
    assert expected.keys() == actual.keys()
    for name in expected:
        np.testing.assert_array_equal(expected[name], actual[name], name)


def assert_close_weights(expected, actual) -> None:
    """Asserts that two checkpoint files differ by rounding."""
    expected = read_weights(expected)
    actual = read_weights(actual)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def save_random_weights(cfg, path: Path, network: str) -> Path:
    """Saves a checkpoint of the network of `cfg`, which it describes; scores differ by class."""
    net = find_network(network).build_model(**cfg.model_arguments())
    load_weights(net, build_state_dict({}, net), find_network(network))
    checkpoint.save(path, checkpoint.weights_of(net), description=describe(network, cfg))
    return path


def read_rows(path: Path) -> list[dict]:
    """The rows of a table of a report."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def assert_report(folder: Path, result: dict) -> list[dict]:
    """Asserts that the rows of a report yield the metrics of the result; returns the rows."""
    rows = read_rows(folder / "scores.csv")
    names = list(rows[0])[5:]
    readable = [row for row in rows if row["predicted"] != "unreadable"]
    fractions = np.array([[float(row[name]) for name in names] for row in readable])
    labels = np.array([int(row["label"]) for row in readable])
    np.testing.assert_allclose(fractions.sum(1), 1, atol=1e-5)
    ranked = np.argsort(-fractions, axis=1, kind="stable")
    correct = ranked[:, 0] == labels
    assert [row["correct"] for row in readable] == [str(int(value)) for value in correct]
    assert [row["predicted"] for row in readable] == [str(label) for label in ranked[:, 0]]
    metrics = {
        "videos": len(readable),
        "top1": correct.mean(),
        "top5": (ranked[:, :5] == labels[:, None]).any(1).mean(),
        "mean_class_accuracy": np.mean([correct[labels == k].mean() for k in set(labels)]),
    }
    report = json.loads((folder / "report.json").read_text())
    assert {name: report[name] for name in metrics} == {name: result[name] for name in metrics}
    if len(names) < 6:
        assert metrics.pop("top5")
        assert report["top5"] is None
    for name, value in metrics.items():
        assert report[name] == pytest.approx(value, abs=1e-6), name
    wrong = [row["path"] for row in read_rows(folder / "wrong.csv")]
    assert sorted(wrong) == sorted(row["path"] for row in readable if row["correct"] == "0")
    assert {path.name for path in folder.iterdir()} == REPORT
    return rows


def assert_predictions(run, arguments, weights, rows: list[dict], root: Path, out: Path) -> None:
    """Asserts that scripts/predict.py gives the scores in the rows of an evaluation report."""
    names = list(rows[0])[5:]
    videos = [root / row["path"] for row in rows]
    rest = ["--checkpoint_path", weights, f"--top={len(names)}", "--window=0"]
    out = f"--out={out / 'predictions'}"
    result = read_result(run("scripts/predict.py", *arguments, *rest, out, *videos))
    for row, prediction in zip(rows, result["predictions"]):
        for entry in prediction["top"]:
            score = float(row[names[entry["label"]]])
            assert entry["probability"] == pytest.approx(score, abs=2e-6)
        assert str(prediction["top"][0]["label"]) == row["predicted"]


def assert_mindir_matches(network: str, arguments, weights, source, folder: Path, *options) -> None:
    """Asserts that a MINDIR and its checkpoint give the same metrics and the same scores."""
    files = weights, folder / "net.mindir"
    target = ["--checkpoint_path", weights, "--format", "mindir", "--target", files[1], *options]
    exported = run_json(f"{network}/export.py", *arguments, *target)
    assert exported["max_abs_difference"] < 1e-4
    rest = [source, "--window=0", "--top=100"]
    metrics = []
    scores = []
    for file in files:
        command = [*arguments, "--checkpoint_path", file]
        metrics.append(run_json(f"{network}/eval.py", *command))
        out = f"--out={folder / file.stem}"
        (record,) = run_json("scripts/predict.py", *command, out, *rest)["predictions"]
        best = record.get("top") or record["joint"]
        scores.append({entry["name"]: entry["probability"] for entry in best})
    for result in metrics:
        for entry in (result, *result.get("sets", {}).values()):
            del entry["seconds"]
    assert {**metrics[0], "checkpoint": str(files[1])} == metrics[1]
    assert files[1].with_suffix(".json").is_file()
    assert len(scores[0]) > 3
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


REPORT = {"scores.csv", "confusion.csv", "classes.csv"}
REPORT |= {"report.json", "wrong.csv", "index.html"}


def list_processes(launcher: subprocess.Popen) -> dict:
    """Returns the running processes of a job: rank, or "scheduler", -> process."""
    result = {}
    for process in psutil.Process(launcher.pid).children():
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
            if "MS_ROLE" in variables:
                scheduler = variables["MS_ROLE"] == "MS_SCHED"
                result["scheduler" if scheduler else int(variables["MS_NODE_ID"])] = process
    return result


def pick_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def build_dump_env(folder: Path) -> dict[str, str]:
    """Returns variables with which MindSpore writes compiled graphs to `folder/rank_N`."""
    return {
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_SAVE_GRAPHS_PATH": str(folder),
        "MS_DEV_DUMP_IR_PASSES": "hwopt_common_final_graph",
    }


def read_all_reduces(folder: Path) -> dict[int, list[int]]:
    """{number of a segment: [elements]} of the AllReduces of compiled graphs; 0: no gradients."""
    result: dict[int, list[int]] = {}
    pattern = r"= AllReduce\(.*\bindex: I64\((\d+)\).*\n.*-> \(<Tensor\[\w+\], \((\d*)\)"
    for graph in folder.glob("hwopt_common_final_graph_*.ir"):
        for index, elements in re.findall(pattern, graph.read_text()):
            result.setdefault(int(index), []).append(int(elements or 1))
    return result


def assert_segments(completed, folder: Path) -> list[int]:
    """Asserts that the graphs of all ranks have the logged segments; returns tensor counts."""
    segments = re.findall(r"(\d+) tensors ([\d.]+) MB", completed.stderr)
    ranks = sorted(folder.glob("rank_*"))
    assert len(ranks) > 1
    for rank in ranks:
        result = read_all_reduces(rank)
        result.pop(0)  # loss, top-1 and the signals in one array, and counts
        assert sorted(result) == list(range(1, len(segments) + 1))
        for index, (_, size) in enumerate(segments, 1):
            assert [f"{4 * elements / 1e6:.2f}" for elements in result[index]] == [size]
    return [int(tensors) for tensors, _ in segments]


def build_rank_table(servers: int = 2, devices: int = 1, address: str = "127.0.0.1") -> dict:
    """Returns a rank table in the form of Huawei's tool: all values are strings."""
    table = {"version": "1.0", "server_count": str(servers), "server_list": []}
    for server in range(servers):
        entries = [
            {
                "device_id": str(device),
                "device_ip": f"192.168.{server}.{device}",
                "rank_id": str(server * devices + device),
            }
            for device in range(devices)
        ]
        entry = {"server_id": address, "device": entries, "host_nic_ip": "reserve"}
        table["server_list"].append(entry)
    return {**table, "status": "completed"}


def write_json(path: Path, content) -> str:
    path.write_text(json.dumps(content))
    return str(path)
