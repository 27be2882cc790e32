"""Counts of multiply-adds and parameters: layers by hand, and a small form of every network."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mvit_multi.tests.formula import multiply_adds
from utils.complexity import LayerCost, classify_kernel, count_layers
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network, list_networks
from utils.nn import kernels
from utils.nn.conv3d import FORMS, Conv3d, DepthwiseConv3d
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
    assert count_layers(Small().set_train(), (2, 6, 6)) == [
        LayerCost("", kind="other", macs=0, inputs=0, outputs=0, parameters=180),
        LayerCost(
            "conv",
            kind="spatial convolution",
            macs=36 * 5 * 2 * 9,
            inputs=2 * 36,
            outputs=maps,
            parameters=90,
        ),
        LayerCost("bn", kind="batch norm", macs=0, inputs=maps, outputs=maps, parameters=5),
        LayerCost("relu", kind="activation", macs=0, inputs=maps, outputs=maps, parameters=0),
        LayerCost(
            "deep",
            kind="depthwise convolution",
            macs=small * 9,
            inputs=maps,
            outputs=small,
            parameters=45,
        ),
        LayerCost("relu", kind="activation", macs=0, inputs=small, outputs=small, parameters=0),
        LayerCost("fc", kind="dense", macs=20, inputs=5, outputs=4, parameters=24),
        LayerCost("more", kind="dense", macs=0, inputs=0, outputs=0, parameters=15),
    ]


def test_counting_does_not_change_the_network():
    net = Small().set_train()
    assert count_layers(net, (2, 6, 6)) == count_layers(net, (2, 6, 6))
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


@pytest.mark.parametrize("impl", FORMS)
def test_every_form_of_a_depthwise_convolution_has_the_same_count(impl):
    layer = count_layers(DepthwiseConv3d(4, kernel=(3, 3, 3), stride=2, impl=impl), (4, 2, 6, 6))[0]
    assert layer == LayerCost(
        "",
        kind="depthwise convolution",
        macs=4 * 2 * 9 * 27,
        inputs=288,
        outputs=72,
        parameters=108,
    )


@pytest.mark.parametrize(
    ("weight", "channels", "kind"),
    [
        ((8, 4), 4, "dense"),
        ((8, 4, 1, 1), 4, "1x1 convolution"),
        ((8, 4, 1, 1, 1), 4, "1x1 convolution"),
        ((8, 4, 3, 3), 4, "spatial convolution"),
        ((8, 4, 1, 3, 3), 4, "spatial convolution"),
        ((8, 4, 5, 1, 1), 4, "temporal convolution"),
        ((8, 4, 3, 3, 3), 4, "3-D convolution"),
        ((8, 1, 3, 3, 3), 8, "depthwise convolution"),
        ((8, 1, 3, 3), 1, "spatial convolution"),
    ],
)
def test_the_shape_of_the_weight_determines_the_kind(weight, channels, kind):
    assert classify_kernel(weight, channels) == kind


def test_a_dense_3d_convolution_is_not_depthwise():
    assert count_layers(Conv3d(2, 3, (3, 3, 3)), (2, 2, 4, 4))[0].kind == "3-D convolution"


SMALL = {
    "tsm": ["tsm_r50_k400_8f_nl", "data.crop=64", "data.segments=2"],
    "x3d": ["x3d_s_k400_13x6", "data.scales=[32,32]", "data.crop=32", "model.depth_factor=0.4"],
    "resnet50": ["resnet50_se50_imagenet_zoo", "data.crop=64", "eval.crop=64"],
    "mvit_multi": [
        *("mvit_multi_plain_s_k400_16x4", "data.crop=32", "data.frames=4", "model.dim=8"),
        *("model.depth=3", "model.stage_starts=[1]", "model.kv_stride=4"),
    ],
}


def build_and_count(folder: str, name: str, *overrides: str) -> tuple:
    """(network, costs of its layers) of a config file, with small sizes."""
    network = find_network(folder)
    path = ROOT / folder / "configs" / f"{name}.yaml"
    cfg = load_config(network.config, path, ["run.device=CPU", "run.all_reduce=[]", *overrides])
    net = network.build_model(**cfg.model_arguments())
    return net, count_layers(net, network.get_input_shape(cfg))


@pytest.fixture(scope="module")
def count_small():
    """count_small(folder): the network of SMALL and the costs of its layers, computed once."""
    return cache(lambda folder: build_and_count(folder, *SMALL[folder]))


@pytest.mark.parametrize("network", list_networks())
def test_every_parameter_belongs_to_one_layer(network, count_small):
    net, layers = count_small(network)
    assert sum(layer.parameters for layer in layers) == sum(p.size for p in net.trainable_params())
    holders = [layer.name for layer in layers if layer.parameters]
    assert len(holders) == len(set(holders))
    assert set(holders) == {p.name.rpartition(".")[0] for p in net.trainable_params()}


def test_non_local_blocks_count_their_products(count_small):
    _, layers = count_small("tsm")
    result = [layer.macs for layer in layers if layer.kind == "attention"]
    queries = {256: 2 * 8 * 8, 512: 2 * 4 * 4}  # of a clip of 2 frames of 64 pixels
    one = {width: 2 * n * (n // 4) * width for width, n in queries.items()}
    assert result == [one[256]] * 2 + [one[512]] * 3
    names = [layer.name for layer in layers]
    position = names.index("base_model.layer2.0.nl")
    assert names[position + 1 : position + 3] == [f"base_model.layer2.0.nl.W.{i}" for i in (0, 1)]


@pytest.mark.parametrize("yaml", ["mvit_multi_plain_s_k400_16x4", "mvit_multi_smoke"])
def test_attention_counts_equal_their_formula(yaml):
    """With a class token and relative positions, and with neither."""
    net, layers = build_and_count("mvit_multi", yaml, *SMALL["mvit_multi"][1:])
    assert net.token == ("plain" in yaml)
    assert sum(layer.macs for layer in layers) == multiply_adds(net)
    names = [layer.name for layer in layers]
    position = names.index("blocks.0.attn")
    assert names.index("blocks.0.attn.norm_v") < position < names.index("blocks.0.attn.proj")
    with_parameters = {
        layer.name for layer in layers if layer.name.endswith("attn") and layer.parameters
    }
    assert bool(with_parameters) == ("plain" in yaml)


def test_a_layer_called_in_parts_holds_its_parameters_once(count_small):
    net, layers = count_small("mvit_multi")
    calls = [layer for layer in layers if layer.name == "blocks.1.attn.qkv"]
    weights = sum(p.size for p in net.blocks[1].attn.qkv.get_parameters())
    assert [layer.parameters for layer in calls] == [weights, 0, 0]


def test_layers_used_only_in_training_come_last():
    _, layers = build_and_count("mvit_multi", "mvit_multi_smoke")
    final = Counter(layer.name.split(".")[0] for layer in layers[-2:])
    assert final == {"expander": 2}
    assert all(layer.macs == 0 for layer in layers[-2:])
