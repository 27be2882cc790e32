"""Layers: uniform dropout, normalisation, PyTorch's padding and batch-norm conventions."""

import numpy as np
import pytest
from mindspore import Tensor
from mindspore import dtype as mstype

from utils.layers import BatchNorm3d, Dropout, Normalize, conv2d, max_pool2d, uniform_bits


def test_bits_are_uniform_and_independent_of_neighbours_and_keys():
    draws = [uniform_bits(40000, Tensor(key, mstype.int32)).asnumpy() / 2**24 for key in range(4)]
    for u in draws:
        counts = np.histogram(u, 16, (0, 1))[0]
        assert ((counts - 2500) ** 2 / 2500).sum() < 45, "chi-square, 15 degrees, p = 1e-4"
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02
        assert abs(np.corrcoef(u[64:], u[:-64])[0, 1]) < 0.02
    for i in range(4):
        for k in range(i):
            assert abs(np.corrcoef(draws[i], draws[k])[0, 1]) < 0.02


def test_dropout_keeps_the_mean_and_drops_the_share():
    cell = Dropout(0.8).set_train()
    y = cell(Tensor(np.ones((100, 100), np.float32))).asnumpy()
    np.testing.assert_allclose(np.unique(y), [0, 5], rtol=1e-6)
    assert abs((y == 0).mean() - 0.8) < 0.02


def test_dropout_rests_in_evaluation():
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(Dropout(0.8).set_train(False)(Tensor(x)).asnumpy(), x)


def test_dropout_refuses_a_keep_probability_of_zero():
    with pytest.raises(ValueError, match="dropout must lie in"):
        Dropout(1.0)


def test_pixels_are_normalised_and_floats_left_alone():
    cell = Normalize((0.5, 0.4), (0.2, 0.1), channels=4, axis=1, rank=3)
    x = np.arange(2 * 4 * 3).reshape(2, 4, 3).astype(np.uint8)
    mean, std = (np.array(v * 2).reshape(1, 4, 1) for v in ((0.5, 0.4), (0.2, 0.1)))
    np.testing.assert_allclose(cell(Tensor(x)).asnumpy(), (x / 255 - mean) / std, atol=1e-5)
    floats = x.astype(np.float32)
    np.testing.assert_array_equal(cell(Tensor(floats)).asnumpy(), floats)


def test_stride_two_is_padded_symmetrically():
    conv = conv2d(1, 1, 3, 2)
    conv.weight.set_data(Tensor(np.ones((1, 1, 3, 3), np.float32)))
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    y = conv(Tensor(x)).asnumpy()
    assert y[0, 0, 0, 0] == x[0, 0, :2, :2].sum(), "one row and column of zeros come first"
    pooled = max_pool2d(3, 2)(Tensor(-x - 1)).asnumpy()
    assert pooled[0, 0, 0, 0] == -1, "padding never wins over negative numbers"


def test_batch_norm_3d_has_pytorch_statistics_and_flat_names():
    cell = BatchNorm3d(2).set_train()
    x = np.random.RandomState(0).randn(2, 2, 3, 2, 2).astype(np.float32)
    cell(Tensor(x)).asnumpy()
    rows = x.transpose(1, 0, 2, 3, 4).reshape(2, -1)
    np.testing.assert_allclose(cell.moving_mean.asnumpy(), 0.1 * rows.mean(1), atol=1e-6)
    expected = 0.9 + 0.1 * rows.var(1, ddof=1)
    np.testing.assert_allclose(cell.moving_variance.asnumpy(), expected, rtol=1e-5)
    assert [p.name for p in cell.trainable_params()] == ["gamma", "beta"]
