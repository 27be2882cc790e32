"""Mixup and cutmix of a batch of images or clips."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from resnet50.tests.golden_case import MEAN, STD
from utils.data.mixing import draw_partners
from utils.nn.layers import Normalize
from utils.nn.soft_targets import MixBatch
from utils.settings import ImageData

LABELS = np.array([2, 0, 1, 2], np.int32)
# Shape of a batch, its axis of channels
LAYOUTS = {"resnet50": ((4, 3, 8, 8), 1), "tsm": ((4, 2, 3, 8, 8), 2), "x3d": ((4, 3, 2, 8, 8), 1)}


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
@pytest.mark.parametrize("network", LAYOUTS)
def test_a_mixed_batch_equals_the_formula(network, kind):
    shape, axis = LAYOUTS[network]
    rng = np.random.RandomState(3)
    data = ImageData(Path(), crop=8, **{kind: 1.0})
    draws = (draw_partners(data, len(LABELS), (3, step)) for step in range(99))
    targets = (np.column_stack([LABELS, draw]).astype(np.float32) for draw in draws)
    target = next(t for t in targets if 0.1 < t[0, 1] < 0.9 and t[0, 2] != 0)
    lam = target[0, 1]
    partner = target[:, 2].astype(int)
    assert (target[:, 0] == LABELS).all()
    assert (target[:, 1] == lam).all()
    assert sorted(partner) == [0, 1, 2, 3]
    sample = rng.randint(0, 256, shape).astype(np.uint8)
    channels = [3 if k == axis else 1 for k in range(len(shape))]
    x = (sample / 255 - np.reshape(MEAN, channels)) / np.reshape(STD, channels)
    expected = lam * x + (1 - lam) * x[partner]
    if kind == "cutmix":
        y0, y1, x0, x1 = target[0, 3:].astype(int)
        assert lam == pytest.approx(1 - (y1 - y0) * (x1 - x0) / 64)
        expected = x.copy()
        expected[..., y0:y1, x0:x1] = x[partner][..., y0:y1, x0:x1]
    mix = MixBatch(Normalize(MEAN, std=STD, channels=3, axis=axis, rank=len(shape)))
    mixed = mix(Tensor(sample), Tensor(target)).asnumpy()
    np.testing.assert_allclose(mixed, expected, atol=1e-5)
