"""Counts of multiply-adds and parameters: the layers of a small network by hand."""

import numpy as np
from mindspore import Parameter, Tensor, nn

from utils.complexity import LayerCost, count_layers
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
