"""Metrics, loss and report of multi-label samples."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import read_rows
from utils.data.annotation_file import encode_label
from utils.evaluate.label_space import sigmoid
from utils.evaluate.metrics import (
    ScoreTable,
    compute_average_precisions,
    compute_binary_losses,
    compute_metrics,
)
from utils.evaluate.report import Report
from utils.evaluate.report_page import Samples
from utils.nn.loss import SigmoidCrossEntropy
from utils.runtime import Runtime

# Of scikit-learn 1.9.1, `average_precision_score(targets, scores, average=None)`, for four seeds.
PRECISIONS = [
    [0.7, 0.444444444444, 0.430357142857, 0.642857142857, 0.902857142857],
    [0.086904761905, 0.23257918552, 0.04880952381, 0.103265827404, 0.089569892473],
    [0.573520991304, 0.553903681508, 0.465472139933, 0.51754618128, 0.512386266596],
    [0.229761904762, 0.294387755102, 0.373333333333, 0.198014214047, 0.367996615313],
]
SIZES = ((7, 0.3), (40, 0.1), (200, 0.5), (25, 0.2))  # videos, fraction of positives


def draw_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets; those of odd seeds have equal scores."""
    rng = np.random.RandomState(seed)
    videos, fraction = SIZES[seed]
    scores = rng.rand(videos, 5).astype(np.float32)
    scores = np.round(scores, 1) if seed % 2 else scores
    targets = (rng.rand(videos, 5) < fraction).astype(np.float32)
    targets[0] = 1
    return scores, targets


@pytest.mark.parametrize("seed", range(4))
def test_average_precisions_are_those_of_scikit_learn(seed):
    result = compute_average_precisions(*draw_case(seed))
    np.testing.assert_allclose(result, PRECISIONS[seed], atol=1e-11)


def test_a_class_without_a_video_is_not_in_the_mean():
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    metrics = compute_metrics(scores, np.array([[0, 0], [1, 0]]), raw_scores=False)
    assert (metrics["map"], metrics["classes"], metrics["top1"]) == (0.5, 1, 0.0)
    assert compute_metrics(scores, np.zeros((2, 2)), raw_scores=False)["map"] == 0.0


def test_losses_of_raw_scores_and_of_probabilities_are_equal_and_finite():
    scores = np.array([[-3.0, 0.0, 500.0], [2.0, -500.0, 500.0]])
    targets = np.array([[1, 0, 1], [0, 1, 0]])
    expected = [[math.log1p(math.exp(3)), math.log(2), 0], [math.log1p(math.exp(2)), 500, 500]]
    raw = compute_binary_losses(scores, targets, raw_scores=True)
    np.testing.assert_allclose(raw, expected, atol=1e-12)
    probabilities = compute_binary_losses(sigmoid(scores), targets, raw_scores=False)
    np.testing.assert_allclose(probabilities[:, 0], raw[:, 0])
    assert np.isfinite(probabilities).all()
    assert sigmoid(np.array([-700.0]))[0] > 0


def test_the_training_loss_is_the_mean_with_positive_weights():
    scores = np.random.RandomState(0).randn(4, 3).astype(np.float32) * 30
    targets = np.eye(4, 3, dtype=np.float32)
    weights = (1.0, 2.5, 0.5)
    losses = compute_binary_losses(scores, targets, raw_scores=True)
    expected = (losses * np.where(targets > 0, weights, 1)).mean()
    loss = SigmoidCrossEntropy(3, weights)
    assert float(loss(Tensor(scores), Tensor(targets))) == pytest.approx(expected, rel=1e-5)
    targets[0] = 0  # which counts neither way in top-1
    hits = targets[np.arange(4), scores.argmax(1)].sum() / 3
    assert float(loss.top1(Tensor(scores), Tensor(targets))) == pytest.approx(hits)
    targets[0, 0] = 1
    plain = SigmoidCrossEntropy(3)
    assert float(plain(Tensor(scores), Tensor(targets))) == pytest.approx(losses.mean(), rel=1e-5)


SETS = ((0, 1), (), (2,), (1,))  # labels; sample 3 is unreadable
RAW = np.array([[4, 1, -2], [-1, 1, -4], [-3, -2, 2]], np.float32)


def collect(collector) -> None:
    """Two batches of this rank, whose rows are samples 2, 0, padding, 1."""
    targets = np.array([encode_label(labels, 3) for labels in SETS])
    collector(RAW[[2]], targets[[2]], [0])
    collector(RAW[[0, 1]], targets[[0, 1]], [1, 3])


def test_scores_are_collected_by_sample():
    table = ScoreTable(numbers=(2, 0, None, 1), count=4, width=7)
    collect(table.add)
    rows = table.gather(Runtime())
    assert rows[:, -1].tolist() == [1, 1, 1, 0]
    np.testing.assert_array_equal(rows[:3, :3], RAW)
    metrics = compute_metrics(*np.split(rows[:3, :-1], 2, axis=1), raw_scores=True)
    assert rows[:3, 3:-1].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    # Class 1: the positive and the negative video have equal scores.
    assert metrics["map"] == round((1 + 0.5 + 1) / 3, 6)
    assert (metrics["top1"], metrics["videos"], metrics["classes"]) == (1.0, 3, 3)
    assert metrics["unlabelled"] == 1


def test_the_report_of_several_labels(tmp_path):
    samples = Samples(["a", "b", "c", "d"], SETS, ["x", "y", ""])
    space = SimpleNamespace(raw_scores=True, multi_label=True)
    page = Report(tmp_path, samples, numbers=(2, 0, None, 1), space=space, rt=Runtime())
    collect(page.table.add)
    page.write({"map": 0.8})
    lines = read_rows(tmp_path / "scores.csv")
    assert [line["labels"] for line in lines] == ["0,1", "-", "2", "1"]
    assert [line["predicted"] for line in lines] == ["0,1", "1", "2", "unreadable"]
    assert [line["correct"] for line in lines] == ["1", "0", "1", ""]
    assert float(lines[0]["0 x"]) == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-9)
    columns = [*zip(*(line.values() for line in read_rows(tmp_path / "classes.csv")))]
    assert columns[2:] == [
        ("1", "1", "1"), ("1.0", "0.5", "1.0"), ("1", "2", "1"),
        ("1.0", "0.5", "1.0"), ("1.0", "1.0", "1.0"), ("1.0", "0.666667", "1.0"),
    ]  # fmt: skip
    (wrong,) = read_rows(tmp_path / "wrong.csv")
    assert (wrong["path"], wrong["labels"], wrong["missed"], wrong["extra"]) == ("b", "-", "-", "1")
    assert json.loads((tmp_path / "report.json").read_text())["worst_classes"][0]["class"] == 1
