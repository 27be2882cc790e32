"""Names, counts and conversion; both forms of the depthwise convolution."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from scripts.analysis.activations import set_weights
from tests import golden_cases as golden
from utils.nn.conv3d import DepthwiseConv3d
from utils.tests.parity import assert_scores
from utils.weights.convert import NORM, convert
from x3d.model import X3D
from x3d.network import NETWORK

MINDVIDEO = Path(__file__).parent / "golden" / "mindvideo_x3d.json"
SMALL = {"num_classes": 5, "frames": 3, "crop": 40, "dropout": 0.0}


@pytest.mark.usefixtures("eager")
def test_mindvideos_weights_give_mindvideos_probabilities():
    """The recorded probabilities are of mindvideo's own network; all its kernels are dense."""
    case = golden.load_case(MINDVIDEO)
    torch_leaves = {ours: theirs for theirs, ours in NORM.items()}
    source = {}
    for name, shape in case["shapes"].items():
        module, _, leaf = name.rpartition(".")
        torch_name = f"{module}.{torch_leaves.get(leaf, leaf)}"
        source[name] = golden.generate_weight(torch_name, tuple(shape))
    small = {**SMALL, "depth_factor": 0.4}
    net = X3D(**small, depthwise_impl="dense", stem_impl="dense").set_train(False)
    converted = convert(source, golden.get_shapes(net), NETWORK)
    assert converted.missing == converted.dropped == []
    set_weights(net, converted.arrays)
    expected = golden.read_expected_scores(case)
    assert_scores(net, case=case, expected=expected, limit=1e-5 * np.ptp(expected))
    with pytest.raises(ValueError, match=r"branch2.b.weight is \[54, 54, 3, 3, 3\] instead of"):
        convert(source, golden.get_shapes(X3D(**small)), NETWORK)


@pytest.mark.parametrize("zero_init", [True, False])
def test_initial_weights_follow_the_original(zero_init):
    """Kernels are scaled by all output channels; the last norm of a block starts at 0 or 1."""
    ms.set_seed(0)
    net = X3D(**SMALL, zero_init=zero_init)
    kernel = net.s2.pathway0_res0.branch2.b.weight.asnumpy()
    assert kernel.std() == pytest.approx((2 / (54 * 27)) ** 0.5, rel=0.1)
    assert net.head.projection.weight.asnumpy().std() == pytest.approx(0.01, rel=0.1)
    for name, parameter in net.parameters_dict().items():
        if name.endswith(".gamma"):
            starts_at_zero = name.endswith("c_bn.gamma") and zero_init
            assert (parameter.asnumpy() == (0 if starts_at_zero else 1)).all(), name
        elif name.endswith((".beta", ".bias")):
            assert not parameter.asnumpy().any(), name


def compute_value_and_gradients(cell: DepthwiseConv3d, x: Tensor) -> list:
    """The output, and the gradients of input and weight of the sum of its squares."""

    def forward(x):
        y = cell(x)
        return ops.square(y).sum(), y

    gradients = ms.value_and_grad(forward, 0, cell.weight, has_aux=True)
    (_, y), (dx, dw) = ms.jit(gradients)(x)
    return [value.asnumpy() for value in (y, dx, dw)]


@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3, 3), 1), ((3, 3, 3), 2), ((5, 1, 1), 1), ((1, 5, 3), 2)]
)
def test_all_forms_of_the_depthwise_convolution_are_equal(kernel, stride):
    """They have the same value and the same gradients."""
    x = Tensor(golden.generate_input(1, (2, 6, 4, 9, 10)))
    results = []
    for form in ("taps", "grouped", "frames"):
        cell = DepthwiseConv3d(6, kernel=kernel, stride=stride, impl=form)
        cell.weight.set_data(Tensor(golden.generate_weight("w.weight", tuple(cell.weight.shape))))
        results.append(compute_value_and_gradients(cell, x))
    for reference, *others in zip(*results):
        for other in others:
            np.testing.assert_allclose(reference, other, rtol=1e-4, atol=1e-4)
