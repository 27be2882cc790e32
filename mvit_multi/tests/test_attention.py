"""The two ways to compute queries, keys and values give the same result."""

import numpy as np
import pytest
from mindspore import Tensor

from mvit_multi.attention import Attention, BlockPlan
from utils.tests.parity import mark_slow_except

PLAN = BlockPlan(16, 16, 2, (4, 6, 6), (4, 6, 6), 2, 1)


@pytest.mark.parametrize("token", mark_slow_except([True, False], True))
def test_one_product_for_queries_keys_and_values_equals_three(token):
    attention = Attention(PLAN, 1e-5, relative=False, token=token, impl="taps")
    tokens = np.random.RandomState(0).randn(2, 4 * 36 + token, 16).astype(np.float32)
    separate = attention.project(Tensor(tokens))
    at_once = attention.project_at_once(Tensor(tokens))
    for x, y in zip(at_once, separate):
        np.testing.assert_allclose(x.asnumpy(), y.asnumpy(), atol=1e-6)
