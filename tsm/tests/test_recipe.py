"""Rates, groups and splits of the recipes, against the original's and the paper's numbers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tsm.lr_generator import FLOW_FIRST_CONV, GROUPS, get_lr, parameter_groups
from tsm.model import TSM, freeze_batch_norms
from utils import schedules
from utils.parallel import segment_ends
from utils.testing import load_case, torch_names

DATA = load_case(Path(__file__).parent / "golden" / "tsm_data.json")


def recipe(**changes):
    settings = {
        "epochs": 50,
        "lr": 0.02,
        "base_batch": 0,
        "schedule": "step",
        "milestones": (20, 40),
        "warmup_epochs": 0,
        "warmup_lr": 0.0,
        "lr_changes": "epoch",
        "weight_decay": 1e-4,
        "fast_head": True,
    }
    return SimpleNamespace(**{**settings, **changes})


@pytest.mark.parametrize("name", ["kinetics_step", "kinetics_step_batch256", "something_step"])
def test_step_rates_equal_the_originals(name):
    case = DATA["lr"][name]
    train = recipe(lr=case["lr"], milestones=[int(m) for m in case["lr_steps"]])
    lr = get_lr(train, updates_per_epoch=3, global_batch=128)
    np.testing.assert_allclose(lr[::3], case["lr_per_epoch_first_group"], rtol=1e-12)
    np.testing.assert_array_equal(lr[0::3], lr[2::3])


def test_cosine_rates_equal_the_originals():
    case = DATA["lr"]["repository_cosine"]
    train = recipe(lr=case["lr"], epochs=case["epochs"], schedule="cosine")
    lr = get_lr(train, updates_per_epoch=2, global_batch=1)
    np.testing.assert_allclose(lr[::2], case["lr_per_epoch_first_group"], rtol=1e-9)


@pytest.mark.parametrize("case", DATA["lr"]["summit"], ids=lambda c: f"{c['global_batch']}")
def test_summit_rates_equal_the_papers(case):
    train = recipe(
        lr=case["base_lr"],
        base_batch=case["base_batch"],
        epochs=case["epochs"],
        schedule="cosine",
        warmup_epochs=case["warmup_epochs"],
        warmup_lr=case["lr_init"],
        lr_changes="update",
    )
    lr = get_lr(train, case["steps_per_epoch"], case["global_batch"])
    assert len(lr) == case["total_steps"]
    for step, value in case["values"]:
        assert lr[step] == pytest.approx(value, rel=1e-9, abs=1e-15)


def test_linear_scaling_follows_the_global_batch():
    assert schedules.peak_lr(0.02, 128, 256) == pytest.approx(0.04)
    assert schedules.peak_lr(0.02, 0, 256) == 0.02


def test_the_warm_up_of_mmaction2_changes_once_per_epoch():
    lr = get_lr(recipe(warmup_epochs=5, warmup_lr=0.002, milestones=(25, 45)), 4, 1)
    np.testing.assert_allclose(lr[0:24:4], [0.002, 0.0065, 0.011, 0.0155, 0.02, 0.02])


@pytest.mark.parametrize("name", DATA["parameter_groups"])
def test_groups_equal_the_originals(name):
    case = DATA["parameter_groups"][name]
    fast = case["fc_lr5"]
    net = TSM(400, 8)
    freeze_batch_norms(net, "partial" if case["partial_bn"] else "trained")
    groups = parameter_groups(
        net.trainable_params(), recipe(fast_head=fast), np.ones(1), flow=False
    )
    spelled = torch_names(net)
    for group, expected in zip(groups, case["groups"]):
        assert group["name"] == expected["name"]
        assert [spelled[p.name] for p in group["params"]] == expected["params"]
        assert group["lr"][0] == expected["lr_mult"]
        assert group["weight_decay"] == pytest.approx(1e-4 * expected["decay_mult"])
    frozen = {spelled[p.name] for p in net.get_parameters() if p.name in spelled} - {
        name for group in case["groups"] for name in group["params"]
    }
    weights = {name for name in frozen if name.endswith(("weight", "bias"))}
    assert weights == set(case["not_in_any_group"])


def test_flow_learns_its_first_convolution_faster():
    net = TSM(3, 8, arch="resnet18", modality="flow", frames_per_segment=5)
    groups = parameter_groups(net.trainable_params(), recipe(), np.ones(1), flow=True)
    assert groups[0]["lr"][0] == FLOW_FIRST_CONV["first_conv_weight"][0] == 5
    assert GROUPS["first_conv_weight"] == (1, 1)


def test_the_published_split_falls_where_the_reference_says():
    names = [p.name for p in TSM(400, 8).trainable_params()]
    assert segment_ends(names, [85, 160]) == [85, 160]
    sizes = {p.name: p.size for p in TSM(400, 8).trainable_params()}
    assert sum(sizes[name] for name in names[:86]) == 3_219_776
    assert sum(sizes[name] for name in names[86:]) == 21_107_856
