"""Layers: normalisation, PyTorch's padding and batch-norm conventions."""

import numpy as np
from mindspore import Tensor

from utils.nn.layers import BatchNorm3d, Normalize, conv2d, max_pool2d


def test_pixels_are_normalised_and_floats_are_unchanged():
    cell = Normalize((0.5, 0.4), std=(0.2, 0.1), channels=4, axis=1, rank=3)
    x = np.arange(2 * 4 * 3).reshape(2, 4, 3).astype(np.uint8)
    mean, std = (np.array(v * 2).reshape(1, 4, 1) for v in ((0.5, 0.4), (0.2, 0.1)))
    np.testing.assert_allclose(cell(Tensor(x)).asnumpy(), (x / 255 - mean) / std, atol=1e-5)
    floats = x.astype(np.float32)
    np.testing.assert_array_equal(cell(Tensor(floats)).asnumpy(), floats)


def test_stride_two_is_padded_symmetrically():
    conv = conv2d(1, cout=1, kernel=3, stride=2)
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
