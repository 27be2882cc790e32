"""Sampling, crops, pixels, learning rates and rounding against the recorded original."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from tests.golden_cases import generate_input, load_case
from utils.tests.parity import make_cosine_settings
from utils.train import optimizers
from utils.video import transforms as views
from x3d import sampling, transforms
from x3d.lr_generator import compute_lr_at, get_lr
from x3d.model import round_width

CASES = load_case(Path(__file__).parent / "golden" / "x3d_data.json")


def select_indices(start: float, span: float, frames: int, length: int, ticks: int) -> np.ndarray:
    """The frames of a clip as read by the source's PyAV reader of September 2021.

    It decodes only a window: the frames with time stamps (`ticks` per frame) between those of start
    and end, and one frame more. The clip is spread over these frames.
    """
    start_time = int(start * ticks)
    end_time = int((start + span - 1) * ticks)
    inside = [i for i in range(length) if start_time <= i * ticks <= end_time]
    kept = np.array([*inside, *([inside[-1] + 1] if inside[-1] + 1 < length else [])])
    return kept[sampling.spread_frame_indices(0.0, span=span, frames=frames, length=len(kept))]


TEMPORAL = CASES["temporal"] + CASES["temporal_random"] + CASES["temporal_selective"]


@pytest.mark.parametrize("case", TEMPORAL)
def test_frames_of_a_clip_equal_the_originals(case):
    """Test clips, random training clips (`u`), and the reader that decodes a window (`ticks`)."""
    frames = case["num_frames"]
    length = case["video_frames"]
    stride = case["sampling_rate"]
    size = sampling.compute_clip_span(frames, stride=stride, fps=case["fps"], target_fps=30.0)
    relative_start = case["u"] if "u" in case else case["clip_idx"] / case["num_clips"]
    start = sampling.compute_start(relative_start, length, size)
    if "clip_size" in case:
        assert (size, start) == (pytest.approx(case["clip_size"]), pytest.approx(case["start"]))
    clip = start, size, frames, length
    if "ticks_per_frame" in case:
        indices = select_indices(*clip, case["ticks_per_frame"])
    else:
        indices = sampling.spread_frame_indices(*clip)
    assert indices.tolist() == case["indices"]


@pytest.mark.parametrize("case", CASES["test_index"])
def test_views_of_a_video_are_ordered_by_clip(case):
    """A view of the original has the clip and the crop of the same view here.

    The frame of clip k has the red value k; its green value is the column, so the crops differ.
    """
    clips = case["num_clips"]
    crops = case["num_crops"]
    frames = np.zeros((clips, 8, 24, 3), np.uint8)
    frames[..., 0] = np.arange(clips)[:, None, None]
    frames[..., 1] = np.arange(24)
    cut = views.cut_crops(frames, side=8, crop=8, crops=crops)
    result = views.arrange_views(cut, np.arange(clips)[:, None])
    assert len(result) == clips * crops
    clip = result[case["flat_index"] % len(result), :, 0]
    x, *_ = views.view_box(24, height=8, crop=8, location=case["spatial_idx"])
    assert (clip[0] == case["clip_idx"]).all()
    assert (clip[1] == np.arange(x, x + 8)).all()


@pytest.mark.parametrize("case", CASES["uniform_crop"])
def test_evaluation_crops_equal_the_originals(case):
    size = views.scale_short_side(case["width"], case["height"], case["scale"])
    assert list(size[::-1]) == case["resized"]
    box = views.view_box(*size, case["crop"], case["spatial_idx"])
    assert box[:2] == (case["x0"], case["y0"])


@pytest.mark.parametrize("case", CASES["random_spatial"])
def test_training_crops_equal_the_originals(case):
    rng = np.random.RandomState(case["numpy_legacy_seed"])
    limits = case["min_scale"], case["max_scale"], case["crop"]
    size, box, flip = transforms.draw_scale_crop_flip(case["width"], case["height"], *limits, rng)
    assert list(size[::-1]) == case["resized"]
    assert (*box[:2], flip) == (case["x0"], case["y0"], case["flip"])


@pytest.mark.parametrize("case", CASES["pixels"])
def test_pixels_equal_the_originals(case):
    """The float pixels, rounded to a level."""
    draw = generate_input(case["input_seed"], case["input_shape_thwc"])
    frames = np.clip(np.rint(draw * 50 + 128), 0, 255).astype(np.uint8)
    size = views.scale_short_side(frames.shape[2], frames.shape[1], case["scale"])
    box = views.view_box(*size, case["crop"], case["spatial_idx"])
    (clip,) = views.cut_clips(frames, size, [box])
    levels = (np.array(case["output"]) * 0.225 + 0.45) * 255
    assert np.abs(clip - levels).max() < 0.501


@pytest.mark.parametrize("case", CASES["lr"], ids=lambda case: case["name"])
def test_rates_equal_the_originals(case):
    for epoch, expected in case["pairs"]:
        result = compute_lr_at(np.float64(epoch), make_cosine_settings(case))
        assert result == pytest.approx(expected, rel=1e-9, abs=1e-15), epoch


def test_rates_change_with_every_update_and_scale_with_the_batch():
    case = CASES["lr"][0]
    settings = make_cosine_settings(case, base_batch=128)
    plain, double = (get_lr(settings, 4, batch) for batch in (128, 256))
    assert len(plain) == 4 * case["max_epoch"]
    assert plain[2] == pytest.approx(dict(case["pairs"])[0.5])
    np.testing.assert_allclose(double, 2 * plain)


def test_updates_of_the_optimizer_follow_the_formula():
    case = CASES["sgd"]
    count = len(case["weight_decay"])
    values = [generate_input(case["seed"] + i, (4,)) for i in range(count)]
    weights = [Parameter(value, name=f"p{i}") for i, value in enumerate(values)]
    groups = [
        {"params": [weight], "lr": case["lr_per_step"], "weight_decay": decay}
        for weight, decay in zip(weights, case["weight_decay"])
    ]
    opt = optimizers.SGD(
        weights, groups=groups, momentum=case["momentum"], nesterov=case["nesterov"]
    )
    for t, after in enumerate(case["after"]):
        seeds = [case["seed"] + 100 * (t + 1) + i for i in range(count)]
        opt(tuple(Tensor(generate_input(seed, (4,))) for seed in seeds))
        for weight, expected in zip(weights, after):
            np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_rounding_equals_the_originals():
    for case in CASES["rounding"]["round_width"]:
        arguments = case["width"], case["multiplier"], case["min_width"], case["divisor"]
        assert round_width(*arguments) == case["out"]
