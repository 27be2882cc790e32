"""Copies and predictions on a Dask cluster and in parts equal those of one host."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.dask_cluster import start_dask_cluster
from tests.helpers import (
    find_smoke_yaml,
    read_result,
    run_json,
    run_script,
    save_random_weights,
    start_script,
    wait_until,
)
from tests.numbered_videos import write_numbered_video
from tests.test_predict import load_toy_config

REENCODE = "scripts/data/reencode_videos.py"
PREDICT = "scripts/predict.py"
VIDEOS = 48


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("distributed")
    with start_dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two lists of videos, of which some are damaged, missing, or listed twice."""
    folder = tmp_path_factory.mktemp("videos")
    write_numbered_video(folder / "0.mp4", frames=60, width=128, height=128, rate=25)
    for number in range(1, VIDEOS):
        os.link(folder / "0.mp4", folder / f"{number}.mp4")
    for number in (7, 30):
        os.unlink(folder / f"{number}.mp4")
    (folder / "7.mp4").write_bytes((folder / "0.mp4").read_bytes()[:1000])
    lines = [f"{number}.mp4 {number % 8}\n" for number in range(VIDEOS)]
    (folder / "train.txt").write_text("".join(lines) + "3.mp4 1\nno label\n")
    (folder / "test.txt").write_text("".join(lines[:9]))
    return folder


def build_arguments(root: Path, out: Path) -> list:
    return [f"--config_path={find_smoke_yaml('tsm')}", f"--data.root={root}", f"--out={out}"]


def read_files(folder: Path) -> dict[str, bytes]:
    """All files except locks and unfinished ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("[!.]*"))
        if path.is_file() and ".tmp/" not in str(path)
    }


def drop(result: dict) -> dict:
    """The result of a command without what differs between two calls."""
    return {key: result[key] for key in result if key not in ("seconds", "lists", "out")}


@pytest.fixture(scope="module")
def on_one_host(root, tmp_path_factory) -> tuple[dict, dict]:
    """The result and the files of the command."""
    out = tmp_path_factory.mktemp("host")
    return drop(run_json(REENCODE, *build_arguments(root, out))), read_files(out)


def run_and_kill_worker(cluster, file: Path, script: str, *arguments):
    """Runs a script on the cluster; kills a Dask worker when `file`, a pattern, has content."""
    process = start_script(script, *arguments, f"--executor={cluster.executor}")
    files = file.parent
    wait_until(process, lambda: any(p.stat().st_size > 1 for p in files.glob(file.name)))
    cluster.kill_worker()
    assert process.poll() is None, "it ended before a worker was killed"
    output, errors = process.communicate(timeout=600)
    return subprocess.CompletedProcess(script, process.returncode, output, errors)


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_files_of_one_host(
    cluster, root, on_one_host, tmp_path
):
    """tests/test_clusters.py has a scan on a cluster."""
    arguments = build_arguments(root, tmp_path)
    result = read_result(run_and_kill_worker(cluster, tmp_path / "*.mp4", REENCODE, *arguments))
    assert (result["videos"], result["bad"]) == (VIDEOS - 2, 2)
    assert (drop(result), read_files(tmp_path)) == on_one_host


@pytest.mark.slow
def test_parts_that_encode_at_the_same_time_equal_one_host(root, on_one_host, tmp_path):
    """One of them is killed: the command without --part writes its videos."""
    arguments = build_arguments(root, tmp_path)
    processes = [start_script(REENCODE, *arguments, f"--part={part}/3") for part in (1, 2, 3)]
    wait_until(processes[1], (tmp_path / "1.mp4").exists)  # of part 2
    processes[1].send_signal(signal.SIGKILL)
    for process, part in zip(processes, ("1/3", "2/3", "3/3")):
        output, errors = process.communicate(timeout=600)
        if part != "2/3":
            assert process.returncode == 0, errors
            result = json.loads(output.splitlines()[-1])
            assert (result["part"], result["videos"] + result["bad"]) == (part, 16)
    assert not (tmp_path / "train.txt").exists()
    result = drop(run_json(REENCODE, *arguments))
    assert (result, read_files(tmp_path)) == on_one_host


@pytest.fixture(scope="module")
def predict_arguments(tiny_args, tmp_path_factory) -> list:
    """A command that predicts videos, of which one is broken, with random weights."""
    folder = tmp_path_factory.mktemp("predict")
    save_random_weights(load_toy_config(tiny_args), folder / "net.ckpt", "tsm")
    write_numbered_video(folder / "0.mp4", frames=60, width=64, height=64, rate=25)
    for number in range(1, VIDEOS):
        os.link(folder / "0.mp4", folder / f"{number}.mp4")
    os.unlink(folder / "5.mp4")
    (folder / "5.mp4").write_bytes(b"no video")
    videos = [str(folder / f"{number}.mp4") for number in range(VIDEOS)]
    return [*tiny_args, "--checkpoint_path", folder / "net.ckpt", *videos]


def read_prediction(done, folder: Path) -> tuple[dict, list[str], dict[str, bytes]]:
    """The result, the other lines of stdout and the files of a prediction with a broken video."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("error: ") == 1
    *table, last = done.stdout.splitlines()
    return drop(json.loads(last)), table, read_files(folder)


@pytest.mark.slow
def test_predictions_on_a_cluster_equal_one_host(cluster, predict_arguments, tmp_path):
    """In the same folder, because the result names its files."""
    out = tmp_path / "out"
    arguments = [*predict_arguments, f"--out={out}"]
    expected = read_prediction(run_script(PREDICT, *arguments), out)
    assert len(expected[0]["predictions"]) == VIDEOS
    assert len(expected[2]) == VIDEOS - 1 + 2  # pictures, and predictions.csv and .jsonl
    shutil.rmtree(out)
    done = run_and_kill_worker(cluster, out / "*.png", PREDICT, *arguments)
    assert read_prediction(done, out) == expected
