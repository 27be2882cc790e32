"""MViTv2, several data sets and one, against the published originals."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from mvit_multi.attention import ChannelsFirstDense
from mvit_multi.golden_case import build_loss, build_network, build_target, build_train_step
from mvit_multi.heads import list_projection_pairs
from tests.separate_process import in_separate_process
from utils.testing.golden import compute_scores, load_case, map_torch_names, read_expected_scores
from utils.tests.parity import assert_activations, compute_gradients, make_clip

GOLDEN = Path(__file__).parent / "golden"
SMALL = [
    load_case(GOLDEN / f"{name}.json")
    for name in ("mvit_multi_small", "mvit_multi_small_abspos", "mvit_v2_small")
]
IDS = ["relative", "released", "plain"]
VARIANTS = load_case(GOLDEN / "variants.json")
FULL = load_case(GOLDEN / "mvit_multi_b_32x3.json")


def mark_slow_except(names, *quick: str) -> list:
    """Parameters of a test; all except `quick` are marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def assert_probabilities(case: dict, depthwise_impl: str = "frames") -> None:
    """All probabilities within 1e-5; a missing part of the network changes them by 1e-3."""
    result = compute_scores(build_network(case, depthwise_impl=depthwise_impl), make_clip(case))
    expected = read_expected_scores(case)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < 1e-5


@pytest.mark.parametrize("case", SMALL, ids=IDS)
def test_probabilities_equal_the_originals(case):
    assert_probabilities(case)


@pytest.mark.slow
@pytest.mark.parametrize("depthwise_impl", ["taps", "grouped"])
def test_probabilities_of_every_form_of_the_pooling_equal_the_originals(depthwise_impl):
    assert_probabilities(SMALL[0], depthwise_impl)


@pytest.mark.slow
def test_probabilities_at_full_size_equal_the_originals():
    assert_probabilities(FULL)


@pytest.mark.parametrize("case", SMALL, ids=IDS)
def test_activations_of_cells_equal_the_originals(case):
    """Arrays with channels first are transposed to the order of the original."""
    net = build_network(case)
    cells = dict(net.cells_and_names())
    left_out = ("expander",)  # evaluation does not compute it
    taps = {p: tap for p, tap in case["eval"]["taps"].items() if p in cells and p not in left_out}
    assert len(taps) > 15

    def reorder(point: str, x: np.ndarray):
        if x.size != np.prod(taps[point]["shape"]):
            return None  # queries, keys and values are computed one after the other
        x = x.swapaxes(1, 2) if isinstance(cells[point], ChannelsFirstDense) else x
        return x.reshape(taps[point]["shape"])

    assert_activations(net, taps, make_clip(case), reorder)


@pytest.mark.parametrize("name", mark_slow_except(VARIANTS, "single"))
def test_probabilities_of_other_depths_and_mixes_equal_the_reference(name):
    """Plain MViTv2-S, the depth of B, one, two, three and four data sets."""
    assert_probabilities(VARIANTS[name])


TRAINED = {
    **dict(zip(IDS, SMALL)),
    **{name: case for name, case in VARIANTS.items() if "train" in case},
}


@pytest.mark.parametrize("name", mark_slow_except(TRAINED, "released", "plain"))
@in_separate_process
def test_scores_loss_and_gradients_equal_the_reference(name):
    """Tolerances: scores 1e-4, loss 1e-5; gradient norms 1e-4 relative, or 1e-6 absolute for noise.

    The variants include: four data sets of which one is absent, all clips of one data set with
    projections added to scores, and no projections.
    """
    case = TRAINED[name]
    net, train = build_network(case, training=True), case["train"]
    inputs = make_clip(case), Tensor(build_target(case))
    value, outputs, norms = compute_gradients(net, build_loss(case), *inputs)
    assert value == pytest.approx(train["loss"], rel=1e-5)
    logits = case["eval"]["logits"]
    heads = list(logits.values()) if isinstance(logits, dict) else [logits]
    for result, expected in zip(outputs, heads):
        np.testing.assert_allclose(result.asnumpy(), expected, atol=1e-4)
    if "projected_logits" in train:
        names = list(logits)
        for (s, t), result in zip(list_projection_pairs(names), outputs[len(names) :]):
            expected = train["projected_logits"][f"{names[s]}_{names[t]}"]
            np.testing.assert_allclose(result.asnumpy(), expected, atol=1e-4)
    assert set(norms) == set(train["grad_norm"])
    for name, expected in train["grad_norm"].items():
        assert norms[name] == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("name", mark_slow_except(IDS, "released"))
@in_separate_process
def test_five_updates_of_adamw_equal_the_originals(name):
    """With gradient clipping at 1: the loss before each of five updates."""
    case = TRAINED[name]
    step, recorded = build_train_step(case, "step"), case["train"]["step"]
    inputs = make_clip(case), Tensor(build_target(case))
    losses = [float(step(*inputs)[0].asnumpy()) for _ in range(5)]
    noise = np.abs(np.divide(recorded["losses"], recorded["losses64"]) - 1).max()
    np.testing.assert_allclose(losses, recorded["losses64"][:5], rtol=1e-5 + 3 * noise)


def test_names_and_shapes_equal_the_originals():
    """538 tensors, 64,297,643 parameters, in the original's names and shapes."""
    net = build_network(FULL)
    names = map_torch_names(net)
    result = {names[p.name]: list(p.shape) for p in net.trainable_params()}
    assert result == {name: shape for name, shape, _ in FULL["manifest"]}
    assert sum(p.size for p in net.trainable_params()) == 64_297_643
