"""A small synthetic data set and a tiny network for the tests that run whole commands.

What is expensive is made once for all workers of a test run.
"""

import fcntl
import os
import pickle
from pathlib import Path
from typing import Callable

import pytest

from tests.helpers import build_dump_env, read_result, run_json, run_script
from utils.config import ROOT
from utils.data.synthetic.motion_videos import draw_dataset

# A network that compiles in seconds. Lists have 24 training and 9 test videos.
TINY = [
    "--run.device=CPU",
    "--model.first_width=8",
    "--data.segments=2",
    "--data.crop=32",
    "--data.resize=40",
    "--data.batch=4",
    "--train.epochs=2",
    "--train.warmup_epochs=1",
    "--run.log_every=2",
    "--run.save_every=1",
]


def make_once(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, in the first worker that needs it; the others wait."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """A root with train.txt (24 videos), test.txt (8) and odd.txt (7)."""

    def make(folder: Path) -> None:
        draw_dataset(folder, train_per_motion=3, test_per_motion=1, seed=1)
        lines = (folder / "test.txt").read_text().splitlines()
        (folder / "odd.txt").write_text("\n".join(lines[:7]) + "\n")

    return make_once(tmp_path_factory, "synthetic", make)


@pytest.fixture(scope="session")
def tiny_args(data_root) -> list:
    """The arguments that every tiny run shares."""
    config = str(ROOT / "tsm" / "configs" / "tsm_smoke.yaml")
    return ["--config_path", config, f"--data.root={data_root}", *TINY]


@pytest.fixture(scope="session")
def tiny_ckpt(tiny_args, tmp_path_factory) -> Path:
    """The last checkpoint of an undisturbed tiny run."""

    def make(folder: Path) -> None:
        run_json("tsm/train.py", *tiny_args, f"--run.out={folder / 'run'}")

    return make_once(tmp_path_factory, "trained", make) / "run" / "epoch_002.ckpt"


# Two workers with two clips each, batch norms frozen, gradients in three segments.
PAIR = ["--train.batch_norm=frozen", "--data.batch=2", "--run.all_reduce=[layer1, layer3]"]


@pytest.fixture(scope="session")
def pair_args(tiny_args) -> list:
    """The arguments of a tiny run on two devices."""
    return [*tiny_args, *PAIR]


@pytest.fixture(scope="session")
def pair_run(pair_args, tmp_path_factory) -> tuple:
    """An undisturbed run of two workers: the process, its last line, its folder.

    Beside the folder, in `graphs`, MindSpore leaves what it has compiled.
    """

    def make(folder: Path) -> None:
        saving = build_dump_env(folder / "graphs")
        arguments = ["tsm", "2", *pair_args[1:], f"--run.out={folder / 'run'}"]
        done = run_script("scripts/run_distribute_train.sh", *arguments, environment=saving)
        (folder / "process.pickle").write_bytes(pickle.dumps(done))

    folder = make_once(tmp_path_factory, "pair", make)
    done = pickle.loads((folder / "process.pickle").read_bytes())
    return done, read_result(done), folder / "run"
