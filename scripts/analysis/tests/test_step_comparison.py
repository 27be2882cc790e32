"""Records and golden cases that `compare_step.py` compares with."""

from io import BytesIO

import numpy as np
import pytest
from mindspore import Tensor

from resnet50.loss import SmoothedCrossEntropy
from resnet50.tests.golden_case import ResNetCase
from scripts.analysis.step_comparison import change_recipe, load_record, save_record
from tsm.model import TSM
from tsm.tests.golden_case import TSMCase

CASE = {"train": {"loss64": 1.0}}
ARRAYS = {"data/clip": np.zeros((2, 3)), "data/target": np.zeros(2), "loss/loss": np.ones(1)}


def test_what_is_no_record_is_refused_in_one_line(tmp_path):
    whole = tmp_path / "whole.npz"
    bad = tmp_path / "bad.npz"
    save_record(whole, ARRAYS)
    assert set(load_record(whole)) == set(ARRAYS)
    data = whole.read_bytes()
    flipped = data[:80] + bytes([data[80] ^ 255]) + data[81:]
    array = BytesIO()
    archive = BytesIO()
    np.save(array, np.zeros(3))
    np.savez(archive, x=np.zeros(3))
    others = array.getvalue(), archive.getvalue()
    for content in (data[:-40], data[: len(data) // 2], b"PK", flipped, b"", b"text", *others):
        bad.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"^--against: .*bad.npz is not a record: .*$"
        ) as caught:
            load_record(bad)
        assert "\n" not in str(caught.value)


def test_a_golden_case_may_have_another_smoothing():
    scores = Tensor(np.float32([[1, 2, 4], [0, 1, 0]]))
    label = Tensor(np.int32([2, 0]))
    changed = ResNetCase(CASE)
    change_recipe(changed, "smoothing=0.3 smoothed=included")
    result = float(changed.build_loss()(scores, label).asnumpy())
    assert result == float(SmoothedCrossEntropy(0.3, "included")(scores, label).asnumpy())
    full = float(ResNetCase(CASE).build_loss()(scores, label).asnumpy())
    assert full == float(SmoothedCrossEntropy(0.1, "excluded")(scores, label).asnumpy())
    assert CASE == {"train": {"loss64": 1.0}}


@pytest.mark.parametrize(("text", "factors"), [("", (5, 10)), ("head_lr_mult=1", (1, 2))])
def test_a_golden_case_may_have_other_rates_for_its_head(text, factors, monkeypatch):
    """The original's classifier has 5 times the base rate, and 10 times for its bias."""
    net = TSM(5, segments=2, arch="resnet18", first_width=8)
    monkeypatch.setattr(TSMCase, "build_model", lambda self, training: net)
    sgd = {"clip_total_norm": 0.0, "weight_decay": 0.0, "lr": 1.0, "momentum": 0.0}
    case = {"config": {"before_softmax": True}, "train": {"step": {"optimizer": sgd}}}
    golden = TSMCase(case)
    change_recipe(golden, text)
    optimizer = golden.build_train_step("step").optimizer
    names = [parameter.name for parameter in optimizer.parameters]
    rates = optimizer.rates.asnumpy()[:, 0][list(optimizer.positions)]
    result = dict(zip(names, rates))
    assert (result["new_fc.weight"], result["new_fc.bias"]) == factors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slow_head=1", "'slow_head' cannot be changed in this network; head_lr_mult can"),
        ("head_lr_mult", "head_lr_mult must be a number, not ''"),
        ("head_lr_mult=a", "head_lr_mult must be a number, not 'a'"),
        ("head_lr_mult=[", "head_lr_mult must be a number"),
    ],
)
def test_an_unknown_recipe_is_refused(text, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        change_recipe(TSMCase(CASE), text)
