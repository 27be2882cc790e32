"""The train step against numpy, for a small linear regression."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from utils.nn.dropout import Dropout
from utils.nn.kernels.ascend import StatusFlagCheck
from utils.nn.loss import Loss
from utils.runtime import Runtime
from utils.settings import Run
from utils.train.adaptive import LARS
from utils.train.gradients import choose_packing
from utils.train.train_step import TrainStep

RNG = np.random.RandomState(0)
BATCHES = [(RNG.randn(4, 3).astype(np.float32), np.array([0, 1, 1, 0], np.int32)) for _ in range(7)]
START = RNG.randn(2, 3).astype(np.float32)


class Linear(nn.Cell):
    def __init__(self, p: float = 0.0):
        super().__init__()
        self.fc = nn.Dense(3, 2, weight_init=Tensor(START), has_bias=False)
        self.dropout = Dropout(p, 3)

    def construct(self, x):
        return self.fc(self.dropout(x))


class SquaredError(Loss):
    """Mean over clips of the squared scores, for any labels: its gradient is simple."""

    def construct(self, scores, label):
        return (scores * scores).sum(axis=1).mean()


def compute_gradient(read_weight, x):
    return 2 * (x @ read_weight.T).T @ x / len(x)


def build_step(
    accumulation_steps=1,
    clip_norm=0.0,
    ema_decay=0.0,
    steps_per_epoch=7,
    p=0.0,
    loss=None,
    optimizer=lambda weights: nn.SGD(weights, 0.1),
    **run,
):
    net = Linear(p)
    train = SimpleNamespace(
        accumulation_steps=accumulation_steps, clip_norm=clip_norm, ema_decay=ema_decay
    )
    run = Run(device="CPU", **run)
    loss = loss or SquaredError()
    step = TrainStep(
        net,
        loss=loss,
        optimizer=optimizer(net.trainable_params()),
        run=run,
        train=train,
        rt=Runtime(),
        steps_per_epoch=steps_per_epoch,
        clips=4,
    )
    return step.set_train()


def read_weight(step):
    return step.net.fc.weight.asnumpy().copy()


def feed(step, batches):
    rows = []
    for x, y in batches:
        factors = step.make_dropout_factors(4 * int(step.micro_step.asnumpy()))
        rows.append(step(Tensor(x), Tensor(y), *factors).asnumpy().tolist())
    return rows


def assert_equal_updates(step: TrainStep, scaled: TrainStep, batches: list) -> None:
    """The loss scale changes neither losses nor weights."""
    losses, scaled_losses = ([row[0] for row in feed(s, batches)] for s in (step, scaled))
    np.testing.assert_allclose(losses, scaled_losses, rtol=1e-6)
    np.testing.assert_allclose(read_weight(step), read_weight(scaled), rtol=1e-6)


def test_a_plain_step_is_gradient_descent_with_any_loss_scale():
    step = build_step()
    expected = START.copy()
    for x, _ in BATCHES[:3]:
        expected -= 0.1 * compute_gradient(expected, x)
    assert_equal_updates(step, build_step(loss_scale=1024.0), BATCHES[:3])
    np.testing.assert_allclose(read_weight(step), expected, rtol=1e-5, atol=1e-6)


SHAPES = [(2, 3), (4,), (1, 2, 2), (2,), (3,)]


@pytest.mark.parametrize(
    ("size", "ends", "packed_values"),
    [
        (1, [4], [[1] * 4 + [3] * 2 + [4] * 3, [0] * 6, [2] * 4]),  # the one-dimensional ones
        (2, [4], [[0] * 6 + [1] * 4 + [2] * 4 + [3] * 2 + [4] * 3]),
        (2, [1, 4], [[0] * 6 + [1] * 4, [2] * 4 + [3] * 2 + [4] * 3]),
        (2, [0, 3, 4], [[0] * 6, [1] * 4 + [2] * 4 + [3] * 2, [4] * 3]),
    ],
)
def test_packed_gradients_are_unpacked_in_their_order(size, ends, packed_values):
    weights = tuple(Parameter(Tensor(np.zeros(shape, np.float32))) for shape in SHAPES)
    packing = choose_packing(weights, ends, Runtime(size=size))
    grads = tuple(Tensor(np.full(shape, i, np.float32)) for i, shape in enumerate(SHAPES))
    packed = packing(grads)
    assert [array.asnumpy().ravel().tolist() for array in packed] == packed_values
    for i, grad in enumerate(packing.unpack(packed)):
        np.testing.assert_array_equal(grad.asnumpy(), np.full(SHAPES[i], i))


def test_accumulation_averages_gradients_and_the_remainder_of_an_epoch_is_an_update():
    """Seven batches by three: updates after 3, 6 and 7, the last from one batch; two epochs."""
    step = build_step(accumulation_steps=3)
    expected = START.copy()
    for epoch in range(2):
        for group in ([0, 1, 2], [3, 4, 5], [6]):
            mean = np.mean([compute_gradient(expected, BATCHES[i][0]) for i in group], axis=0)
            before = read_weight(step)
            feed(step, [BATCHES[i] for i in group[:-1]])
            np.testing.assert_array_equal(read_weight(step), before)
            feed(step, [BATCHES[group[-1]]])
            expected -= 0.1 * mean
            np.testing.assert_allclose(read_weight(step), expected, rtol=1e-4, atol=1e-6)
            assert not step.grad_sums[0].asnumpy().any(), f"epoch {epoch}: sums must be zero"


def test_clipping_limits_the_total_norm_with_any_loss_scale():
    plain = build_step(clip_norm=0.5)
    scaled = build_step(clip_norm=0.5, loss_scale=2.0**12)
    full = compute_gradient(START, BATCHES[0][0])
    expected = START - 0.1 * full * min(1, 0.5 / (np.linalg.norm(full) + 1e-6))
    assert_equal_updates(plain, scaled, BATCHES[:1])
    np.testing.assert_allclose(read_weight(plain), expected, rtol=1e-5)
    assert_equal_updates(plain, scaled, BATCHES[1:2])


INFINITE_BATCH = (np.full((4, 3), np.inf, np.float32), BATCHES[0][1])


def test_an_overflow_skips_the_update_and_is_counted():
    step = build_step(ema_decay=0.5)
    before = read_weight(step)
    average = step.ema.means[0].asnumpy().copy()
    assert [row[3] for row in feed(step, [INFINITE_BATCH, INFINITE_BATCH])] == [1, 2]
    np.testing.assert_array_equal(read_weight(step), before)
    np.testing.assert_array_equal(step.ema.means[0].asnumpy(), average)
    assert feed(step, BATCHES[:1])[0][3] == 0


def test_an_overflow_in_one_micro_batch_skips_one_update_only():
    step = build_step(accumulation_steps=3)
    before = read_weight(step)
    feed(step, [BATCHES[0], INFINITE_BATCH, BATCHES[1]])
    np.testing.assert_array_equal(read_weight(step), before)
    feed(step, BATCHES[2:5])
    assert np.isfinite(read_weight(step)).all()
    assert not np.array_equal(read_weight(step), before)


class SaturatingLoss(Loss):
    """The squared error on a 910A: large numbers saturate, and only a flag shows it."""

    def __init__(self):
        super().__init__()
        self.flag = Parameter(Tensor(0.0), name="flag", requires_grad=False)

    def construct(self, scores, label):
        overflow = (scores.abs().max() > 1e3).astype(ms.float32)
        ms.ops.assign(self.flag, ms.ops.maximum(self.flag, overflow))
        return (ms.ops.clamp(scores, -1e3, 1e3) ** 2).sum(axis=1).mean()


class FlagCheck(StatusFlagCheck):
    """The check of a 910A, with the flag of a loss in place of the device's flags."""

    def __init__(self, flag):
        super().__init__()
        self.flag = flag

    def clear_flags(self):
        return ms.ops.assign(self.flag, 0.0)

    def are_flags_clear(self, after):
        return ms.ops.depend(self.flag, after) == 0


@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_a_saturated_micro_batch_skips_one_update_only(accumulation_steps):
    """The device's flags are cleared before each micro-batch, so the step has to count them."""
    loss = SaturatingLoss()
    step = build_step(accumulation_steps, steps_per_epoch=6, loss=loss)
    step.check = step.sync.check = FlagCheck(loss.flag)
    step.counts_flags = True
    for position in range(accumulation_steps):
        before = read_weight(step)
        batches = BATCHES[:accumulation_steps]
        batches[position] = (1e4 * batches[position][0], batches[position][1])
        assert feed(step, batches)[-1][3] == 1
        np.testing.assert_array_equal(read_weight(step), before)
        assert feed(step, BATCHES[3 : 3 + accumulation_steps])[-1][3] == 0
        assert not np.array_equal(read_weight(step), before)


def test_a_dynamic_loss_scale_halves_at_overflow():
    step = build_step(loss_scale=1024.0, dynamic_loss_scale=True)
    assert feed(step, [INFINITE_BATCH])[0][2] == 512


def test_the_average_of_the_weights_moves_once_per_update():
    step = build_step(accumulation_steps=2, ema_decay=0.9, steps_per_epoch=6)
    mean = START.copy()
    for i in (0, 2):
        feed(step, BATCHES[i : i + 2])
        mean = 0.9 * mean + 0.1 * read_weight(step)
        np.testing.assert_allclose(step.ema_parameters()["fc.weight"].asnumpy(), mean, rtol=1e-5)


RATES = np.array([0.5, 2.0, 8.0, 1.0, 0.25, 0.5, 1.0])


def build_lars(weights: list) -> LARS:
    group = {"params": weights, "lr": RATES, "weight_decay": 0.05, "adapted": True}
    return LARS(weights, groups=[group], momentum=0.9, trust=0.02)


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulation_steps": 2, "ema_decay": 0.9, "p": 0.5}
        | {"dynamic_loss_scale": True, "loss_scale": 8.0},
        {"optimizer": build_lars},
    ],
    ids=["all", "lars"],
)
def test_the_saved_state_continues_a_run_bit_for_bit(settings):
    reference = build_step(**settings)
    target = build_step(**settings)
    feed(reference, BATCHES[:4])
    for name, parameter in target.state().items():
        parameter.set_data(Tensor(reference.state()[name].asnumpy()))
    for step in (reference, target):
        feed(step, BATCHES[4:])
    for name, parameter in reference.state().items():
        np.testing.assert_array_equal(parameter.asnumpy(), target.state()[name].asnumpy(), name)
    if "optimizer" in settings:
        assert {"momentum.fc.weight", "global_step"} <= set(target.state())


def test_dropout_masks_differ_from_step_to_step_and_are_not_saved():
    step = build_step(p=0.5)
    frozen = read_weight(step)
    losses = []
    for _ in range(2):
        losses.append(feed(step, BATCHES[:1])[0][0])
        step.net.fc.weight.set_data(Tensor(frozen))
    assert losses[0] != losses[1]
    assert not any("dropout" in name for name in step.state())
