"""Fusion of batch norms into convolutions removes all norms and keeps the golden scores."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.golden_cases import (
    compute_scores,
    find_case,
    generate_input,
    load_case,
    read_expected_scores,
)
from utils.files import ROOT
from utils.networks import list_networks
from utils.nn.fuse_conv_bn import fuse_conv_bn
from utils.tests.parity import mark_slow_except


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("network", mark_slow_except(list_networks(), "resnet50"))
def test_fused_networks_give_the_golden_scores(network):
    case = load_case(sorted((ROOT / network / "tests" / "golden").glob("*_small.json"))[0])
    net = fuse_conv_bn(find_case(network, case).build_model())
    assert not [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    clip = Tensor(generate_input(case["input_seed"], case["input_shape"]))
    result = compute_scores(net.set_train(False), clip)
    expected = read_expected_scores(case)
    assert np.abs(result - expected).max() <= 1e-4 * np.ptp(expected)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("has_bias", [False, True])
def test_fusion_uses_eps_if_variances_are_tiny(has_bias):
    """Channels that are almost 0 everywhere have variances as small as eps."""
    conv = nn.Conv2d(3, 4, 1, has_bias=has_bias)
    norm = nn.BatchNorm2d(4, eps=3e-5)
    numbers = np.random.RandomState(1)
    norm.moving_variance.set_data(Tensor(np.array([0, 1e-5, 1e-3, 1], np.float32)))
    for parameter in (norm.gamma, norm.beta, norm.moving_mean, *conv.get_parameters()):
        parameter.set_data(Tensor(numbers.randn(*parameter.shape).astype(np.float32)))
    clip = Tensor(numbers.randn(2, 3, 5, 5).astype(np.float32))
    expected = norm.set_train(False)(conv(clip)).asnumpy()
    net = fuse_conv_bn(nn.SequentialCell(conv, norm))
    difference = np.abs(net(clip).asnumpy() - expected).max(axis=(0, 2, 3))
    assert not [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert (difference <= 1e-5 * np.abs(expected).max(axis=(0, 2, 3))).all()
