"""Counts of multiply-adds and parameters: layers by hand, and a small form of every network."""

from functools import cache

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from tests.toy_recipes import TOY
from utils.complexity import LayerCost, count_layers
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network, list_networks
from utils.nn import kernels
from utils.nn.dropout import Dropout
from utils.nn.layers import BatchNorm2d, conv2d, dense


class Small(nn.Cell):
    """A parameter, a convolution, a shared activation, a head that only training calls."""

    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(np.zeros((5, 6, 6), np.float32)), name="table")
        self.conv = conv2d(2, 5, 3)
        self.bn = BatchNorm2d(5)
        self.relu = nn.ReLU()
        self.deep = conv2d(5, cout=5, kernel=3, stride=2, groups=5)
        self.drop = Dropout(0.5, 5)
        self.fc = dense(5, 4)
        self.more = dense(4, 3)
        self.bn.gamma.requires_grad = False

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(x) + self.table))
        x = self.relu(self.deep(x)).mean((2, 3))
        x = self.fc(self.drop(x))
        return self.more(x) if self.training else x


def test_layers_come_in_the_order_of_calls_with_their_counts():
    maps = 5 * 36
    small = 5 * 9
    layers = [  # macs, inputs, outputs, parameters
        LayerCost("", "other", 0, 0, 0, 180),
        LayerCost("conv", "spatial convolution", 36 * 5 * 2 * 9, 2 * 36, maps, 90),
        LayerCost("bn", "batch norm", 0, maps, maps, 5),
        LayerCost("relu", "activation", 0, maps, maps, 0),
        LayerCost("deep", "depthwise convolution", small * 9, maps, small, 45),
        LayerCost("relu", "activation", 0, small, small, 0),
        LayerCost("fc", "dense", 20, 5, 4, 24),
        LayerCost("more", "dense", 0, 0, 0, 15),
    ]
    net = Small().set_train()
    for _ in range(2):  # counting does not change the network
        assert count_layers(net, (2, 6, 6)) == layers
    assert net.training
    assert not any(cell._forward_hook for _, cell in net.cells_and_names())
    np.testing.assert_array_equal(net.bn.moving_variance.asnumpy(), np.ones(5, np.float32))


class Blend(nn.Cell):
    """Attention whose queries and keys have two channels more than its values."""

    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(3, np.float32)), name="scale")
        self.before = nn.ReLU()
        self.after = nn.ReLU()
        self.score = kernels.current().matmul(transpose=True)
        self.blend = kernels.current().matmul()

    def construct(self, x: Tensor) -> Tensor:
        x = self.before(x) * self.scale  # (1, N, 3)
        wide = ops.cat((x, x[:, :, :2]), -1)
        return self.after(self.blend(self.score(wide, wide), x))


def test_attention_counts_its_two_products_in_the_cell_that_computes_them():
    result = count_layers(Blend(), (7, 3))
    read = 2 * 7 * 5 + 7 * 7 + 7 * 3
    written = 7 * 7 + 7 * 3
    assert [layer.name for layer in result] == ["before", "", "after"]
    assert result[1] == LayerCost(
        "", kind="attention", macs=2 * 7 * 7 * 3, inputs=read, outputs=written, parameters=3
    )


# Recipes with kinds of layers that the smoke recipe has not.
RECIPES = {
    "tsm": "tsm_r50_k400_8f_nl",
    "resnet50": "resnet50_se50_imagenet_zoo",
    "mvit_multi": "mvit_multi_plain_s_k400_16x4",
}


def build_and_count(folder: str, name: str = "") -> tuple:
    """(network, costs of its layers) of a recipe at toy size."""
    network = find_network(folder)
    path = ROOT / folder / "configs" / f"{name or RECIPES.get(folder, f'{folder}_smoke')}.yaml"
    cfg = load_config(network.config, path, ["run.device=CPU", "run.all_reduce=[]", *TOY[folder]])
    net = network.build_model(**cfg.model_arguments())
    return net, count_layers(net, network.get_input_shape(cfg))


@pytest.fixture(scope="module")
def count_small():
    """count_small(folder): the network of RECIPES and the costs of its layers, computed once."""
    return cache(build_and_count)


@pytest.mark.parametrize("network", list_networks())
def test_every_parameter_belongs_to_one_layer(network, count_small):
    net, layers = count_small(network)
    assert sum(layer.parameters for layer in layers) == sum(p.size for p in net.trainable_params())
    holders = [layer.name for layer in layers if layer.parameters]
    assert len(holders) == len(set(holders))
    assert set(holders) == {p.name.rpartition(".")[0] for p in net.trainable_params()}
