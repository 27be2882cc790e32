"""Batch norms folded into convolutions: no norm is left, and the golden scores are met."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from utils.config import ROOT
from utils.networks import find_network, list_networks
from utils.nn.fuse_conv_bn import fold
from utils.testing.golden import evaluation, expected_evaluation, fill_input, load_case, spread


@pytest.mark.parametrize("network", list_networks())
def test_folded_networks_meet_the_golden_scores(network):
    case = load_case(sorted((ROOT / network / "tests" / "golden").glob("*_small.json"))[0])
    net = fold(find_network(network).golden_case.network(case))
    assert not [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    found, expected = evaluation(net.set_train(False), clip), expected_evaluation(case)
    assert np.abs(found - expected).max() <= 1e-4 * spread(expected)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_norm_of_tiny_variances_is_folded_with_its_eps(has_bias):
    """As of channels that are almost 0 everywhere: there eps is as large as the variance."""
    conv = nn.Conv2d(3, 4, 1, has_bias=has_bias)
    norm = nn.BatchNorm2d(4, eps=3e-5)
    numbers = np.random.RandomState(1)
    variance = np.array([0, 1e-5, 1e-3, 1], np.float32)
    norm.moving_variance.set_data(Tensor(variance))
    for parameter in (norm.gamma, norm.beta, norm.moving_mean, *conv.get_parameters()):
        parameter.set_data(Tensor(numbers.randn(*parameter.shape).astype(np.float32)))
    clip = Tensor(numbers.randn(2, 3, 5, 5).astype(np.float32))
    expected = norm.set_train(False)(conv(clip)).asnumpy()
    net = fold(nn.SequentialCell(conv, norm))
    difference = np.abs(net(clip).asnumpy() - expected).max(axis=(0, 2, 3))
    assert not [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert (difference <= 1e-5 * np.abs(expected).max(axis=(0, 2, 3))).all()
