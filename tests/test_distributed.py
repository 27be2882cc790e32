"""Two CPU workers through the real shell scripts and msrun."""

import numpy as np
import pytest

from tests.helpers import (
    assert_report,
    assert_segments,
    read_result,
    read_weights,
    run_json,
    run_script,
)


def test_two_workers_train_and_one_speaks(pair_run):
    done, result, out = pair_run
    assert result["steps"] == 12
    assert "gradients are reduced in 3 segments" in done.stderr
    assert "2 a device x 2 devices x 1 accumulated = 4 an update" in done.stderr
    lines = (out / "log.jsonl").read_text().splitlines()
    assert len(lines) == 6, "one rank writes"


def test_every_all_reduce_of_the_graph_is_a_segment_that_was_asked_for(pair_run):
    """[layer1, layer3] of 22 gradients, as batch norms are frozen."""
    done, _, out = pair_run
    assert assert_segments(done, out.parent / "graphs") == [5, 10, 7]


def test_two_workers_equal_one_with_twice_the_batch(pair_run, tiny_args, tmp_path):
    """Up to the rounding of another order of additions."""
    _, result, _ = pair_run
    alone = run_json(
        "tsm/train.py", *tiny_args, "--train.batch_norm=frozen", f"--run.out={tmp_path / 'run'}"
    )
    first, second = read_weights(result["checkpoint"]), read_weights(alone["checkpoint"])
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_an_evaluation_on_three_ranks_equals_one(data_root, tiny_args, tiny_ckpt, tmp_path):
    """7 videos: no whole batches, not as many on each rank, and nothing left out.

    Nor in the report, which has every video once, in the order of the list.
    """
    arguments = [*tiny_args[2:], "--data.test_list=odd.txt", "--eval.batch=2"]
    pages = tmp_path / "alone", tmp_path / "three"
    first, second = (["--report", page] for page in pages)
    alone = run_json(
        "tsm/eval.py", *tiny_args[:2], "--checkpoint_path", tiny_ckpt, *arguments, *first
    )
    several = run_script(
        "scripts/run_eval.sh", "tsm", tiny_args[1], tiny_ckpt, *arguments, *second,
        environment={"DEVICES": "3"},
    )  # fmt: skip
    result = read_result(several)
    assert result["videos"] == 7
    assert {**result, "seconds": 0} == {**alone, "seconds": 0}
    rows, others = assert_report(pages[0], alone), assert_report(pages[1], result)
    listed = (data_root / "odd.txt").read_text().splitlines()
    assert [f"{row['path']} {row['label']}" for row in others] == listed
    for one, other in zip(rows, others):
        assert one.keys() == other.keys()
        for name in list(one)[4:]:
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-4), name


def test_a_mistake_in_a_worker_is_told_in_one_line(tiny_args, tmp_path):
    done = run_script(
        "scripts/run_distribute_train.sh", "tsm", "2", *tiny_args[1:], "--data.train_list=none.txt"
    )
    assert done.returncode == 2
    assert "none.txt does not exist" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
