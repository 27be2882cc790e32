"""Dropout: factors from the host, the same for every device, rank and restart."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from utils.nn.dropout import Dropout, DropoutFactors, DropPath


def test_dropout_factors_are_uniform_and_a_function_of_seed_and_position():
    factors = DropoutFactors(Dropout(0.5, 4000), seed=3)
    rows = [factors.draw(position)[0] > 0 for position in range(4)]
    for i, row in enumerate(rows):
        assert abs(row.mean() - 0.5) < 0.03
        assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < 0.06
        for other in rows[:i]:
            assert abs(np.corrcoef(row, other)[0, 1]) < 0.06
    again = DropoutFactors(Dropout(0.5, 4000), seed=3)
    np.testing.assert_array_equal(again.draw(2)[0] > 0, rows[2])
    other = DropoutFactors(Dropout(0.5, 4000), seed=4)
    assert (other.draw(2)[0] > 0).tolist() != rows[2].tolist()


class TwoLayers(nn.Cell):
    def __init__(self):
        super().__init__()
        self.strong = Dropout(0.8, 100)
        self.weak = Dropout(0.25, 50)
        self.path = DropPath(0.5)

    def construct(self, x):
        return self.strong(x), self.weak(x[:, :50]), self.path(x)


def test_layers_use_different_factors():
    net = TwoLayers().set_train()
    factors = DropoutFactors(net, seed=0)
    assert factors.size == 151
    connected = factors.connect(40)
    samples = np.concatenate([factors.draw(position) for position in range(40)])
    connected.set_data(Tensor(samples))
    strong, weak, path = (y.asnumpy() for y in net(Tensor(np.ones((40, 100), np.float32))))
    np.testing.assert_array_equal(strong, samples[:, :100])
    np.testing.assert_array_equal(weak, samples[:, 100:150])
    np.testing.assert_array_equal(path, np.repeat(samples[:, 150:], 100, 1))
    np.testing.assert_allclose(np.unique(strong), [0, 5], rtol=1e-6)
    np.testing.assert_allclose(np.unique(weak), [0, 4 / 3], rtol=1e-6)
    assert abs((strong == 0).mean() - 0.8) < 0.03


def test_dropout_does_nothing_in_evaluation_and_needs_a_train_step_in_training():
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(Dropout(0.8, 4).set_train(False)(Tensor(x)).asnumpy(), x)
    with pytest.raises(RuntimeError, match="train step"):
        Dropout(0.8, 4).set_train()(Tensor(x))
