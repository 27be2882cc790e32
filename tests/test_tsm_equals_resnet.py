"""TSM without shift and ResNet, which share only their blocks, give the same scores."""

import numpy as np
import pytest
from mindspore import Tensor

from resnet50.model import build_network as build_resnet
from resnet50.tests.golden_case import MEAN, STD
from tests.golden_cases import generate_input, generate_weight
from tsm.model import TSM
from utils.weights.checkpoint import weights_of


@pytest.mark.parametrize("arch", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_tsm_without_shift_gives_the_scores_of_resnet_for_each_frame(arch):
    settings = {"num_classes": 7, "arch": arch, "first_width": 16}
    tsm = TSM(segments=3, shift_div=0, dropout=0.0, consensus="identity", **settings)
    resnet = build_resnet(mean=MEAN, std=STD, **settings)
    tsm_weights = weights_of(tsm)
    for name, parameter in weights_of(resnet).items():
        # generates positive values for moving_variance and gamma, as batch norms need
        kind = "running_var" if name.endswith("moving_variance") else "weight"
        torch_name = f"{name}.{kind}" if parameter.ndim == 1 else name
        value = generate_weight(torch_name, tuple(parameter.shape))
        parameter.set_data(Tensor(value))
        tsm_weights.pop(f"base_model.{name}").set_data(Tensor(value))
    assert not tsm_weights
    clip = (generate_input(5, (2, 3, 3, 64, 64)) * 50 + 120).clip(0, 255).astype(np.uint8)
    scores = tsm.set_train(False)(Tensor(clip)).asnumpy()  # (N, T, classes)
    frames = resnet.set_train(False)(Tensor(clip.reshape(6, 3, 64, 64))).asnumpy()
    assert scores.std() > 0.01
    np.testing.assert_allclose(scores.reshape(6, 7), frames, rtol=1e-4, atol=1e-5)
