"""Fixtures of the command tests: a small synthetic data set, a tiny network, and trainings of it.

Expensive fixtures are built once for all workers of a test run.
"""

import fcntl
import os
import pickle
import runpy
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Callable, Optional

import numpy as np
import pytest
from PIL import Image

from scripts.data.synthetic.motion_videos import draw_dataset
from scripts.data.synthetic.pattern_images import PATTERNS, draw_image
from scripts.dry_run import stub_libraries
from tests.helpers import build_dump_env, find_smoke_yaml, read_result, run_script
from utils import cli, log, signals
from utils.files import ROOT

# A network that compiles in seconds. Lists have 24 training and 9 test videos.
TINY = [
    "--run.device=CPU", "--run.engine=mindspore", "--run.log_every=2", "--run.save_every=1",
    "--model.first_width=8",
    "--data.segments=2", "--data.crop=32", "--data.resize=40", "--data.batch=4",
    "--train.epochs=2", "--train.warmup_epochs=1",
]  # fmt: skip


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skips a test that needs stub libraries if this machine cannot build them."""
    reason = stub_libraries.explain_missing()
    if reason:
        pytest.skip(reason)


def build_once(tmp_path_factory, name: str, build: Callable[[Path], None]) -> Path:
    """Returns a folder that `build` fills in the first worker that needs it; the others wait."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            build(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """A data root with train.txt (24 videos), test.txt (8) and odd.txt (7)."""

    def build(folder: Path) -> None:
        draw_dataset(folder, train_per_motion=3, test_per_motion=1, seed=1)
        lines = (folder / "test.txt").read_text().splitlines()
        (folder / "odd.txt").write_text("\n".join(lines[:7]) + "\n")

    return build_once(tmp_path_factory, "synthetic", build)


@pytest.fixture(scope="session")
def videos(data_root) -> list[Path]:
    """The test videos of the data root."""
    return sorted((data_root / "videos" / "test").glob("*.mp4"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """A data root with JPEG files in four class folders: train (24) and val (7)."""

    def build(root: Path) -> None:
        rng = np.random.RandomState(0)
        for split, count in (("train", 24), ("val", 7)):
            for i in range(count):
                folder = root / split / PATTERNS[i % 4]
                folder.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(draw_image(PATTERNS[i % 4], rng))
                image.resize((80, 60 + i)).save(folder / f"{i:02d}.jpg", quality=90)

    return build_once(tmp_path_factory, "pictures", build)


@pytest.fixture
def run_here(monkeypatch, capsys):
    """A function like run_script that runs a Python script, or `main`, in this process.

    It saves the seconds in which a new process imports MindSpore.
    """

    def exit_now(status: int, line: str) -> None:
        print(line, file=sys.stderr)
        sys.exit(status)

    def run(script: str, *arguments, main: Optional[Callable] = None) -> CompletedProcess:
        words = [str(ROOT / script), *map(str, arguments)]
        status = 0
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()  # drops what the test logged before
        try:
            main() if main else runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
        return CompletedProcess(words, status, *capsys.readouterr())

    monkeypatch.setattr(cli, "exit_now", exit_now)
    monkeypatch.setattr(signals, "watch", lambda: None)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    handlers = list(log.log.handlers)
    propagate = log.log.propagate
    yield run
    log.log.handlers[:] = handlers
    log.log.propagate = propagate


@pytest.fixture(scope="session")
def tiny_args(data_root) -> list:
    """The arguments of every command for the tiny network."""
    return ["--config_path", str(find_smoke_yaml("tsm")), f"--data.root={data_root}", *TINY]


def build_process(tmp_path_factory, name: str, run: Callable) -> tuple[CompletedProcess, Path]:
    """What `run(folder)` returns in the first worker that needs it, and its folder."""

    def build(folder: Path) -> None:
        (folder / "process.pickle").write_bytes(pickle.dumps(run(folder)))

    folder = build_once(tmp_path_factory, name, build)
    return pickle.loads((folder / "process.pickle").read_bytes()), folder


@pytest.fixture(scope="session")
def tiny_run(tiny_args, tmp_path_factory) -> tuple:
    """An uninterrupted training of the tiny network, with MindSpore's warnings; its folder."""

    def run(folder: Path) -> CompletedProcess:
        out = f"--run.out={folder / 'run'}"
        return run_script("tsm/train.py", *tiny_args, out, environment={"GLOG_v": "2"})

    completed, folder = build_process(tmp_path_factory, "trained", run)
    return completed, folder / "run"


@pytest.fixture(scope="session")
def tiny_ckpt(tiny_run) -> Path:
    """The last checkpoint of that training."""
    return tiny_run[1] / "epoch_002.ckpt"


@pytest.fixture(scope="session")
def pair_args(tiny_args) -> list:
    """Two ranks with two clips each, batch norms frozen, gradients in three segments."""
    more = ["--train.batch_norm=frozen", "--data.batch=2", "--run.all_reduce=[layer1, layer3]"]
    return [*tiny_args, *more]


@pytest.fixture(scope="session")
def pair_run(pair_args, tmp_path_factory) -> tuple:
    """An uninterrupted training on two ranks: the completed process, its result, its folder.

    MindSpore writes the compiled graphs to `graphs` beside the folder.
    """

    def run(folder: Path) -> CompletedProcess:
        variables = build_dump_env(folder / "graphs")
        arguments = ["tsm", "2", *pair_args[1:], f"--run.out={folder / 'run'}"]
        return run_script("scripts/run_distribute_train.sh", *arguments, environment=variables)

    completed, folder = build_process(tmp_path_factory, "pair", run)
    return completed, read_result(completed), folder / "run"
