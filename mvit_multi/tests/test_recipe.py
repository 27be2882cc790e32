"""Sampling, boxes, targets, learning rates and parameter groups against the original."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor

from mvit_multi import sampling
from mvit_multi.config import Train
from mvit_multi.dataset import build_target_row
from mvit_multi.loss import MultiLoss
from mvit_multi.lr_generator import build_parameter_groups, compute_lr_at, get_lr
from mvit_multi.model import MViT
from mvit_multi.tests.golden_case import MViTCase
from tests.golden_cases import load_case, map_torch_names
from tests.helpers import load_smoke_config
from utils.data.mixing import make_cutmix
from utils.tests.parity import make_cosine_settings, without_values
from utils.video.augment import draw_erase_box

GOLDEN = Path(__file__).parent / "golden"
CASES = load_case(GOLDEN / "mvit_data.json")


def replay_draws(numbers: list):
    """A random source that returns these numbers."""
    return iter(numbers).__next__


@pytest.mark.parametrize("case", CASES["temporal_decode"])
def test_frames_of_a_timed_clip_equal_the_originals(case):
    frames = case["num_frames"]
    length = case["video_frames"]
    span = sampling.compute_clip_span(
        frames, stride=case["sampling_rate"], fps=case["fps"], target_fps=case["target_fps"]
    )
    last_start = max(length - span, 0)
    if case["mode"] == "train":
        start = case["u"] * last_start
    else:
        start = sampling.compute_view_start(case["clip_index"], case["num_clips"], last_start)
    chosen = sampling.sample_by_time(start, span=span, frames=frames, length=length)
    assert chosen.tolist() == case["frames"]


@pytest.mark.parametrize("case", CASES["temporal_segments"])
def test_frames_of_segments_equal_the_originals(case):
    frames = case["num_frames"]
    length = case["video_frames"]
    if case["mode"] == "test":
        assert sampling.sample_by_segments(frames, length).tolist() == case["frames"]
        return
    for draw, key in ((0.0, "lowest"), (1 - 1e-9, "highest")):
        result = sampling.sample_by_segments(frames, length, lambda draw=draw: draw)
        assert result.tolist() == case[key]


@pytest.mark.parametrize(
    ("draws", "size", "box"),
    [
        ([0, 0, 0], (426, 320), (0, 0, 224, 224)),  # 1 / 320
        ([1 - 1e-9, 1 - 1e-9, 1 - 1e-9], (341, 256), (116, 31, 224, 224)),
        ([0.5, 0.5, 0.5], (378, 284), (77, 30, 224, 224)),  # 2 / (1 / 320 + 1 / 256) = 284.4
    ],
)
def test_a_scaled_crop_draws_the_short_side_uniformly_in_its_inverse(draws, size, box):
    """The last offset is never drawn: the upper bound of the source is exclusive."""
    draw = replay_draws(draws)
    result = sampling.draw_scaled_crop(640, height=480, scales=(256, 320), crop=224, draw=draw)
    assert result == (size, box)


@pytest.mark.parametrize("case", CASES["random_resized_crop"])
def test_a_random_crop_equals_the_originals(case):
    assert tuple(case["ratio"]) == sampling.ASPECT
    result = sampling.draw_crop_box(
        case["width"], height=case["height"], draw=replay_draws(case["draws"]), area=case["scale"]
    )
    names = ("left", "top", "crop_width", "crop_height")
    assert result == tuple(case[name] for name in names)


@pytest.mark.parametrize("case", CASES["random_erasing"])
def test_an_erased_box_equals_the_originals(case):
    size = case["width"], case["height"]
    result = draw_erase_box(*size, case["probability"], replay_draws(case["draws"]))
    assert (result and [result[1], result[0], result[3], result[2]]) == case["box"]


@pytest.mark.parametrize("case", CASES["cutmix_box"])
def test_a_cutmix_box_equals_the_originals(case):
    center = case["center_y"], case["center_x"]
    result = make_cutmix(case["lam"], *center, case["height"], case["width"])
    assert list(result.box) == case["box"]
    assert result.lam == pytest.approx(case["corrected_lam"])


@pytest.mark.parametrize("case", CASES["targets"])
def test_targets_equal_the_originals(case):
    """Targets are smoothed over the classes of the recipe, then mixed with the reversed batch."""
    multi = case["kind"] == "multi dataset"
    names = list(case["classes"]) if multi else ["one"]
    classes = list(case["classes"].values()) if multi else [case["classes"]]
    rows = case["labels"] if multi else [("one", label) for label in case["labels"]]
    target = np.stack([build_target_row(names.index(n), label, case["lam"]) for n, label in rows])
    options = {"smoothing": 0.1, "smoothing_classes": case.get("smoothing_classes", 0)}
    loss = MultiLoss(tuple(classes), cross_projections=False, **options)
    for k, name in enumerate(names):
        expected = case["target"][name] if multi else case["target"]
        result = loss.build_soft_targets(Tensor(target), k).asnumpy()
        np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("case", CASES["learning_rate"])
def test_learning_rates_equal_the_originals(case):
    epochs, rates = np.array(case["points"]).T
    np.testing.assert_allclose(compute_lr_at(epochs, make_cosine_settings(case)), rates, rtol=1e-8)


def test_an_update_has_the_rate_of_its_last_micro_batch():
    train = SimpleNamespace(
        lr=1.0, warmup_lr=0.0, end_lr=0.0, warmup_epochs=0, epochs=2, accumulation_steps=4,
        base_batch=0,
    )  # fmt: skip
    result = get_lr(train, steps_per_epoch=10, effective_batch=1)
    epochs = np.array([3, 7, 9, 13, 17, 19]) / 10
    np.testing.assert_allclose(result, compute_lr_at(epochs, train))


@without_values
def test_layers_learn_at_the_rates_of_pyslowfast():
    """SOLVER.LAYER_DECAY to the power MVIT.DEPTH + 1 - layer: 0, blocks 1 to DEPTH, DEPTH + 1."""
    cfg = load_smoke_config("mvit_multi", "train.layer_decay=0.5")
    weights = MViT(**cfg.model_arguments()).trainable_params()
    groups = build_parameter_groups(weights, train=cfg.train, lr=np.full(3, 0.4), depth=4)
    assert sum(len(group["params"]) for group in groups) == len(weights)
    rates = {p.name: group["lr"] for group in groups for p in group["params"]}
    layers = {
        "pos_embed_spatial": 2**-5, "patch_embed.": 2**-5, "blocks.0.": 2**-4, "blocks.1.": 2**-3,
        "blocks.2.": 2**-2, "blocks.3.": 2**-1, "norm.": 1, "head.": 1, "expander.": 1,
    }  # fmt: skip
    for start, multiplier in layers.items():
        members = [rate for name, rate in rates.items() if name.startswith(start)]
        assert members, start
        np.testing.assert_allclose(members, 0.4 * multiplier, rtol=1e-12)
    for group in groups:
        assert {p.ndim == 1 for p in group["params"]} == {group["weight_decay"] == 0}
    equal = build_parameter_groups(weights, train=Train(), lr=np.ones(3), depth=4)
    assert [group["lr"].tolist() for group in equal] == [[1.0] * 3] * 2


@pytest.mark.parametrize("name", CASES["parameter_groups"])
@without_values
def test_decay_groups_equal_the_originals(name):
    """The original has a third group for projections, with decay and rate of the first group."""
    net = MViT(**MViTCase(load_case(GOLDEN / f"{name}.json")).model_arguments())
    names = map_torch_names(net)
    settings = {"train": Train(weight_decay=0.05), "lr": np.ones(1), "depth": 24}
    result = {}
    for group in build_parameter_groups(net.trainable_params(), **settings):
        result.setdefault(group["weight_decay"], []).extend(group["params"])
    for decay in (0.05, 0.0):
        groups = [g for g in CASES["parameter_groups"][name] if g["weight_decay"] == decay]
        assert len(result[decay]) == sum(group["tensors"] for group in groups)
        assert sum(p.size for p in result[decay]) == sum(group["elements"] for group in groups)
        if "names" in groups[0]:
            expected = {n for group in groups for n in group["names"]}
            assert {names[p.name] for p in result[decay]} == expected
