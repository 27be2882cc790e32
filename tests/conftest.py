"""A small drawn data set and a tiny network for the tests that run whole commands."""

from pathlib import Path

import pytest

from tests.helpers import call, last_json, run, saving_graphs
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


# Two workers with two clips each, batch norms frozen, gradients in three segments.
PAIR = ["--train.batch_norm=frozen", "--data.batch=2", "--run.all_reduce=[layer1, layer3]"]


@pytest.fixture(scope="session")
def two(tiny) -> list:
    """The arguments of a tiny run on two devices."""
    return [*tiny, *PAIR]


@pytest.fixture(scope="session")
def pair(two, tmp_path_factory) -> tuple:
    """An undisturbed run of two workers: the process, its last line, its folder.

    Beside the folder, in `graphs`, MindSpore leaves what it has compiled.
    """
    out = tmp_path_factory.mktemp("pair") / "run"
    saving = saving_graphs(out.parent / "graphs")
    arguments = ["tsm", "2", *two[1:], f"--run.out={out}"]
    done = call("scripts/run_distribute_train.sh", *arguments, environment=saving)
    return done, last_json(done), out
