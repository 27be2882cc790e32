"""TSM against the published original, number by number (tolerances: see each test).

`tsm_r50_8f*.json` were computed by the original; `variants.json` by `golden/reference.py`, an
implementation of its own in PyTorch that reproduces the original's cases.
"""

from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from tsm import convert
from tsm.loss import build_loss
from tsm.lr_generator import parameter_groups
from tsm.model import TSM, freeze_batch_norms
from utils import optim
from utils.config import Run
from utils.runtime import Runtime
from utils.testing import (
    build_state,
    fill,
    fill_input,
    load_case,
    put_state,
    record_taps,
    spread,
    torch_names,
)
from utils.train_step import TrainStep

GOLDEN = Path(__file__).parent / "golden"
SMALL, FULL = load_case(GOLDEN / "tsm_r50_8f_small.json"), load_case(GOLDEN / "tsm_r50_8f.json")
VARIANTS = {case["name"]: case for case in load_case(GOLDEN / "variants.json")}


def settings(case: dict, dropout: float) -> dict:
    """The arguments of TSM for the configuration of a golden case."""
    config = case["config"]
    return {
        "num_classes": config["num_class"],
        "segments": config["num_segments"],
        "arch": config["base_model"],
        "shift_div": config["shift_div"] if config["is_shift"] else 0,
        "shift_place": config["shift_place"],
        "online": config.get("unidirectional", False),
        "temporal_pool": config["temporal_pool"],
        "non_local": config["non_local"],
        "dropout": dropout,
        "consensus": config["consensus"],
        "before_softmax": config["before_softmax"],
        "modality": config["modality"].lower(),
        "frames_per_segment": config["new_length"],
    }


def network(case: dict, training: bool = False) -> TSM:
    """The case's network with its weights; in training every dropout is as good as 0."""
    dropout = case["config"]["dropout"]
    net = TSM(**settings(case, 1e-9 if training and dropout else dropout))
    if "manifest" in case:
        state = build_state(case)
    else:
        shapes = {name: p.shape for name, p in net.parameters_dict().items()}
        names = torch_names(net)
        state = {theirs: fill(theirs, tuple(shapes[ours])) for ours, theirs in names.items()}
        for part, factor in case.get("scale", {}).items():
            state.update({k: v * np.float32(factor) for k, v in state.items() if part in k})
    put_state(net, state, convert)
    return net.set_train(training)


def scores(case: dict) -> np.ndarray:
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    return network(case)(clip).asnumpy()


@pytest.fixture(scope="module")
def small_scores() -> np.ndarray:
    return scores(SMALL)


def test_scores_equal_the_originals(small_scores):
    expected = np.array(SMALL["eval"]["logits"])
    assert np.abs(small_scores - expected).max() <= 1e-4 * spread(expected)


@pytest.mark.slow
def test_scores_at_full_size_equal_the_originals():
    expected = np.array(FULL["eval"]["logits"])
    assert np.abs(scores(FULL) - expected).max() <= 1e-4 * spread(expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_of_every_variant(name):
    case = VARIANTS[name]
    expected = np.array(case["eval"]["logits64"])
    tolerance = 1e-5 if "mobilenet" in name else 1e-4
    assert np.abs(scores(case) - expected).max() <= tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize(
    "case",
    [SMALL, VARIANTS["resnet50_8f_tpool"], VARIANTS["resnet50_8f_nl"], VARIANTS["mobilenetv2_8f"]],
    ids=lambda case: case.get("name", "resnet50_8f"),
)
def test_activations_on_the_way(case):
    taps = {p: v for p, v in case["eval"]["taps"].items() if "avgpool" not in p}
    points = [point.replace("conv1 (input after", "conv1.net (input after") for point in taps]
    points = [point.replace("conv.0 (input after", "conv.0.net (input after") for point in points]
    points = [
        point.replace("layer2 (input after the pool)", "layer2.net (input)") for point in points
    ]
    clip = fill_input(case["input_seed"], case["input_shape"])
    seen = record_taps(network(case), points, clip)
    for point, expected in zip(points, taps.values()):
        x = seen[point]
        scale = max(expected["std"], 1e-3)
        assert list(x.shape) == expected["shape"], point
        assert abs(x.mean() - expected["mean"]) < 1e-4 * scale, point
        assert abs(x.std() - expected["std"]) < 1e-4 * scale, point
        assert np.abs(x.reshape(-1)[:8] - expected["first"]).max() < 1e-3 * scale, point


TRAINED = {
    case.get("name", "resnet50_8f"): case for case in [SMALL, *VARIANTS.values()] if "train" in case
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_loss_gradients_and_buffers(name):
    """Loss 1e-4, gradient norms 2 %, running statistics 1e-3 (float32 against float64: 0.5 %)."""
    case = TRAINED[name]
    net, loss = network(case, training=True), build_loss(before_softmax=True)
    freeze_batch_norms(net, "partial" if case["config"]["partial_bn"] else "trained")
    weights = net.trainable_params()
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    label = Tensor(np.array(case["labels"], np.int32))

    def forward(x, y):
        return loss(net(x), y)

    gradients = ms.jit(ms.value_and_grad(forward, None, ms.ParameterTuple(weights)))
    value, grads = gradients(clip, label)
    train, names = case["train"], torch_names(net)
    assert abs(float(value.asnumpy()) - train["loss64"]) < 1e-4 * max(1, train["loss64"])
    norms = {
        names[p.name]: np.linalg.norm(g.asnumpy().astype(np.float64))
        for p, g in zip(weights, grads)
    }
    assert len(norms) == train.get("trainable_tensors", len(norms))
    largest = max(train["grad_norm64"].values())
    for parameter, expected in train["grad_norm64"].items():
        error = abs(norms[parameter] - expected)
        zero = parameter in train.get("zero_grad", [])
        assert error < (1e-4 * largest if zero else 0.02 * expected), parameter
    values = {names[name]: p for name, p in net.parameters_dict().items() if name in names}
    for buffer, expected in train["buffers"].items():
        if not buffer.endswith("num_batches_tracked"):
            norm = np.linalg.norm(values[buffer].asnumpy())
            assert norm == pytest.approx(expected, rel=1e-3), buffer


def test_frozen_batch_norms_keep_their_statistics():
    case = VARIANTS["resnet18_8f_partial_bn"]
    net = network(case, training=True)
    freeze_batch_norms(net, "partial")
    before = {name: p.asnumpy().copy() for name, p in net.parameters_dict().items()}
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    net(clip).asnumpy()
    names = torch_names(net)
    changed = [
        names[name]
        for name, p in net.parameters_dict().items()
        if not np.array_equal(p.asnumpy(), before[name])
    ]
    expected = [b for b in case["train"]["changed_buffers"] if "num_batches" not in b]
    assert sorted(changed) == sorted(expected)


@pytest.mark.parametrize("part", [pytest.param("step", marks=pytest.mark.slow), "step_decay"])
def test_five_updates_with_the_recipe(part):
    """Losses at 5e-3, lengths of the updates at 5 % where float32 and float64 agree at 2 %."""
    recorded, net = SMALL["train"][part], network(SMALL, training=True)
    recipe = recorded["optimizer"]
    before = {p.name: p.asnumpy().copy() for p in net.trainable_params()}
    train = SimpleNamespace(
        accumulate=1,
        clip_norm=recipe["clip_total_norm"],
        ema=0.0,
        weight_decay=recipe["weight_decay"],
        fast_head=True,
    )
    lr = np.full(5, recipe["lr"])
    weights = net.trainable_params()
    opt = optim.sgd(weights, parameter_groups(weights, train, lr, False), recipe["momentum"])
    step = TrainStep(net, build_loss(True), opt, Run(device="CPU"), train, Runtime(), 5).set_train()
    clip = Tensor(fill_input(SMALL["input_seed"], SMALL["input_shape"]))
    label = Tensor(np.array(SMALL["labels"], np.int32))
    losses = [float(step(clip, label)[0].asnumpy()) for _ in range(5)]
    np.testing.assert_allclose(losses, recorded["losses64"], rtol=5e-3)
    names, checked = torch_names(net), 0
    for parameter in net.trainable_params():
        name = names[parameter.name]
        sure = recorded["delta_norm64"][name]
        if abs(recorded["delta_norm"][name] - sure) < 0.02 * sure:
            moved = parameter.asnumpy().astype(np.float64) - before[parameter.name]
            assert np.linalg.norm(moved) == pytest.approx(sure, rel=0.05), name
            checked += 1
    assert checked > 100
    assert {"new_fc.weight", "new_fc.bias"} <= set(recorded["delta_norm"])
