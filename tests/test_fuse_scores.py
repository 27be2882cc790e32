"""Averages of the scores of several evaluations: equal to averaged logits; different lists."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from scripts.analysis.fuse_scores import read_scores
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


def test_the_probabilities_are_averaged(reports, run_here, tmp_path):
    out = tmp_path / "fused"
    options = ["--weights", "1", "3", "--average", "probabilities", "--report", str(out)]
    assert run(run_here, *reports, *options).returncode == 0
    first, second, fused = (read_scores(Path(folder) / "scores.csv") for folder in (*reports, out))
    assert fused[0].paths == PATHS
    readable = slice(0, 3)
    expected = (0.25 * first[1] + 0.75 * second[1])[readable]
    np.testing.assert_allclose(fused[1][readable], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{1}", "--weights", "1", "1", "1"], "--weights"),
        (["nowhere"], "nowhere/scores.csv"),
        (["{2}"], "scores.csv"),
        (["{3}"], "nan has scores that are not finite"),
        (["{4}"], "other"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, words, reports, run_here, tmp_path):
    """{2} is a folder with another table, {3} one with NaN, {4} one of another list."""
    other = make_report(tmp_path / "other", RAW[1], PATHS, [0, 1, 1, 1])
    nan = make_report(tmp_path / "nan", RAW[1] * np.nan)
    (tmp_path / "scores.csv").write_text("path,label\na.mp4,0\n")
    arguments = [argument.format(*reports, tmp_path, nan, other) for argument in arguments]
    assert_one_line_error(run(run_here, reports[0], *arguments), words)
