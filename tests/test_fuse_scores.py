"""Averages of the scores of several evaluations: equal to averaged logits; different lists."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from scripts.analysis import fuse_scores
from tests.helpers import assert_one_line_error
from utils.evaluate.report import write_report
from utils.evaluate.report_page import Samples

PATHS = ["a.mp4", "b c.mp4", "d.mp4", "bad.mp4"]
LABELS = [0, 2, 1, 1]
READABLE = [1, 1, 1, 0]

RAW = np.random.RandomState(0).randn(2, 4, 3) * 2


def make_report(folder, raw, paths=PATHS, labels=LABELS):
    """Writes the report of an evaluation with these logits."""
    folder.mkdir()
    rows = np.column_stack([raw, labels, READABLE[: len(labels)]])
    samples = Samples(paths, labels, list("xyz"))
    write_report(folder, samples=samples, rows=rows, raw_scores=True, result={})
    return str(folder)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return [make_report(folder / f"report_{k}", raw) for k, raw in enumerate(RAW)]


def run(run_here, *arguments):
    return run_here("scripts/analysis/fuse_scores.py", *arguments)


def test_the_logarithms_give_the_averages_of_raw_scores(reports, run_here, tmp_path):
    out = tmp_path / "fused"
    done = run(run_here, *reports, "--weights", "1", "1.5", "--report", str(out))
    result = json.loads(done.stdout.splitlines()[-1])
    fused = (RAW[0] + 1.5 * RAW[1]) / 2.5
    correct = fused[:3].argmax(1) == LABELS[:3]
    assert result["top1"] == pytest.approx(correct.mean(), abs=1e-6)
    assert (result["videos"], result["unreadable"]) == (3, 1)
    assert (result["average"], result["weights"]) == ("logarithms", [1, 1.5])
    single = [(raw[:3].argmax(1) == LABELS[:3]).mean() for raw in RAW]
    assert list(result["reports"].values()) == pytest.approx(single, abs=1e-6)
    with open(out / "scores.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    expected = np.exp(fused) / np.exp(fused).sum(1, keepdims=True)
    written = np.array([row[5:] for row in rows[:3]], float)
    np.testing.assert_allclose(written, expected[:3], rtol=1e-6)
    assert rows[3][2] == "unreadable"


def test_the_probabilities_are_averaged(reports):
    samples, first = fuse_scores.read_scores(find_scores(reports[0]))
    _, second = fuse_scores.read_scores(find_scores(reports[1]))
    assert samples.paths == PATHS
    fused = fuse_scores.fuse([first, second], np.array([0.25, 0.75]), "probabilities")
    np.testing.assert_allclose(fused[:, :3], 0.25 * first[:, :3] + 0.75 * second[:, :3])
    np.testing.assert_array_equal(fused[:, 3:], first[:, 3:])


def find_scores(folder: str) -> Path:
    return Path(folder) / "scores.csv"


def test_reports_of_different_lists_are_not_fused(reports, run_here, tmp_path):
    other = make_report(tmp_path / "other", RAW[1], PATHS, [0, 1, 1, 1])
    assert_one_line_error(run(run_here, reports[0], other), str(other))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{1}", "--weights", "1", "1", "1"], "--weights"),
        (["{1}", "--weights", "1", "-1"], "--weights"),
        (["nowhere"], "nowhere/scores.csv"),
        (["{2}"], "scores.csv"),
        (["{3}"], "nan has scores that are not finite"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, words, reports, run_here, tmp_path):
    """{2} is a folder with another table, {3} one with NaN."""
    nan = make_report(tmp_path / "nan", RAW[1] * np.nan)
    find_scores(str(tmp_path)).write_text("path,label\na.mp4,0\n")
    arguments = [argument.format(*reports, tmp_path, nan) for argument in arguments]
    assert_one_line_error(run(run_here, reports[0], *arguments), words)
