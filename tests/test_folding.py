"""Batch norms folded into convolutions: no norm is left, and the golden scores are met."""

import importlib

import numpy as np
import pytest
from mindspore import Tensor, nn

from utils.command import rooms
from utils.config import ROOT
from utils.filling import fill_input
from utils.folding import fold
from utils.testing import evaluation, expected_evaluation, load_case, spread


@pytest.mark.parametrize("room", rooms())
def test_folded_networks_meet_the_golden_scores(room):
    case = load_case(sorted((ROOT / room / "tests" / "golden").glob("*_small.json"))[0])
    net = fold(importlib.import_module(f"{room}.golden").network(case))
    assert not [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    found, expected = evaluation(net.set_train(False), clip), expected_evaluation(case)
    assert np.abs(found - expected).max() <= 1e-4 * spread(expected)
