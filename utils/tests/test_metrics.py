"""Evaluation by hand: views averaged as raw scores, videos counted once."""

import numpy as np
import pytest
from mindspore import nn

from utils.config import ROOT
from utils.filling import fill_input
from utils.metrics import Counts, video_scores
from utils.testing import load_case

CASES = load_case(ROOT / "tsm" / "tests" / "golden" / "tsm_data.json")["test_aggregation"]


class Pick(nn.Cell):
    """Clips that carry their scores: (N, classes) in, the same out."""

    def construct(self, x):
        return x


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c["logits_shape"]))
def test_views_are_averaged_as_raw_scores(case):
    scores = fill_input(case["input_seed"], case["logits_shape"])
    views = scores.reshape(case["batch"], case["num_crop"], -1)
    np.testing.assert_allclose(video_scores(Pick(), views), case["mean_logits"], rtol=1e-5)


def test_top_k_counts_per_class():
    counts = Counts(6)
    scores = np.array([[9, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4], [0, 9, 1, 2, 3, 4]], float)
    counts.add(scores, np.array([0, 5, 1]))
    counts.add(scores[:1], np.array([1]))
    shares = counts.shares()
    assert shares["videos"] == 4
    assert shares["top1"] == 0.5
    assert shares["top5"] == 0.5, "label 5 is sixth, label 1 of the last is sixth too"
    assert shares["mean_class_accuracy"] == pytest.approx((1 + 0.5 + 0) / 3)


def test_nothing_to_count_is_no_error():
    assert Counts(3).shares()["videos"] == 0
