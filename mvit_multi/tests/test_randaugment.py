"""RandAugment: the draws of the original, the pixels of Pillow, and only where they are needed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from mvit_multi import color_ops, transforms
from mvit_multi import randaugment as ra
from mvit_multi.policy import Policy, parse_policy
from mvit_multi.sampling import random_box
from utils.testing.golden import load_case
from utils.video.transforms import cut_clips

CASES = load_case(Path(__file__).parent / "golden" / "mvit_data.json")["rand_augment_args"]
POLICY = Policy(7.0, 4, 0.5)
FILL = (128, 128, 128)


def darker_add(picture: Image.Image, value: int) -> Image.Image:
    return picture.point([min(255, i + value) if i < 128 else i for i in range(256)] * 3)


def affine(picture: Image.Image, *matrix: float) -> Image.Image:
    return picture.transform(
        picture.size, Image.AFFINE, matrix, resample=Image.BICUBIC, fillcolor=FILL
    )


PILLOW = {
    "AutoContrast": ImageOps.autocontrast,
    "Equalize": ImageOps.equalize,
    "Invert": ImageOps.invert,
    "Rotate": lambda p, angle: p.rotate(angle, resample=Image.BICUBIC, fillcolor=FILL),
    # Later versions of Pillow refuse to keep no bit at all.
    "PosterizeIncreasing": lambda p, bits: p.point([i & 0xFF << 8 - bits for i in range(256)] * 3),
    "SolarizeIncreasing": ImageOps.solarize,
    "SolarizeAdd": darker_add,
    "ColorIncreasing": lambda p, factor: ImageEnhance.Color(p).enhance(factor),
    "ContrastIncreasing": lambda p, factor: ImageEnhance.Contrast(p).enhance(factor),
    "BrightnessIncreasing": lambda p, factor: ImageEnhance.Brightness(p).enhance(factor),
    "SharpnessIncreasing": lambda p, factor: ImageEnhance.Sharpness(p).enhance(factor),
    "ShearX": lambda p, factor: affine(p, 1, factor, 0, 0, 1, 0),
    "ShearY": lambda p, factor: affine(p, 1, 0, 0, factor, 1, 0),
    "TranslateXRel": lambda p, share: affine(p, 1, 0, share * p.size[0], 0, 1, 0),
    "TranslateYRel": lambda p, share: affine(p, 1, 0, 0, 0, 1, share * p.size[1]),
}


def pictures() -> dict[str, np.ndarray]:
    """Frames of several kinds, wide, high and tiny."""
    rng = np.random.RandomState(0)
    noise = rng.randint(0, 256, (2, 61, 83, 3)).astype(np.uint8)
    across, down = np.linspace(0, 255, 40)[:, None], np.linspace(20, 90, 70)
    ramp = np.stack([across + 0 * down, across * 0 + down, (across + down) / 2], -1)
    return {
        "noise": noise,
        "dark": noise // 3 + 40,
        "black and white": (noise > 100).astype(np.uint8) * 255,
        "smooth": np.stack([ramp, ramp[::-1]]).astype(np.uint8),
        "one colour": np.broadcast_to(np.array([3, 100, 255], np.uint8), (2, 30, 20, 3)).copy(),
        "tiny": noise[:, :2, :3],
        "a pixel": noise[:, :1, :1],
    }


PICTURES = pictures()


def by_pillow(frames: np.ndarray, steps: list[ra.Step]) -> np.ndarray:
    for name, values in steps:
        made = [PILLOW[name](Image.fromarray(frame.copy()), *values) for frame in frames]
        frames = np.stack([np.asarray(picture) for picture in made])
    return frames


@pytest.mark.parametrize("case", CASES)
def test_arguments_of_the_operators(case):
    assert list(ra.NAMES) == list(case["args"])
    for name, expected in case["args"].items():
        found = ra.arguments(name, case["magnitude"], case["sign"])
        assert list(found) == pytest.approx(expected), name


@pytest.mark.parametrize("name", ra.NAMES)
@pytest.mark.parametrize("kind", PICTURES)
def test_operators_give_pillows_pixels(name, kind):
    """The very same, but for warps: one level in three numbers of a thousand, or one.

    So many only for even magnitudes, whose sums are whole levels but for Pillow's rounding.
    """
    frames, warped = PICTURES[kind], name in ra.MATRICES
    for magnitude in (0, 3.3, 6.4, 7, 7.7, 9.9, 10):
        for sign in (1, -1):
            step = ra.Step(name, ra.arguments(name, magnitude, sign))
            found, expected = ra.augment(frames, [step]), by_pillow(frames, [step])
            assert (found.shape, found.dtype) == (frames.shape, np.uint8)
            away = np.abs(found.astype(int) - expected)
            assert away.max() <= warped
            assert np.sum(away) <= warped * max(1, 3e-3 * away.size)


def test_two_pictures_are_mixed_to_pillows_levels_for_all_pairs_of_levels():
    """Also for factors that bring a difference of levels to a hair below a whole number."""
    base = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 256, 3)).copy()
    other, out = base.transpose(1, 0, 2).copy(), np.empty_like(base)
    factors = np.random.RandomState(0).uniform(0.1, 1.9, 40)
    for factor in (0.1, 0.37, 1.0, 1.57, 1.63, 1.9, *factors):
        color_ops.mix(base, other, factor, out)
        expected = Image.blend(Image.fromarray(base), Image.fromarray(other), factor)
        np.testing.assert_array_equal(out, np.asarray(expected))


def test_drawn_warps_differ_in_few_numbers():
    frames, rng, away = PICTURES["noise"], np.random.RandomState(0), []
    for name in list(ra.MATRICES) * 8:
        step = ra.Step(name, ra.arguments(name, rng.normal(7, 0.5), rng.choice([-1, 1])))
        away.append(ra.augment(frames, [step]) != by_pillow(frames, [step]))
    assert np.mean(away) < 3e-4


def test_operators_in_a_row_stay_close_to_pillow():
    """Equalising and solarising make more of a level's difference."""
    frames = PICTURES["smooth"]
    for seed in range(60):
        steps = ra.draw_steps(POLICY, np.random.RandomState(seed))
        found, expected = ra.augment(frames, steps), by_pillow(frames, steps)
        away = np.abs(found.astype(int) - expected)
        if not any(name in ra.MATRICES for name, _ in steps):
            assert away.max() == 0, steps
        assert away.mean() < 0.02, steps


def test_a_box_is_what_would_have_been_cut_out_of_all():
    rng, names = np.random.RandomState(0), set()
    for seed in range(200):
        frames = PICTURES[("noise", "smooth", "tiny")[seed % 3]]
        steps = ra.draw_steps(POLICY, np.random.RandomState(seed))
        names |= {name for name, _ in steps}
        height, width = frames.shape[1:3]
        x, y = rng.randint(width), rng.randint(height)
        w, h = rng.randint(1, width - x + 1), rng.randint(1, height - y + 1)
        found = ra.augment(frames, steps, (x, y, w, h))
        whole = ra.augment(frames, steps)
        np.testing.assert_array_equal(found, whole[:, y : y + h, x : x + w], str(steps))
    assert names == set(ra.NAMES)


def test_frames_are_left_as_they_are():
    """Both copies of a video are made of them."""
    frames = PICTURES["noise"]
    before = frames.copy()
    for seed in range(20):
        ra.augment(frames, ra.draw_steps(POLICY, np.random.RandomState(seed)))
    np.testing.assert_array_equal(frames, before)


def test_a_training_clip_is_cut_out_of_augmented_frames():
    frames, policy = PICTURES["noise"], parse_policy("rand-m7-n4-mstd0.5-inc1")
    for seed in range(10):
        clip, _ = transforms.train_clip(
            frames, 32, (0.08, 1.0), policy, 0.0, False, np.random.RandomState(seed)
        )
        rng = np.random.RandomState(seed)
        augmented = ra.augment(frames, ra.draw_steps(policy, rng))
        x, y, w, h = random_box(83, 61, rng.uniform, (0.08, 1.0))
        part = augmented[:, y : y + h, x : x + w]
        (expected,) = cut_clips(part, (32, 32), [(0, 0, 32, 32)])
        np.testing.assert_array_equal(clip, expected)


def test_warps_go_the_right_way_and_are_filled_with_grey():
    """Rotation counterclockwise; shear and shift take output x from x + factor * y, + share."""
    frames = np.zeros((1, 21, 21, 3), np.uint8)
    frames[0, 10, 15:] = 255  # a line from the middle to the right
    up = ra.augment(frames, [ra.Step("Rotate", (90.0,))])[0]
    assert up[3, 10, 0] > 200
    assert up[17, 10, 0] < 50
    corner = ra.augment(frames, [ra.Step("Rotate", (45.0,))])[0, 0, 0]
    assert corner.tolist() == [128, 128, 128]
    moved = ra.augment(frames, [ra.Step("TranslateXRel", (1 / 3,))])[0]
    assert moved[10, 10, 0] > 200
    assert moved[0, -1].tolist() == [128, 128, 128]


def test_policies():
    assert parse_policy("rand-m7-n4-mstd0.5-inc1") == (7.0, 4, 0.5)
    assert parse_policy("rand-m9-n2-inc1") == (9.0, 2, 0.0)
    for text in ("rand-m7-n4-mstd0.5", "augmix", "rand-mx-n4-inc1"):
        with pytest.raises(ValueError, match=r"data.rand_augment"):
            parse_policy(text)


def test_draws_of_a_seed_stay_what_they_are():
    """Also how much is drawn, which decides about the crop that follows."""
    rng = np.random.RandomState(3)
    steps = ra.draw_steps(POLICY, rng)
    assert [name for name, _ in steps] == [ra.NAMES[10], ra.NAMES[8], ra.NAMES[9]]
    factors = [values[0] for _, values in steps]
    assert factors == pytest.approx([1.6741249241630898, 0.36878414311924645, 0.3907018954298207])
    assert rng.uniform() == pytest.approx(0.2784872826479753)
    rng = np.random.RandomState(7)
    steps = ra.draw_steps(POLICY, rng)
    assert steps == [
        ("BrightnessIncreasing", (pytest.approx(0.4192048781160328),)),
        ("SolarizeAdd", (72,)),
    ]
    assert rng.uniform() == pytest.approx(0.8688014582078086)


def test_half_of_the_operators_are_applied():
    rng = np.random.RandomState(0)
    applied = [len(ra.draw_steps(Policy(7.0, 1, 0.5), rng)) for _ in range(600)]
    assert np.mean(applied) == pytest.approx(0.5, abs=0.06)
