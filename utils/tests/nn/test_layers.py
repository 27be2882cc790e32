"""Batch norm of clips with the conventions of PyTorch."""

import numpy as np
from mindspore import Tensor

from utils.nn.layers import BatchNorm3d


def test_batch_norm_3d_has_pytorch_statistics_and_flat_names():
    cell = BatchNorm3d(2).set_train()
    x = np.random.RandomState(0).randn(2, 2, 3, 2, 2).astype(np.float32)
    cell(Tensor(x)).asnumpy()
    rows = x.transpose(1, 0, 2, 3, 4).reshape(2, -1)
    np.testing.assert_allclose(cell.moving_mean.asnumpy(), 0.1 * rows.mean(1), atol=1e-6)
    expected = 0.9 + 0.1 * rows.var(1, ddof=1)
    np.testing.assert_allclose(cell.moving_variance.asnumpy(), expected, rtol=1e-5)
    assert [p.name for p in cell.trainable_params()] == ["gamma", "beta"]
