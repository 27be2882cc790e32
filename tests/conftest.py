"""A small drawn data set and a tiny network for the tests that run whole commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from utils.config import ROOT
from utils.drawing import draw_dataset

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


@pytest.fixture(scope="session")
def drawn(tmp_path_factory) -> Path:
    """A root with train.txt (24 videos), test.txt (8) and odd.txt (7)."""
    root = tmp_path_factory.mktemp("drawn")
    draw_dataset(root, train_per_class=3, test_per_class=1, seed=1)
    lines = (root / "test.txt").read_text().splitlines()
    (root / "odd.txt").write_text("\n".join(lines[:7]) + "\n")
    return root


@pytest.fixture(scope="session")
def tiny(drawn) -> list:
    """The arguments that every tiny run shares."""
    config = str(ROOT / "tsm" / "configs" / "tsm_smoke.yaml")
    return ["--config_path", config, f"--data.root={drawn}", *TINY]


@pytest.fixture(scope="session")
def trained(tiny, tmp_path_factory) -> Path:
    """The last checkpoint of an undisturbed tiny run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    return Path(run("tsm/train.py", *tiny, f"--run.out={out}")["checkpoint"])


def environment() -> dict:
    """This interpreter first on PATH, as msrun's workers need it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "GLOG_v": "3"}


def call(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs a script of the checkout from another folder; never raises."""
    command = ["bash"] if script.endswith(".sh") else [sys.executable]
    return subprocess.run(
        [*command, str(ROOT / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**environment(), **options.pop("environment", {})},
        timeout=600,
        cwd=options.pop("cwd", "/"),
        **options,
    )


def run(script: str, *arguments: str) -> dict:
    """Runs a script that must succeed; the JSON object in its last line of stdout."""
    done = call(script, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
