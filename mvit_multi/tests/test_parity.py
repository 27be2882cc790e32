"""MViTv2, several data sets and one, against the published originals.

The originals computed `mvit_*.json`. The reference `golden/reference.py`, a separate implementation
in PyTorch that reproduces the originals' cases, computed `variants.json`.
"""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from mvit_multi.attention import ChannelsFirstDense
from mvit_multi.heads import list_projection_pairs
from mvit_multi.model import MViT
from mvit_multi.tests.golden_case import MViTCase
from tests.golden_cases import get_shapes, load_case, map_torch_names, read_expected_scores
from tests.separate_process import in_separate_process
from utils.tests import parity

GOLDEN = Path(__file__).parent / "golden"
SMALL = {
    "relative": load_case(GOLDEN / "mvit_multi_small.json"),
    "released": load_case(GOLDEN / "mvit_multi_small_abspos.json"),
    "plain": load_case(GOLDEN / "mvit_v2_small.json"),
}
FULL = load_case(GOLDEN / "mvit_multi_b_32x3.json")
CASES = {**SMALL, "full size": FULL, **load_case(GOLDEN / "variants.json")}


@pytest.mark.parametrize("name", parity.mark_slow_except(CASES, "released", "plain"))
def test_probabilities_and_activations_equal_the_reference(name):
    """All probabilities within 1e-5; a missing part of the network changes them by 1e-3.

    The cases include plain MViTv2-S, the depth of B, one, two, three and four data sets.
    """
    case = CASES[name]
    net = MViTCase(CASES[name]).build_model()
    parity.assert_scores(net, case=case, expected=read_expected_scores(case), limit=1e-5)
    if name in SMALL:
        assert_activations_of_cells(net, case)


def assert_activations_of_cells(net: MViT, case: dict) -> None:
    """Arrays with channels first are transposed to the order of the original."""
    cells = dict(net.cells_and_names())
    taps = case["eval"]["taps"]
    compared = [point for point in taps if point in cells and point != "expander"]  # training only
    assert len(compared) > 15

    def reorder(point: str, x: np.ndarray):
        if x.size != np.prod(taps[point]["shape"]):
            return None  # queries, keys and values are computed one after the other
        x = x.swapaxes(1, 2) if isinstance(cells[point], ChannelsFirstDense) else x
        return x.reshape(taps[point]["shape"])

    parity.assert_activations(
        net, case=case, cell_name=lambda point: point if point in compared else "", reorder=reorder
    )


TRAINED = [name for name, case in CASES.items() if "train" in case]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
@in_separate_process
def test_scores_loss_and_gradients_equal_the_reference(name):
    assert_training(CASES[name])


@pytest.mark.slow
@in_separate_process
def test_a_training_step_on_the_cpu_kernels_equals_the_reference():
    with parity.use_cpu_kernels():
        assert_training(CASES["plain"])


def assert_training(case: dict) -> None:
    """Tolerances: scores 1e-4, loss 1e-5; gradient norms 1e-4 relative, or 1e-6 absolute for noise.

    The variants include: four data sets of which one is absent, all clips of one data set with
    projections added to scores, and no projections.
    """
    net = MViTCase(case).build_model(training=True)
    train = case["train"]
    inputs = parity.make_clip(case), Tensor(MViTCase(case).build_target())
    value, outputs, norms = parity.compute_gradients(net, MViTCase(case).build_loss(), *inputs)
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


@pytest.mark.parametrize("name", parity.mark_slow_except(SMALL, "released"))
@in_separate_process
def test_five_updates_of_adamw_equal_the_originals(name):
    """With gradient clipping at 1: the loss before each of five updates."""
    case = CASES[name]
    step = MViTCase(case).build_train_step("step")
    recorded = case["train"]["step"]
    inputs = parity.make_clip(case), Tensor(MViTCase(case).build_target())
    losses = [float(step(*inputs)[0].asnumpy()) for _ in range(5)]
    noise = np.abs(np.divide(recorded["losses"], recorded["losses64"]) - 1).max()
    np.testing.assert_allclose(losses, recorded["losses64"][:5], rtol=1e-5 + 3 * noise)


@parity.without_values
def test_names_and_shapes_equal_the_originals():
    net = MViT(**MViTCase(FULL).model_arguments())
    names = map_torch_names(net)
    expected = {name: tuple(shape) for name, shape, _ in FULL["manifest"]}
    assert {names[name]: shape for name, shape in get_shapes(net).items()} == expected
    assert parity.count_trained(net) == (64_297_643, 538)
