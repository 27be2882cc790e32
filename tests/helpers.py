"""Running commands as users run them, and comparing what they leave."""

import contextlib
import csv
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import psutil
import pytest

from utils.config import ROOT


def build_env() -> dict:
    """This interpreter first on PATH, as msrun's workers need it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "GLOG_v": "3"}


def copy_checkout(folder: Path) -> None:
    """A copy of the checkout without what is installed, computed or downloaded into it."""

    def ignore(path: str, names: list[str]) -> set[str]:
        ignored = {name for name in names if name == "__pycache__"}
        if Path(path) == ROOT:
            ignored |= {name for name in names if name.startswith(".")} | {"out", "data", "build"}
        return ignored

    shutil.copytree(ROOT, folder, ignore=ignore)


def mark_installed(checkout: Path) -> None:
    """Lets scripts/env.sh take what is in the checkout's .venv for the installed requirements."""
    parts = [ROOT / name for name in ("requirements.txt", "constraints.txt")]
    for path in parts:
        shutil.copy(path, checkout)
    text = b"".join(path.read_bytes() for path in parts)
    stamp = subprocess.run(["cksum"], input=text, capture_output=True, check=True).stdout
    (checkout / ".venv").mkdir(exist_ok=True)
    (checkout / ".venv" / "installed-requirements").write_bytes(stamp)


def run_script(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs a script of the checkout from another folder; never raises."""
    command = ["bash"] if script.endswith(".sh") else [sys.executable]
    return subprocess.run(
        [*command, str(ROOT / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**build_env(), **options.pop("environment", {})},
        timeout=600,
        cwd=options.pop("cwd", "/"),
        **options,
    )


def run_json(script: str, *arguments: str) -> dict:
    """Runs a script that must succeed; the JSON object in its last line of stdout."""
    done = run_script(script, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read_result(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def start_script(script: str, *arguments) -> subprocess.Popen:
    """A command in the background."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=build_env(),
    )


def start_and_stop(script: str, arguments, out: Path, steps: int, number: int) -> subprocess.Popen:
    """Starts a run, sends it a signal once it has saved so many steps, and waits for its end."""
    process = start_script(script, *arguments, f"--run.out={out}")
    deadline = time.monotonic() + 300
    while read_step(out) < steps:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    time.sleep(0.05)
    process.send_signal(number)  # as `timeout` does: the process, then its group
    process.output, process.errors = process.communicate(timeout=120)
    return process


def run_with_kills(script: str, arguments, out: Path, times: int, seed: int) -> list[int]:
    """Kills a run at random moments, half of them while it starts, and lets it end at last.

    Returns the steps that were saved at each kill.
    """
    chance, began, steps = random.Random(seed), time.monotonic(), []
    start_up = 0.0  # seconds to the first step
    for attempt in range(times):
        process = start_script(script, *arguments, f"--run.out={out}")
        first = read_step(out)
        if attempt % 2 == 0:
            while read_step(out) < first + chance.randint(1, 3):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
            start_up = start_up or time.monotonic() - began
        time.sleep(chance.uniform(0, start_up if attempt % 2 else 0.3))
        assert process.poll() is None, "the run was over before it was disturbed"
        process.kill()
        process.communicate()
        steps.append(read_step(out))
    run_json(script, *arguments, f"--run.out={out}")
    return steps


def read_step(out: Path) -> int:
    try:
        return json.loads((out / "state.json").read_text())["step"]
    except (OSError, ValueError):
        return 0


def read_weights(path) -> dict:
    return {name: p.asnumpy() for name, p in ms.load_checkpoint(str(path)).items()}


def assert_same_weights(first, second) -> None:
    """Bit for bit."""
    first, second = read_weights(first), read_weights(second)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], name)


def assert_report(folder: Path, result: dict) -> list[dict]:
    """What a report says of each video makes the metrics of the last line; returns its rows."""
    with open(folder / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = list(rows[0])[5:]
    seen = [row for row in rows if row["predicted"] != "unreadable"]
    fractions = np.array([[float(row[name]) for name in names] for row in seen])
    labels = np.array([int(row["label"]) for row in seen])
    np.testing.assert_allclose(fractions.sum(1), 1, atol=1e-5)
    ranked = np.argsort(-fractions, axis=1, kind="stable")
    right = ranked[:, 0] == labels
    assert [row["correct"] for row in seen] == [str(int(each)) for each in right]
    assert [row["predicted"] for row in seen] == [str(each) for each in ranked[:, 0]]
    results = {
        "videos": len(seen),
        "top1": right.mean(),
        "top5": (ranked[:, :5] == labels[:, None]).any(1).mean(),
        "mean_class_accuracy": np.mean([right[labels == k].mean() for k in set(labels)]),
    }
    messages = json.loads((folder / "report.json").read_text())
    assert {name: messages[name] for name in results} == {name: result[name] for name in results}
    for name, value in results.items():
        assert messages[name] == pytest.approx(value, abs=1e-6), name
    own = np.maximum(fractions[np.arange(len(seen)), labels], np.finfo(np.float32).tiny)
    assert messages["nll"] == pytest.approx(-np.log(own).mean(), abs=1e-5)
    assert {path.name for path in folder.iterdir()} == REPORT
    return rows


def assert_predictions(arguments, checkpoint, rows: list[dict], root: Path, out: Path) -> None:
    """What scripts/predict.py says of two videos is what the report of an evaluation has."""
    names = list(rows[0])[5:]
    videos = [root / row["path"] for row in rows]
    rest = ["--checkpoint_path", checkpoint, f"--out={out}", f"--top={len(names)}", "--window=0"]
    result = run_json("scripts/predict.py", *arguments, *rest, *videos)
    for row, results in zip(rows, result["predictions"]):
        for entry in results["top"]:
            messages = float(row[names[entry["label"]]])
            assert entry["probability"] == pytest.approx(messages, abs=2e-6)
        assert str(results["top"][0]["label"]) == row["predicted"]


def assert_mindir_matches(
    network_name: str, arguments, checkpoint, shown, folder: Path, *options
) -> None:
    """A MINDIR evaluates as its checkpoint does, and says the same of a video or an image."""
    files = checkpoint, folder / "net.mindir"
    wanted = ["--format", "mindir", "--target", files[1], *options]
    exported = run_json(
        f"{network_name}/export.py", *arguments, "--checkpoint_path", checkpoint, *wanted
    )
    assert exported["max_abs_difference"] < 1e-4
    rest = [shown, "--window=0", "--top=100"]
    metrics, said = [], []
    for file in files:
        given = [*arguments, "--checkpoint_path", file]
        metrics.append(run_json(f"{network_name}/eval.py", *given))
        out = f"--out={folder / file.stem}"
        (record,) = run_json("scripts/predict.py", *given, out, *rest)["predictions"]
        best = record.get("top") or record["joint"]
        said.append({each["name"]: each["probability"] for each in best})
    for result in metrics:
        for each in (result, *result.get("sets", {}).values()):
            del each["seconds"]
    assert {**metrics[0], "checkpoint": str(files[1])} == metrics[1]
    assert files[1].with_suffix(".json").is_file()
    assert len(said[0]) > 3
    assert said[0] == pytest.approx(said[1], abs=1e-5)


REPORT = {"scores.csv", "confusion.csv", "classes.csv", "confused_pairs.csv", "calibration.csv"}
REPORT |= {"confusion.png", "classes.png", "calibration.png", "report.json"}


def start_launcher(*arguments, inside=(), **variables: str) -> subprocess.Popen:
    """scripts/launch.py in the background, with further environment variables.

    `inside` is a command that becomes the one it is given, such as nsenter.
    """
    command = [*inside, sys.executable, ROOT / "scripts" / "launch.py", *arguments]
    return subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**build_env(), **variables},
    )


def list_processes(launcher: subprocess.Popen) -> dict:
    """The processes of a job that have begun: rank, or "scheduler", -> process."""
    result = {}
    for process in psutil.Process(launcher.pid).children():
        with contextlib.suppress(psutil.Error):
            given = process.environ()
            if "MS_ROLE" in given:
                scheduler = given["MS_ROLE"] == "MS_SCHED"
                result["scheduler" if scheduler else int(given["MS_NODE_ID"])] = process
    return result


def pick_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def build_dump_env(folder: Path) -> dict[str, str]:
    """The environment in which MindSpore leaves compiled graphs, each rank's in `folder/rank_N`."""
    return {
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_SAVE_GRAPHS_PATH": str(folder),
        "MS_DEV_DUMP_IR_PASSES": "hwopt_common_final_graph",
    }


def count_all_reduces(folder: Path) -> dict[int, list[int]]:
    """{fusion: arrays that travel together}, of every AllReduce in the compiled graphs."""
    result: dict[int, list[int]] = {}
    call = r"= AllReduce\((.*?)\).*?fusion: I64\((\d+)\)"
    for graph in folder.glob("hwopt_common_final_graph_*.ir"):
        for inputs, fusion in re.findall(call, graph.read_text()):
            result.setdefault(int(fusion), []).append(inputs.count("%"))
    return result


def assert_segments(done, folder: Path) -> list[int]:
    """What the log says of segments is what every rank's graph has; returns their tensors."""
    messages = [int(tensors) for tensors in re.findall(r"(\d+) tensors [\d.]+ MB", done.stderr)]
    ranks = sorted(folder.glob("rank_*"))
    assert len(ranks) > 1
    for rank in ranks:
        result = count_all_reduces(rank)
        # What is summed besides: loss, top-1 and the signals in one array, and counts.
        assert set(result.pop(0)) == {1}
        assert [result[fusion] for fusion in sorted(result)] == [[tensors] for tensors in messages]
    return messages


def build_rank_table(servers: int = 2, devices: int = 1, address: str = "127.0.0.1") -> dict:
    """A rank table as Huawei's tool writes it; all values are strings."""
    return {
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": address,
                "device": [
                    {
                        "device_id": str(device),
                        "device_ip": f"192.168.{server}.{device}",
                        "rank_id": str(server * devices + device),
                    }
                    for device in range(devices)
                ],
                "host_nic_ip": "reserve",
            }
            for server in range(servers)
        ],
        "status": "completed",
    }


def write_json(path: Path, content) -> str:
    path.write_text(json.dumps(content))
    return str(path)
