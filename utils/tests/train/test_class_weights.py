"""Class weights: the losses of all networks against numbers of PyTorch 2.13, and their settings.

PyTorch: `F.cross_entropy(scores, label, weight=w, label_smoothing=s)`. MIXED are its sums for
targets of probabilities (`reduction="sum"`), divided by the weights of the targets.
"""

import numpy as np
import pytest
from mindspore import Tensor, ops, value_and_grad

from mvit_multi.dataset import build_target_row
from mvit_multi.loss import MultiLoss
from tests.helpers import load_smoke_config
from utils.data.sampler import TrainSampler, build_sampler
from utils.nn.loss import CrossEntropy
from utils.nn.soft_targets import SmoothedCrossEntropy
from utils.runtime import Runtime
from utils.train.plan import compute_class_weights

SCORES = np.random.RandomState(0).randn(6, 4).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 1, 1], np.int32)
WEIGHTS = (0.5, 2.0, 1.0, 4.0)
# {label smoothing: loss}
HARD = {0.0: 1.8508068323135376, 0.1: 1.839963674545288}
GRADIENTS = {  # of row 3
    0.0: [0.1196077, 0.0631084, 0.0870987, -0.2698148],
    0.1: [0.1121665, 0.055408, 0.0802977, -0.2478722],
}
MIXED = {0.0: 1.674057960510254, 0.1: 1.6808899641036987}  # lambda 0.3, partner (i + 3) % 6
FLIPPED = {0.0: 1.8907597064971924, 0.1: 1.875921368598938}  # lambda 0.3, partner 5 - i


def make_targets(lam: float) -> np.ndarray:
    return np.stack([build_target_row(0, int(label), lam) for label in LABELS])


def build_multi_loss(smoothing: float, weights) -> MultiLoss:
    classes = tuple(map(len, weights))
    return MultiLoss(classes, False, smoothing=smoothing, class_weights=weights)


@pytest.mark.parametrize("smoothing", HARD)
def test_a_weighted_loss_and_its_gradient_equal_pytorch(smoothing):
    losses = [(SmoothedCrossEntropy(smoothing, "included", WEIGHTS), LABELS)]
    if not smoothing:
        losses.append((CrossEntropy(WEIGHTS), LABELS))
    multi = build_multi_loss(smoothing, (WEIGHTS,))

    def compute_multi_loss(scores, target):
        return multi((scores,), target)

    losses.append((compute_multi_loss, make_targets(1.0)))
    for loss, target in losses:
        value, grad = value_and_grad(loss, 0)(Tensor(SCORES), Tensor(target))
        assert float(value.asnumpy()) == pytest.approx(HARD[smoothing], rel=1e-6)
        np.testing.assert_allclose(grad.asnumpy()[3], GRADIENTS[smoothing], atol=1e-6)


def test_probabilities_give_the_loss_of_their_scores():
    scores = ops.softmax(Tensor(SCORES), -1)
    loss = CrossEntropy(WEIGHTS, before_softmax=False)(scores, Tensor(LABELS))
    assert float(loss.asnumpy()) == pytest.approx(HARD[0.0], rel=1e-5)


@pytest.mark.parametrize("smoothing", MIXED)
def test_the_weighted_loss_of_mixed_targets_equals_pytorch(smoothing):
    partner = (np.arange(6) + 3) % 6
    target = np.stack([LABELS, np.full(6, 0.3), partner], 1).astype(np.float32)
    loss = SmoothedCrossEntropy(smoothing, "included", WEIGHTS)(Tensor(SCORES), Tensor(target))
    assert float(loss.asnumpy()) == pytest.approx(MIXED[smoothing], rel=1e-6)
    multi = build_multi_loss(smoothing, (WEIGHTS,))
    loss = multi((Tensor(SCORES),), Tensor(make_targets(0.3)))
    assert float(loss.asnumpy()) == pytest.approx(FLIPPED[smoothing], rel=1e-6)


def make_sampler(cfg, rows: list) -> TrainSampler:
    return build_sampler(cfg, Runtime(), len(rows), rows)


def test_balanced_weights_are_inverse_to_the_videos_of_each_data_set():
    cfg = load_smoke_config("tsm", "train.class_weights=balanced", "model.num_classes=3",
                            "data.swap_labels=[]", "data.batch=1")  # fmt: skip
    rows = [(0, 0)] * 6 + [(0, 1)] * 3 + [(0, 2)]
    (weights,) = compute_class_weights(cfg, make_sampler(cfg, rows))
    assert weights == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    cfg = load_smoke_config("mvit_multi", "train.class_weights=balanced")
    rows = [(k, label) for k, count in enumerate((8, 4, 6)) for label in range(count)]
    weights = compute_class_weights(cfg, make_sampler(cfg, [*rows, (1, 0)]))
    assert [len(part) for part in weights] == [8, 4, 6]
    assert weights[0] == (1.0,) * 8
    assert weights[1] == pytest.approx([5 / 8, 5 / 4, 5 / 4, 5 / 4])


def test_a_class_without_a_video_cannot_be_balanced():
    cfg = load_smoke_config("tsm", "train.class_weights=balanced", "data.batch=1")
    with pytest.raises(ValueError, match="labels 1, 3, 4 and 3 more"):
        compute_class_weights(cfg, make_sampler(cfg, [(0, 0), (0, 2)]))


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("tsm", ["train.class_weights=[1,2,3]"]),
        ("tsm", ["train.class_weights=heavy"]),
        ("mvit_multi", ["train.class_weights=[1,2]"]),
        ("tsm", ["train.freeze=layer("]),
        ("tsm", ["run.keep_best=top1"]),
        ("x3d", ["run.patience=2"]),
        ("mvit_multi", ["train.layer_decay=1.5"]),
        ("tsm", ["data.erase=0.5", "data.modality=flow", "data.source=frames"]),
        ("x3d", ["data.mixup=0.2", "data.batch=1"]),
    ],
)
def test_a_setting_that_fits_nothing_is_refused_by_name(network, settings):
    """By the name of the first of these settings."""
    with pytest.raises(ValueError, match=settings[0].partition("=")[0]):
        load_smoke_config(network, *settings)
