"""Training and evaluation on several CPU ranks, started by the shell scripts."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import build_once
from tests.helpers import (
    assert_close_weights,
    assert_report,
    assert_segments,
    read_result,
    run_json,
    run_script,
)
from tests.segments_worker import CASES, SEGMENTS
from utils.files import ROOT


def test_two_ranks_train_and_one_writes_the_log(pair_run):
    completed, result, out = pair_run
    assert result["steps"] == 12
    assert completed.stderr.count("segment of gradients") == 3
    assert "2 a device x 2 devices x 1 accumulated = 4 an update" in completed.stderr
    assert len((out / "log.jsonl").read_text().splitlines()) == 6, "rank 0 alone writes"


def test_the_graph_has_one_all_reduce_per_requested_segment(pair_run):
    """[layer1, layer3] splits 22 gradients; batch norms are frozen and have none."""
    completed, _, out = pair_run
    assert assert_segments(completed, out.parent / "graphs") == [5, 10, 7]


def test_two_ranks_train_as_one_with_twice_the_batch(pair_run, tiny_args, tmp_path):
    """The weights are equal up to rounding."""
    _, result, _ = pair_run
    arguments = [*tiny_args, "--train.batch_norm=frozen", f"--run.out={tmp_path / 'run'}"]
    alone = run_json("tsm/train.py", *arguments)
    assert_close_weights(alone["checkpoint"], result["checkpoint"])


@pytest.fixture(scope="session")
def segment_runs(tmp_path_factory) -> list:
    """What tests/segments_worker.py saves on one device, and on each of two ranks."""
    worker = "tests/segments_worker.py"

    def build(folder: Path) -> None:
        for command in ([worker, folder], ["scripts/launch.py", "2", ROOT / worker, folder]):
            done = run_script(*command)
            assert done.returncode == 0, done.stderr

    folder = build_once(tmp_path_factory, "segments", build)
    return [np.load(folder / f"rank_{name}.npz") for name in ("0_of_1", "0_of_2", "1_of_2")]


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("case", CASES)
def test_every_split_trains_as_one_device_with_the_whole_batch(case, segments, segment_runs):
    """Both ranks have the same bits; those of one device up to the rounding of its larger batch."""
    alone, *ranks = segment_runs
    names = [name for name in ranks[0].files if name.startswith(f"{case}/{segments}/")]
    assert len(names) > 5
    rtol = 2e-3 if case == "amp" else 1e-5  # of float16
    for name in names:
        own, one = ranks[0][name], name.replace(f"/{segments}/", "/one/")
        np.testing.assert_array_equal(own, ranks[1][name], err_msg=name)
        np.testing.assert_allclose(own, alone[one], rtol=rtol, atol=rtol, err_msg=name)
        if case == "folded_scale":  # without a norm, whose sum depends on the segments
            np.testing.assert_array_equal(own, ranks[0][one], err_msg=name)


@pytest.mark.slow
def test_an_evaluation_on_three_ranks_equals_one(data_root, tiny_args, tiny_ckpt, tmp_path):
    """7 videos give partial batches and unequal shards.

    The report has every video once, in the order of the annotation file.
    """
    arguments = [*tiny_args[2:], "--data.test_list=odd.txt", "--eval.batch=2"]
    reports = tmp_path / "alone", tmp_path / "three"
    options = [[*arguments, "--report", report] for report in reports]
    alone = run_json("tsm/eval.py", *tiny_args[:2], "--checkpoint_path", tiny_ckpt, *options[0])
    several = run_script(
        "scripts/run_eval.sh", "tsm", tiny_args[1], tiny_ckpt, *options[1],
        environment={"DEVICES": "3"},
    )  # fmt: skip
    result = read_result(several)
    assert result["videos"] == 7
    assert {**result, "seconds": 0} == {**alone, "seconds": 0}
    rows = assert_report(reports[0], alone)
    other_rows = assert_report(reports[1], result)
    lines = (data_root / "odd.txt").read_text().splitlines()
    assert [f"{row['path']} {row['label']}" for row in other_rows] == lines
    for row, other in zip(rows, other_rows):
        assert row.keys() == other.keys()
        for name in list(row)[4:]:
            assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4), name
