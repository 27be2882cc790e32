"""Optimizers: LARS against its formula in float64; SGD and AdamW on Ascend."""

import re

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from scripts.analysis.build_networks import build_train_step
from utils.networks import find_network
from utils.nn import kernels
from utils.nn.kernels import ascend
from utils.nn.kernels.ascend import Ascend
from utils.nn.kernels.plain import Plain
from utils.runtime import Runtime
from utils.tests.train.test_freeze import load_small_config
from utils.train import adaptive, optimizers
from utils.train.adaptive import LARS

RNG = np.random.RandomState(0)
SHAPES = {"conv.weight": (4, 3, 3, 3), "bn.gamma": (4,), "fc.weight": (5, 4), "fc.bias": (5,)}
START = {name: RNG.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}
# They go up and down: the position of the rate in the formula matters.
RATES = np.array([0.5, 2.0, 8.0, 1.0, 0.25])
MOMENTUM = 0.9
DECAY = 0.05
TRUST = 0.02
EPS = 1e-3
ADAPTED = ("conv.weight", "fc.weight")


def build_lars(start: dict, spared_decay: float = 0.0, eps: float = EPS) -> LARS:
    """Two groups that are interleaved in the network's order, the second of them not adapted."""
    parameters = [Parameter(Tensor(value), name=name) for name, value in start.items()]
    adapted = [p for p in parameters if p.name in ADAPTED]
    spared = [p for p in parameters if p.name not in ADAPTED]
    groups = [
        {"params": adapted, "lr": RATES, "weight_decay": DECAY, "adapted": True},
        {"params": spared, "lr": 3 * RATES, "weight_decay": spared_decay, "adapted": False},
    ]
    return LARS(parameters, groups=groups, momentum=MOMENTUM, trust=TRUST, eps=eps)


def compute_step(weight, buffer, gradient, rate, decay, adapted, eps=EPS) -> tuple:
    """(weight, buffer) after one step of arXiv:1708.03888, algorithm 1."""
    local = 1.0
    size = np.sqrt((weight**2).sum())
    slope = np.sqrt((gradient**2).sum())
    if adapted and size > 0 and slope > 0:
        local = TRUST * size / (slope + DECAY * size + eps)
    buffer = MOMENTUM * buffer + rate * local * (gradient + decay * weight)
    return weight - buffer, buffer


def make_gradients(update: int) -> dict:
    """Gradients of very different sizes from layer to layer: the case for LARS."""
    rng = np.random.RandomState(update)
    sizes = {"conv.weight": 100.0, "bn.gamma": 0.1, "fc.weight": 1e-3, "fc.bias": 1.0}
    return {k: (sizes[k] * rng.randn(*s)).astype(np.float32) for k, s in SHAPES.items()}


def run_update(optimizer: LARS, update: int, **changes) -> dict:
    """Makes one update; returns its gradients."""
    result = {**make_gradients(update), **changes}
    optimizer(tuple(Tensor(value) for value in result.values()))
    return result


def read_values(optimizer: LARS) -> dict:
    return {p.name: p.asnumpy().copy() for p in optimizer.parameters}


@pytest.mark.parametrize("spared_decay", [0.0, 0.3])
def test_updates_equal_the_formula_in_float64(spared_decay):
    optimizer = build_lars(START, spared_decay)
    assert [p.name for p in optimizer.parameters] == list(SHAPES), "the network's order"
    expected = {name: (value.astype(float), 0.0) for name, value in START.items()}
    for update, rate in enumerate(RATES):
        result = run_update(optimizer, update)
        for name in SHAPES:
            options = (rate, DECAY, True) if name in ADAPTED else (3 * rate, spared_decay, False)
            expected[name] = compute_step(*expected[name], result[name].astype(float), *options)
        for name, value in read_values(optimizer).items():
            np.testing.assert_allclose(value, expected[name][0], rtol=2e-5, atol=2e-6, err_msg=name)
    for parameter, buffer in zip(optimizer.parameters, optimizer.buffers):
        expected_buffer = expected[parameter.name][1]
        np.testing.assert_allclose(buffer.asnumpy(), expected_buffer, rtol=2e-5, atol=2e-6)


def test_the_local_rate_is_1_if_a_norm_is_0():
    start = {**START, "conv.weight": np.zeros(SHAPES["conv.weight"], np.float32)}
    optimizer = build_lars(start, eps=0.0)
    result = run_update(optimizer, 0, **{"fc.weight": np.zeros(SHAPES["fc.weight"], np.float32)})
    after = read_values(optimizer)
    # Zero weights make the plain step; a zero gradient makes the plain decay.
    np.testing.assert_allclose(after["conv.weight"], -RATES[0] * result["conv.weight"], rtol=1e-6)
    expected = START["fc.weight"] * (1 - RATES[0] * DECAY)
    np.testing.assert_allclose(after["fc.weight"], expected, rtol=1e-6)
    both = build_lars({name: np.zeros_like(value) for name, value in START.items()}, eps=0.0)
    run_update(both, 0, **{name: np.zeros_like(value) for name, value in START.items()})
    assert not any(value.any() for value in read_values(both).values())


def test_a_loss_scale_is_folded_into_sgd_without_a_rounding_error():
    """Three updates from gradients times 1024 equal those from the gradients, bit for bit."""
    ends = []
    for scale in (1.0, 1024.0):
        rng = np.random.RandomState(0)
        weight = Parameter(Tensor(rng.randn(5, 3).astype(np.float32)), name="w")
        group = {"params": [weight], "lr": [0.1, 0.05, 0.02], "weight_decay": 1e-3}
        opt = optimizers.SGD([weight], [group], 0.9)
        assert opt.fold_scale(scale)
        for _ in range(3):
            opt((Tensor((scale * rng.randn(5, 3)).astype(np.float32)),))
        ends.append(weight.asnumpy())
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize(("scale", "nesterov"), [(1000.0, False), (2.0**30, False), (8.0, True)])
def test_a_loss_scale_is_not_folded_if_that_would_round(scale, nesterov):
    weight = Parameter(Tensor(np.zeros(2, np.float32)), name="w")
    group = {"params": [weight], "lr": [0.1], "weight_decay": 1e-3}
    opt = optimizers.SGD([weight], groups=[group], momentum=0.9, nesterov=nesterov)
    assert not opt.fold_scale(scale)


class ProductInPlace(nn.Cell):
    """The operator InplaceMul of Ascend."""

    def construct(self, weight, factor):
        return ops.assign(weight, weight * factor)


def run_adamw(back_end, factor: float) -> list[np.ndarray]:
    """Three updates of two weights with fixed gradients; `factor`: of the second's rates."""
    rng = np.random.RandomState(0)
    weights = [Parameter(Tensor(rng.randn(4, 3).astype(np.float32)), name=f"w{i}") for i in (0, 1)]
    start = weights[1].asnumpy().copy()
    rates = [0.1, 0.05, 0.02]
    groups = [
        {"params": [weight], "lr": np.multiply(rates, scale), "weight_decay": decay}
        for weight, scale, decay in zip(weights, (1.0, factor), (0.05, 0.0))
    ]
    with kernels.use(back_end):
        opt = adaptive.AdamW(weights, groups)
    for _ in rates:
        opt(tuple(Tensor(rng.randn(4, 3).astype(np.float32)) for _ in weights))
    return [weights[0].asnumpy(), weights[1].asnumpy() - start]


def test_adamw_for_ascend_equals_the_usual_adamw(monkeypatch):
    """Without decay the way of a weight is in proportion to the rates of its group."""
    monkeypatch.setattr(ascend, "InplaceMul", ProductInPlace)
    ends = [run_adamw(back_end, 1.0) for back_end in (Plain(), Ascend())]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)
    slow = [run_adamw(back_end, 0.25) for back_end in (Plain(), Ascend())]
    for weight, way in slow:
        np.testing.assert_allclose(weight, ends[0][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(way, 0.25 * ends[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("network", "settings"),
    [("tsm", ""), ("x3d", ""), ("resnet50", ""),
     ("resnet50", "train.optimizer=lars train.nesterov=false"),
     ("mvit_multi", ""), ("mvit_multi", "train.layer_decay=0.5")],
)  # fmt: skip
def test_the_classifier_learns_at_a_multiple_of_the_rate(network, settings):
    moves = []
    for factor in (1, 4):
        more = ["train.warmup_epochs=0", f"train.head_lr_mult={factor}", *settings.split()]
        cfg = load_small_config(network, *more)
        optimizer = build_train_step(network, cfg, Runtime()).optimizer
        for weight in optimizer.parameters:
            weight.set_data(ops.zeros_like(weight))
        optimizer(tuple(ops.ones_like(weight) for weight in optimizer.parameters))
        moves.append({weight.name: weight.asnumpy() for weight in optimizer.parameters})
    for name, move in moves[0].items():
        ratio = 4 if re.search(find_network(network).classifier, name) else 1
        assert np.abs(move).max() > 0
        np.testing.assert_allclose(moves[1][name], ratio * move, rtol=1e-5, err_msg=name)
