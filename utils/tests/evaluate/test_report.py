"""Evaluation reports: tables computed by hand, and sums over ranks."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import read_rows
from utils.evaluate import metrics
from utils.evaluate.report import Report, compute_bins
from utils.evaluate.report_page import Samples
from utils.runtime import Runtime

SCORES = np.array([[9, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4], [0, 9, 1, 2, 3, 4]], np.float32)
LABELS = np.array([0, 5, 2])  # rank of the label: first, sixth, fifth
SAMPLES = Samples(["a/0 0.mp4", "b/1,1.mp4", "c/2.mp4", "d/bad.mp4"], [0, 5, 2, 1], list("uvwxyz"))

SPACE = SimpleNamespace(raw_scores=False, multi_label=False)


def write_report(
    folder, scores=SCORES, softmax=True, mine=(2, 0, 1, None), samples=SAMPLES
) -> dict:
    """The report of three videos, read in another order than the list's, one unreadable."""
    space = SimpleNamespace(raw_scores=softmax, multi_label=False)
    page = Report(folder, samples, numbers=mine, space=space, rt=Runtime())
    order = [k for k in mine if k is not None]
    page.table.add(scores[order[:2]], LABELS[order[:2]], [0, 1])
    page.table.add(scores[order[2:]], LABELS[order[2:]], [2])
    page.write({"top1": 0.333333})
    return json.loads((folder / "report.json").read_text())


def test_predictions_have_the_order_of_the_annotation_file(tmp_path):
    result = write_report(tmp_path / "new" / "report")
    rows = read_rows(tmp_path / "new" / "report" / "scores.csv")
    assert [row["path"] for row in rows] == list(SAMPLES.paths)
    assert [row["label"] for row in rows] == ["0", "5", "2", "1"]
    assert [row["predicted"] for row in rows] == ["0", "0", "1", "unreadable"]
    assert [row["correct"] for row in rows] == ["1", "0", "0", ""]
    fractions = np.exp(SCORES.astype(np.float64))
    fractions /= fractions.sum(1, keepdims=True)
    names = [f"{k} {name}" for k, name in enumerate("uvwxyz")]
    messages = [[float(row[name]) for name in names] for row in rows[:3]]
    np.testing.assert_allclose(messages, fractions, rtol=1e-8)
    assert [row["probability"] for row in rows[:2]] == [rows[0]["0 u"], rows[1]["5 z"]]
    assert result["top1"] == 0.333333
    of_label = fractions[[0, 1, 2], LABELS]
    assert result["nll"] == pytest.approx(-np.log(of_label).mean(), abs=1e-6)
    confidence = fractions.max(1)  # the first and the last are in one bin
    gaps = 2 * abs(0.5 - (confidence[0] + confidence[2]) / 2) + confidence[1]
    assert result["ece"] == pytest.approx(gaps / 3, abs=1e-6)


def test_the_class_and_confusion_tables_have_the_expected_counts(tmp_path):
    result = write_report(tmp_path)
    classes = read_rows(tmp_path / "classes.csv")
    assert [row["videos"] for row in classes] == ["1", "0", "1", "0", "0", "1"]
    assert [(row["top1"], row["top5"]) for row in classes if row["videos"] == "1"] == [
        ("1.0", "1.0"), ("0.0", "1.0"), ("0.0", "0.0"),
    ]  # fmt: skip
    assert classes[1]["top1"] == ""
    scores = [[row[name] for name in ("precision", "recall", "f1")] for row in classes[:3]]
    assert scores == [["0.5", "1.0", "0.666667"], ["0.0", "", "0.0"], ["", "0.0", "0.0"]]
    matrix = np.array([[*row.values()][1:] for row in read_rows(tmp_path / "confusion.csv")], int)
    assert np.argwhere(matrix).tolist() == [[0, 0], [2, 1], [5, 0]]
    assert matrix.sum() == 3
    assert [row["class"] for row in result["worst_classes"]] == [2, 5, 0]
    page = (tmp_path / "index.html").read_text().replace("\u202f", " ")
    assert '>w</th><td class="muted">2</td>' in page
    assert ">0.0 to 79.3 %</td>" in page
    assert not list(tmp_path.glob("*.tmp"))


def test_no_readable_video_gives_a_report(tmp_path):
    page = Report(tmp_path, SAMPLES, numbers=[0, 1, 2, 3], space=SPACE, rt=Runtime())
    page.write({"videos": 0})
    result = json.loads((tmp_path / "report.json").read_text())
    assert (result["nll"], result["ece"], result["worst_classes"]) == (None, 0, [])
    assert [row["predicted"] for row in read_rows(tmp_path / "scores.csv")] == ["unreadable"] * 4


def test_calibration_bins_have_the_expected_error():
    """Edges belong to the bin below them."""
    correct = np.array([0, 1, 1, 1, 0], bool)
    rows, error = compute_bins(np.array([1 / 15, 0.07, 0.93, 1.0, 1.0]), correct)
    assert [row[2] for row in rows] == [1, 1, *[0] * 11, 1, 2]
    assert rows[0] == [0, 0.066667, 1, 0.066667, 0]
    assert [row[3:] for row in (rows[1], rows[13], rows[14])] == [[0.07, 1], [0.93, 1], [1, 0.5]]
    assert rows[2][3:] == ["", ""]
    assert error == pytest.approx((1 / 15 + 0.93 + 0.07 + 1.0) / 5)


def test_blocks_of_all_ranks_have_one_shape_and_add_up(monkeypatch):
    """Two ranks of 5 samples, in blocks of 2."""
    monkeypatch.setattr(metrics, "BLOCK", 2)
    other = np.zeros((6, 3), np.float32)
    other[[1, 3]] = 7
    blocks = iter(np.split(other, 3))
    shapes = []

    def add(block):
        shapes.append(block.shape)
        return type(block)(block.asnumpy() + next(blocks))

    monkeypatch.setattr(metrics, "AllReduceSum", lambda: add)
    table = metrics.ScoreTable([4, 0, 2], count=5, width=3)
    table.add(np.full((3, 1), 5), labels=np.full(3, 5), rows=range(3))
    assert table.gather(Runtime(0, 2))[:, 0].tolist() == [5, 7, 5, 7, 5]
    assert shapes == [(2, 3)] * 3
