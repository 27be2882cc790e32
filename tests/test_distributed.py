"""Two CPU workers through the real shell scripts and msrun."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import call, last_json, run, weights


@pytest.fixture(scope="module")
def pair(tiny, tmp_path_factory):
    """Two workers with two clips each, batch norms frozen, gradients in three segments."""
    out = tmp_path_factory.mktemp("pair") / "run"
    config, rest = tiny[1], tiny[2:]
    frozen = ["--train.batch_norm=frozen", "--data.batch=2", "--run.all_reduce=[layer1, layer3]"]
    done = call(
        "scripts/run_distribute_train.sh", "tsm", "2", config, *rest, *frozen, f"--run.out={out}"
    )
    return done, last_json(done), out


def test_two_workers_train_and_one_speaks(pair):
    done, result, out = pair
    assert result["steps"] == 12
    assert "gradients travel in 3 segments" in done.stderr
    assert "2 a device x 2 devices x 1 accumulated = 4 an update" in done.stderr
    lines = (out / "log.jsonl").read_text().splitlines()
    assert len(lines) == 6, "one rank writes"


def test_two_workers_equal_one_with_twice_the_batch(pair, tiny, tmp_path):
    """Up to the rounding of another order of additions."""
    _, result, _ = pair
    alone = run("tsm/train.py", *tiny, "--train.batch_norm=frozen", f"--run.out={tmp_path / 'run'}")
    first, second = weights(result["checkpoint"]), weights(alone["checkpoint"])
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_both_ranks_end_with_the_same_weights(tiny, tmp_path):
    """Each rank writes its own weights at the end, from a script of the test's own."""
    script = Path(__file__).parent / "ranks.py"
    arguments = [*tiny, "--data.batch=2", f"--run.out={tmp_path / 'run'}"]
    done = call("scripts/launch.py", "2", script, *arguments)
    assert done.returncode == 0, done.stderr
    first, second = (np.load(tmp_path / f"rank_{rank}.npz") for rank in (0, 1))
    assert len(first.files) > 100
    for name in first.files:
        if "moving" not in name:  # every rank has its own batch statistics
            np.testing.assert_array_equal(first[name], second[name], name)


@pytest.mark.parametrize("videos", ["odd.txt", "test.txt"])
def test_an_evaluation_on_two_ranks_equals_one(tiny, trained, videos):
    arguments = [*tiny[2:], f"--data.test_list={videos}", "--eval.batch=2"]
    alone = run("tsm/eval.py", *tiny[:2], "--checkpoint_path", trained, *arguments)
    both = call(
        "scripts/run_eval.sh", "tsm", tiny[1], trained, *arguments, environment={"DEVICES": "2"}
    )
    result = last_json(both)
    assert result["videos"] == (7 if videos == "odd.txt" else 8)
    assert {**result, "seconds": 0} == {**alone, "seconds": 0}


def test_a_mistake_in_a_worker_is_told_in_one_line(tiny, tmp_path):
    done = call(
        "scripts/run_distribute_train.sh", "tsm", "2", *tiny[1:], "--data.train_list=none.txt"
    )
    assert done.returncode == 2
    assert "none.txt does not exist" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
