"""Learning rates and parameter groups against the original and the paper."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.golden_cases import load_case, map_torch_names
from tsm.config import Config
from tsm.convert import TSMNames
from tsm.lr_generator import FLOW_FIRST_CONV, GROUPS, build_parameter_groups, get_lr
from tsm.model import TSM, freeze_batch_norms
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_build
from utils.tests.parity import without_values
from utils.train.optimizers import scale_head

DATA = load_case(Path(__file__).parent / "golden" / "tsm_data.json")


def make_settings(**changes):
    settings = {
        "epochs": 50, "lr": 0.02, "base_batch": 0, "schedule": "step", "milestones": (20, 40),
        "warmup_epochs": 0, "warmup_lr": 0.0, "lr_changes": "epoch", "weight_decay": 1e-4,
    }  # fmt: skip
    return SimpleNamespace(**{**settings, **changes})


def test_scores_of_every_frame_cannot_be_trained():
    """The loss would compare the frames of a clip with the labels of as many clips."""
    cfg = load_config(
        Config, ROOT / "tsm" / "configs" / "tsm_smoke.yaml", ["model.consensus=identity"]
    )
    with pytest.raises(ValueError, match=r"^model\.consensus: "):
        find_build("tsm")(cfg, None)


@pytest.mark.parametrize("name", ["kinetics_step", "kinetics_step_batch256", "something_step"])
def test_step_rates_equal_the_originals(name):
    case = DATA["lr"][name]
    train = make_settings(lr=case["lr"], milestones=[int(m) for m in case["lr_steps"]])
    lr = get_lr(train, updates_per_epoch=3, effective_batch=128)
    np.testing.assert_allclose(lr[::3], case["lr_per_epoch_first_group"], rtol=1e-12)
    np.testing.assert_array_equal(lr[0::3], lr[2::3])


def test_cosine_rates_equal_the_originals():
    case = DATA["lr"]["repository_cosine"]
    train = make_settings(lr=case["lr"], epochs=case["epochs"], schedule="cosine")
    lr = get_lr(train, updates_per_epoch=2, effective_batch=1)
    np.testing.assert_allclose(lr[::2], case["lr_per_epoch_first_group"], rtol=1e-9)


@pytest.mark.parametrize("case", DATA["lr"]["summit"], ids=lambda c: f"{c['global_batch']}")
def test_summit_rates_equal_the_papers(case):
    train = make_settings(
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


SUMMIT_PATH = ROOT / "tsm" / "configs" / "tsm_r50_k400_8f_summit.yaml"
SUMMIT = load_config(Config, SUMMIT_PATH)


def compute_summit_rates(devices: int) -> tuple:
    """(learning rates of the run, updates per epoch) of the Summit yaml on `devices` devices."""
    sampler = TrainSampler(240_000, batch=SUMMIT.data.batch, rank=0, size=devices, seed=0)
    lr = get_lr(SUMMIT.train, sampler.updates_per_epoch(1), sampler.effective_batch_size(1))
    return lr, sampler.steps_per_epoch


PEAKS = [(48, 625, 0.06), (96, 312, 0.12), (192, 156, 0.24), (384, 78, 0.48), (768, 39, 0.96)]


@pytest.mark.parametrize(("devices", "steps", "peak"), [*PEAKS, (1536, 19, 1.92)])
def test_the_summit_yaml_scales_from_48_to_1536_devices(devices, steps, peak):
    lr, per_epoch = compute_summit_rates(devices)
    assert (per_epoch, len(lr)) == (steps, 100 * steps)
    warm = 5 * steps
    assert lr[:warm] == pytest.approx(0.00125 + (peak - 0.00125) * np.arange(1, warm + 1) / warm)
    angle = np.pi * np.arange(len(lr) - warm) / (len(lr) - warm)
    assert lr[warm:] == pytest.approx(peak * (1 + np.cos(angle)) / 2)
    assert lr.max() == pytest.approx(0.00125 * devices * 8 / 8) == peak
    assert 0 < lr[-1] < 1e-5 * peak


@without_values
def test_the_summit_yaml_decays_only_convolutions_and_the_classifiers_weight():
    weights = TSM(**SUMMIT.model_arguments()).trainable_params()
    groups = build_parameter_groups(weights, train=SUMMIT.train, lr=np.ones(1), flow=False)
    for group in groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (1e-4 if parameter.ndim > 1 else 0), parameter.name
            # The source's rule for every bias; ResNets have this one only.
            rate = 2 if parameter.name == "base_model.fc.bias" else 1
            assert group["lr"][0] == rate, parameter.name
    assert sum(len(group["params"]) for group in groups) == 161
    assert SUMMIT.model.dropout == 0
    assert (SUMMIT.dense_test, SUMMIT.eval.clips, SUMMIT.data.resize) == (True, 10, 256)
    assert (SUMMIT.eval.crops, SUMMIT.test_crop) == (3, 256), "the crops cover a full frame"


def test_the_rate_on_four_machines_is_that_of_one_as_in_the_source():
    """Its script multiplies 0.0025 by the cards of one machine."""
    train = load_config(Config, ROOT / "tsm" / "configs" / "tsm_r50_k400_8f_amp32.yaml").train
    assert get_lr(train, 1, 4 * 8 * 16)[0] == pytest.approx(8 * 0.0025)


RECIPES = [path for path in SUMMIT_PATH.parent.glob("*.yaml") if path.stem != "tsm_smoke"]


README_ROW = re.compile(r"\| `(\w+)`[^|]*\|[^|]+\| (\d+) x (\d+)(?: at (\d+))? \|")


def test_a_recipe_is_tested_with_the_views_of_its_published_accuracy():
    rows = README_ROW.findall((SUMMIT_PATH.parents[1] / "README.md").read_text())
    assert {path.stem for path in RECIPES} - {row[0] for row in rows} == {
        "tsm_mobilenetv2_jester_online",
        "tsm_r50_ucf101_8f",
    }, "recipes without a published accuracy"
    for name, clips, crops, size in rows:
        cfg = load_config(Config, SUMMIT_PATH.with_name(f"{name}.yaml"))
        views = (cfg.eval.clips, cfg.eval.crops, cfg.test_crop)
        assert views == (int(clips), int(crops), int(size or cfg.data.crop)), name


def test_the_warm_up_of_mmaction2_changes_once_per_epoch():
    lr = get_lr(make_settings(warmup_epochs=5, warmup_lr=0.002, milestones=(25, 45)), 4, 1)
    np.testing.assert_allclose(lr[0:24:4], [0.002, 0.0065, 0.011, 0.0155, 0.02, 0.02])


@pytest.mark.parametrize("name", DATA["parameter_groups"])
@without_values
def test_parameter_groups_equal_the_originals(name):
    case = DATA["parameter_groups"][name]
    head_lr_mult = 5.0 if case["fc_lr5"] else 1.0
    net = TSM(400, 8)
    freeze_batch_norms(net, "partial" if case["partial_bn"] else "trained")
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train=make_settings(), lr=np.ones(1), flow=False)
    groups = scale_head(groups, TSMNames.classifier, head_lr_mult)
    original_names = map_torch_names(net)
    for group, expected in zip(groups, case["groups"]):
        assert [original_names[p.name] for p in group["params"]] == expected["params"]
        assert group["lr"][0] == expected["lr_mult"] or not group["params"]
        assert group["weight_decay"] == pytest.approx(1e-4 * expected["decay_mult"])
    weights = {name for name in original_names.values() if name.endswith(("weight", "bias"))}
    trained = {name for group in case["groups"] for name in group["params"]}
    assert weights - trained == set(case["not_in_any_group"])


@without_values
def test_flow_has_a_higher_rate_for_its_first_convolution():
    net = TSM(3, segments=8, arch="resnet18", modality="flow", frames_per_segment=5)
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train=make_settings(), lr=np.ones(1), flow=True)
    assert groups[0]["lr"][0] == FLOW_FIRST_CONV["first_conv_weight"][0] == 5
    assert GROUPS["first_conv_weight"] == (1, 1)
