"""Evaluation metrics: views are averaged as logits, videos are counted once."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.golden_cases import generate_input, load_case
from utils import collectives
from utils.evaluate import metrics
from utils.evaluate.metrics import Counts, EvalSet, compute_interval, evaluate
from utils.evaluate.scorer import CellScorer, video_scores
from utils.files import ROOT
from utils.log import format_values
from utils.runtime import Runtime
from utils.signals import StopRequestError

CASES = load_case(ROOT / "tsm" / "tests" / "golden" / "tsm_data.json")["test_aggregation"]


class ScoresAsClips(nn.Cell):
    """Clips that carry their scores: (N, classes) in, the same out."""

    def construct(self, x):
        return x


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c["logits_shape"]))
def test_views_are_averaged_as_raw_scores(case):
    scores = generate_input(case["input_seed"], case["logits_shape"])
    views = scores.reshape(case["batch"], case["num_crop"], -1)
    result = video_scores(CellScorer(ScoresAsClips()), views)
    np.testing.assert_allclose(result, case["mean_logits"], rtol=1e-5)


class RecordingNet(nn.Cell):
    """Clips (N, 3, H, W) uint8 to scores (N, 6); `shapes` lists the shapes of all calls."""

    def __init__(self, heads: int = 0):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.dense = nn.Dense(4, 6)
        self.heads = heads
        self.shapes = []

    def __call__(self, clips: Tensor):
        self.shapes.append(clips.shape)
        scores = super().__call__(clips)
        return (scores[:, :2], scores[:, 2:]) if self.heads else scores

    def construct(self, clips: Tensor) -> Tensor:
        return self.dense(self.conv(ops.cast(clips, self.dense.weight.dtype)).mean((2, 3)))


def make_clips(videos: int, views: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, (videos, views, 3, 8, 8)).astype(np.uint8)


@pytest.mark.parametrize("size", [1, 4, 5, 15, 32])
def test_scores_do_not_depend_on_the_clips_in_a_pass(size):
    """15 clips: 4 leave a last pass of 3, which is padded, and 32 exceed the number of clips."""
    net = RecordingNet()
    clips = make_clips(3, 5)
    expected = [net(Tensor(video)).asnumpy().mean(0) for video in clips]
    net.shapes.clear()
    np.testing.assert_allclose(video_scores(CellScorer(net), clips, size), expected, 1e-5, 1e-5)
    assert net.shapes == [(size, 3, 8, 8)] * -(-15 // size)


@pytest.mark.parametrize(("device", "passes"), [("CPU", 30), ("Ascend", 2)])
def test_all_passes_start_before_the_only_read(device, passes, monkeypatch):
    """Two videos of 30 views; one read of each view would be 30 reads."""
    net = RecordingNet()
    clips = make_clips(2, 30)
    read = Tensor.asnumpy
    events = []
    scorer = CellScorer(net)
    video_scores(scorer, clips)  # the compiler reads constants
    scorer.device = device
    monkeypatch.setattr(net, "shapes", events)
    monkeypatch.setattr(Tensor, "asnumpy", lambda x: events.append("read") or read(x))
    video_scores(scorer, clips)
    assert events == [(60 // passes, 3, 8, 8)] * passes + ["read"]


def test_a_label_space_has_its_columns_of_the_scores():
    """In passes of the fixed batch of an exported network."""
    net = RecordingNet(heads=2)
    scorer = CellScorer(net)
    scorer.batch = 3
    clips = make_clips(1, 3)
    whole = scorer(clips[0])
    assert whole.shape == (3, 6)
    for columns in (slice(0, 2), slice(2, 6)):
        scores = video_scores(scorer, clips, 5, columns)
        np.testing.assert_allclose(scores[0], whole[:, columns].mean(axis=0), rtol=1e-5)
    assert set(net.shapes) == {(3, 3, 8, 8)}


class Batches:
    """Batches of two videos."""

    def __init__(self, count: int, views: int = 1, valid=(True, True)):
        self.count = count
        self.shape = (views, 3, 8, 8)
        self.valid = np.array(valid)
        self.views = f"{views}x1"
        self.cfg = SimpleNamespace(eval=SimpleNamespace(batch=2), data=SimpleNamespace(workers=1))
        self.unreadable = SimpleNamespace(count=0)

    def get_dataset_size(self) -> int:
        return self.count

    def create_tuple_iterator(self, **_):
        for _ in range(self.count):
            yield make_clips(2, self.shape[0]), np.zeros(2, int), self.valid


def make_eval_set(rows: Batches, name: str = "", columns: slice = slice(0, 6)) -> EvalSet:
    fields = {"multi_label": False, "raw_scores": True, "classes": columns.stop - columns.start}
    space = SimpleNamespace(name=name, columns=columns, **fields)
    return EvalSet(rows, space, lambda cfg, rows, workers: rows)


def run(net: nn.Cell, rows: Batches, size: int = 1) -> dict:
    return evaluate(CellScorer(net), [make_eval_set(rows)], Runtime(size=size))


def test_only_valid_rows_are_counted():
    net = RecordingNet()
    result = run(net, Batches(1, views=3, valid=(True, False)))
    assert (result["videos"], net.shapes) == (1, [(2, 3, 8, 8)] * 3)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_signal_stops_an_evaluation_unless_all_batches_are_done(batches, monkeypatch):
    monkeypatch.setattr(metrics, "received", [])

    class Signalled(RecordingNet):
        def __call__(self, clips):
            if len(self.shapes) == batches - 1:
                metrics.received.append(15)
            return super().__call__(clips)

    net = Signalled()
    if batches == 3:
        assert run(net, Batches(3))["videos"] == 6
        return
    with pytest.raises(StopRequestError):
        run(net, Batches(3))
    assert len(net.shapes) == batches


def test_all_ranks_stop_an_evaluation_if_one_stops(monkeypatch):
    """The sum over ranks shows that another rank received a signal."""
    monkeypatch.setattr(collectives, "sum_over_ranks", lambda values: values + 1)
    with pytest.raises(StopRequestError):
        run(RecordingNet(), Batches(3), size=2)


def test_data_sets_with_different_views_use_one_shape():
    net = RecordingNet(heads=2)
    scorer = CellScorer(net)
    scorer.device = "Ascend"
    sets = [
        make_eval_set(Batches(1, views=5), "a", slice(0, 2)),
        make_eval_set(Batches(1, views=3), "b", slice(2, 6)),
    ]
    result = evaluate(scorer, sets, Runtime())
    assert result["videos"] == 4
    assert list(result["sets"]) == ["a", "b"]
    assert net.shapes == [(6, 3, 8, 8)] * 3, "10 clips in two passes, 6 in one"


def test_another_file_beside_the_checkpoint_stays(tmp_path, log_messages):
    """Also one that lists videos."""
    (tmp_path / "a.json").write_text('{"videos": ["a.mp4"]}')
    metrics.write_result_file(str(tmp_path / "a.ckpt"), {"videos": 4, "seconds": 1.0}, Runtime())
    assert (tmp_path / "a.json").read_text() == '{"videos": ["a.mp4"]}'
    assert "not the result of an evaluation" in log_messages[-1]


def test_the_results_of_other_lists_stay(tmp_path):
    path = tmp_path / "best.json"
    own = {"keep_best": "top1", "validation": {"top1": 0.5}}
    path.write_text(json.dumps(own))
    results = [{"list": name, "top1": k, "videos": 4, "seconds": 1} for k, name in enumerate("aba")]
    for result in results:
        metrics.write_result_file(str(tmp_path / "best.ckpt"), result, Runtime())
    expected = {**own, **results[2], "other_lists": {"b": results[1]}}
    assert json.loads(path.read_text()) == expected


def test_top_k_is_counted_per_class():
    counts = Counts(6)
    scores = np.array([[9, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4], [0, 9, 1, 2, 3, 4]], float)
    counts.add(scores, np.array([0, 5, 1]))
    counts.add(scores[:1], np.array([1]))
    fractions = counts.accuracies()
    assert fractions["videos"] == 4
    assert fractions["top1"] == 0.5
    assert fractions["top5"] == 0.5, "label 5 is sixth, label 1 of the last is sixth too"
    assert fractions["mean_class_accuracy"] == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.mark.parametrize(
    ("hits", "videos", "low", "high"),
    [(0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (36, 60, 0.473661, 0.714305)],
)
def test_the_interval_is_wilsons(hits, videos, low, high):
    """As of SciPy's binomtest."""
    assert compute_interval(hits, videos) == pytest.approx((low, high), abs=2e-6)


def test_five_classes_have_no_top5():
    counts = Counts(5)
    counts.add(np.eye(5), np.arange(5))
    fractions = counts.accuracies()
    assert fractions["top5"] is None
    assert "top5_low" not in fractions
    assert "top5" not in format_values({"epoch": 1, **fractions})


def test_the_loss_is_the_mean_cross_entropy_of_raw_scores_or_probabilities():
    scores = np.random.RandomState(0).randn(4, 3).astype(np.float32)
    labels = np.array([0, 2, 1, 1])
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.log(probabilities[np.arange(4), labels]).mean()
    for raw_scores, values in ((True, scores + 50), (False, probabilities)):
        counts = Counts(3, raw_scores)
        counts.add(values[:1], labels[:1])
        counts.add(values[1:], labels[1:])
        assert counts.accuracies()["loss"] == pytest.approx(expected, abs=1e-5)
    counts.add(np.array([[1.0, 0.0, 0.0]]), np.array([1]))
    assert np.isfinite(counts.accuracies()["loss"])
    assert Counts(3).accuracies()["loss"] == 0.0


def test_the_sum_of_losses_over_ranks_is_that_of_one_rank(monkeypatch):
    """Exactly, although ranks add float32."""
    rng = np.random.RandomState(0)
    scores = 30 * rng.randn(700, 5)
    labels = rng.randint(0, 5, 700)
    whole = Counts(5, raw_scores=True)
    whole.add(scores, labels)
    ranks = [Counts(5, raw_scores=True) for _ in range(7)]
    for rank, counts in enumerate(ranks):
        counts.add(scores[rank::7], labels[rank::7])
    shifts = metrics.LOSS_SHIFTS
    sums = [
        np.stack([(counts.videos, counts.top1, counts.top5) for counts in ranks]).sum(0),
        sum(np.array([counts.loss >> shift & 0xFFF for shift in shifts]) for counts in ranks),
    ]
    assert sums[1].max() < 2**24
    monkeypatch.setattr(metrics, "sum_over_ranks", lambda values: sums.pop(0))
    assert ranks[0].accuracies(Runtime(size=7)) == whole.accuracies()
    assert ranks[0].loss == whole.loss
