"""Flat weights against separate ones: the same updates, the same files."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mvit_multi.model import MViT
from scripts.analysis import build_networks
from tests.helpers import load_smoke_config
from utils.config import Run
from utils.nn import layers
from utils.nn.loss import Loss
from utils.runtime import Runtime
from utils.train import amp
from utils.train.flat_weights import FlatWeights
from utils.train.optimizers import SGD, AdamW
from utils.train.train_step import TrainStep

RNG = np.random.RandomState(0)
CLIPS = RNG.randn(6, 4, 3, 8, 8).astype(np.float32)
VIDEOS = RNG.randn(6, 4, 3, 4, 32, 32).astype(np.float32)
LABELS = np.array([0, 1, 1, 0], np.int32)
RATES = np.linspace(0.1, 0.01, 6)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = layers.conv2d(3, 4, 3)
        self.bn1 = layers.BatchNorm2d(4)
        self.conv2 = layers.conv2d(4, 4, 3, bias=True)
        self.bn2 = layers.BatchNorm2d(4)
        self.fc1 = layers.dense(4, 5)
        self.norm = layers.LayerNorm(5, 1e-6)
        self.fc2 = layers.dense(5, 2)

    def construct(self, x):
        x = self.bn1(self.conv1(x))
        x = self.bn2(self.conv2(x)).mean((2, 3))
        return self.fc2(self.norm(self.fc1(x)))


class SquaredError(Loss):
    def construct(self, scores, label):
        return ((scores - 1) ** 2).sum(axis=1).mean()


def build_mvit() -> MViT:
    """Three blocks, with a class token and relative positions."""
    return MViT(
        ["set"],
        num_classes=[2],
        frames=4,
        crop=32,
        depth=3,
        dim=8,
        stage_starts=[1],
        kv_stride=2,
        drop_path=0,
        dropout=0,
        variant="pyslowfast",
        single_head=True,
        cross_projections=False,
        expander=False,
        depthwise_impl="frames",
    )


class ScoresError(SquaredError):
    """Of a network that returns a tuple of scores."""

    def construct(self, scores, label):
        return ((scores[0] - 1) ** 2).sum(axis=1).mean()

    def top1(self, scores, label):
        return ops.zeros((), ms.float32)


def build_step(flat: bool, level: str, mvit: bool = False, **train) -> TrainStep:
    ms.set_seed(0)
    net = build_mvit() if mvit else Net()
    weights = net.trainable_params()
    weights[0].requires_grad = False  # frozen
    weights = net.trainable_params()
    decayed = [weight for weight in weights if weight.ndim > 1]
    others = [weight for weight in weights if weight.ndim == 1]
    groups = [
        {"params": decayed, "lr": RATES, "weight_decay": 0.1},
        {"params": others, "lr": 2 * RATES, "weight_decay": 0.0},
    ]
    optimizer = AdamW(weights, groups) if mvit else SGD(weights, groups=groups, momentum=0.9)
    net = amp.cast(net, level)
    ends = [3, len(weights) - 1]
    defaults = {"accumulation_steps": 1, "clip_norm": 0.0, "ema_decay": 0.0}
    step = TrainStep(
        net,
        loss=ScoresError() if mvit else SquaredError(),
        optimizer=optimizer,
        run=Run(device="CPU", loss_scale=1024.0),
        train=SimpleNamespace(**{**defaults, **train}),
        rt=Runtime(),
        steps_per_epoch=len(CLIPS),
        flat=FlatWeights(net, optimizer, ends) if flat else None,
    )
    return step.set_train()


def feed(step: TrainStep, clips: np.ndarray) -> dict[str, np.ndarray]:
    for clip in clips:
        step(Tensor(clip), Tensor(LABELS))
    return {name: value.asnumpy().copy() for name, value in step.state().items()}


def assert_equal(expected: dict, actual: dict) -> None:
    assert list(expected) == list(actual)
    for name, value in expected.items():
        assert value.dtype == actual[name].dtype
        np.testing.assert_array_equal(value, actual[name], err_msg=name)


@pytest.mark.parametrize(
    ("level", "train"),
    [
        ("O2", {"ema_decay": 0.9}),
        ("O2", {"mvit": True}),
        pytest.param("O0", {"mvit": True, "ema_decay": 0.9}, marks=pytest.mark.slow),
        pytest.param("O3", {"mvit": True, "accumulation_steps": 2}, marks=pytest.mark.slow),
        pytest.param("O0", {"accumulation_steps": 2}, marks=pytest.mark.slow),
        pytest.param("O3", {}, marks=pytest.mark.slow),
        pytest.param("O1", {"accumulation_steps": 4}, marks=pytest.mark.slow),
    ],
)
def test_flat_weights_change_no_bit_and_no_name_and_resume(level, train):
    clips = VIDEOS if train.get("mvit") else CLIPS
    expected = feed(build_step(False, level, **train), clips)
    step = build_step(True, level, **train)
    assert 1 < len(step.updater.parameters) < len(step.optimizer.parameters)
    start = feed(step, clips[:4])
    assert_equal(expected, feed(step, clips[4:]))
    # Another process continues from the saved state.
    step = build_step(True, level, **train)
    for name, value in step.state().items():
        value.set_data(Tensor(start[name], value.dtype))
    step.collect_weights()
    assert_equal(expected, feed(step, clips[4:]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "train.optimizer=lars train.nesterov=false",
            "run.flat_weights is for sgd and adamw only",
        ),
        ("run.mode=eager", "run.flat_weights needs run.mode: graph"),
    ],
)
def test_what_flat_weights_do_not_support_is_one_line(settings, message):
    cfg = load_smoke_config("resnet50", *settings.split(), "run.flat_weights=true")
    with pytest.raises(ValueError, match=message):
        build_networks.build_train_step("resnet50", cfg, Runtime())
