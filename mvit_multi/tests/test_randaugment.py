"""RandAugment: random arguments equal the original's, pixels equal Pillow's."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from mvit_multi import transforms
from mvit_multi.config import Data, DatasetSettings
from mvit_multi.sampling import draw_crop_box, draw_scaled_crop
from tests.golden_cases import load_case
from utils.video import randaugment as ra
from utils.video.augment import Policy, parse_policy
from utils.video.transforms import cut_clips

CASES = load_case(Path(__file__).parent / "golden" / "mvit_data.json")["rand_augment_args"]
POLICY = Policy(7.0, 4, 0.5)
FILL = (128, 128, 128)


def add_to_dark_levels(picture: Image.Image, value: int) -> Image.Image:
    return picture.point([min(255, i + value) if i < 128 else i for i in range(256)] * 3)


def warp_affine(picture: Image.Image, *matrix: float) -> Image.Image:
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
    "SolarizeAdd": add_to_dark_levels,
    "ColorIncreasing": lambda p, factor: ImageEnhance.Color(p).enhance(factor),
    "ContrastIncreasing": lambda p, factor: ImageEnhance.Contrast(p).enhance(factor),
    "BrightnessIncreasing": lambda p, factor: ImageEnhance.Brightness(p).enhance(factor),
    "SharpnessIncreasing": lambda p, factor: ImageEnhance.Sharpness(p).enhance(factor),
    "ShearX": lambda p, factor: warp_affine(p, 1, factor, 0, 0, 1, 0),
    "ShearY": lambda p, factor: warp_affine(p, 1, 0, 0, factor, 1, 0),
    "TranslateXRel": lambda p, fraction: warp_affine(p, 1, 0, fraction * p.size[0], 0, 1, 0),
    "TranslateYRel": lambda p, fraction: warp_affine(p, 1, 0, 0, 0, 1, fraction * p.size[1]),
}


def make_pictures() -> dict[str, np.ndarray]:
    """Frames of several kinds, wide, high and tiny."""
    noise = np.random.RandomState(0).randint(0, 256, (2, 61, 83, 3)).astype(np.uint8)
    across = np.linspace(0, 255, 40)[:, None]
    down = np.linspace(20, 90, 70)
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


PICTURES = make_pictures()


def apply_with_pillow(frames: np.ndarray, operations: list[ra.Operation]) -> np.ndarray:
    for name, values in operations:
        images = [PILLOW[name](Image.fromarray(frame.copy()), *values) for frame in frames]
        frames = np.stack([np.asarray(picture) for picture in images])
    return frames


@pytest.mark.parametrize("case", CASES)
def test_arguments_of_the_operators_equal_the_originals(case):
    assert list(ra.OPERATORS) == list(case["args"])
    for name, expected in case["args"].items():
        result = ra.compute_arguments(name, case["magnitude"], case["sign"])
        assert list(result) == pytest.approx(expected), name


@pytest.mark.parametrize("name", ra.OPERATORS)
@pytest.mark.parametrize("kind", PICTURES)
def test_pixels_of_the_operators_equal_pillows(name, kind):
    """Exactly equal, except warps: three values of a thousand (at least one) may differ by a level.

    That many differ only for even magnitudes: their sums are whole levels up to Pillow's rounding.
    """
    frames = PICTURES[kind]
    warped = name in ra.WARP_MATRICES
    for magnitude in (0, 3.3, 6.4, 7, 7.7, 9.9, 10):
        for sign in (1, -1):
            step = ra.Operation(name, ra.compute_arguments(name, magnitude, sign))
            result = ra.apply_operations(frames, [step])
            expected = apply_with_pillow(frames, [step])
            assert (result.shape, result.dtype) == (frames.shape, np.uint8)
            difference = np.abs(result.astype(int) - expected)
            assert difference.max() <= warped
            assert np.sum(difference) <= warped * max(1, 3e-3 * difference.size)


def test_two_pictures_are_mixed_to_pillows_levels_for_all_pairs_of_levels():
    """Also for factors for which a difference of levels is just below an integer."""
    base = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 256, 3)).copy()
    other = base.transpose(1, 0, 2).copy()
    out = np.empty_like(base)
    factors = np.random.RandomState(0).uniform(0.1, 1.9, 40)
    for factor in (0.1, 0.37, 1.0, 1.57, 1.63, 1.9, *factors):
        ra.blend_frames(base, frame=other, factor=factor, out=out)
        expected = Image.blend(Image.fromarray(base), Image.fromarray(other), factor)
        np.testing.assert_array_equal(out, np.asarray(expected))


def test_a_result_for_a_box_equals_a_crop_of_the_full_result():
    rng = np.random.RandomState(0)
    names = set()
    for seed in range(200):
        frames = PICTURES[("noise", "smooth", "tiny")[seed % 3]]
        operations = ra.draw_operations(POLICY, np.random.RandomState(seed))
        names |= {name for name, _ in operations}
        height, width = frames.shape[1:3]
        x = rng.randint(width)
        y = rng.randint(height)
        w = rng.randint(1, width - x + 1)
        h = rng.randint(1, height - y + 1)
        result = ra.apply_operations(frames, operations, (x, y, w, h))
        full = ra.apply_operations(frames, operations)
        np.testing.assert_array_equal(result, full[:, y : y + h, x : x + w], str(operations))
    assert names == set(ra.OPERATORS)


@pytest.mark.parametrize("scales", [None, (40, 50)])
def test_a_training_clip_is_a_crop_of_augmented_frames(scales):
    """With scales, a square of the scaled frames."""
    frames = PICTURES["noise"]
    sets = (DatasetSettings(name="one", num_classes=2),)
    data = Data(Path(), sets=sets, crop=32, repeated_aug=1, erase=0.0, scales=scales)
    for seed in range(10):
        rng = np.random.RandomState(seed)
        (clip,), _ = transforms.make_train_clips(frames, data, flip=False, rng=rng)
        rng = np.random.RandomState(seed)
        part = ra.apply_operations(frames, ra.draw_operations(POLICY, rng))
        size = (32, 32)
        box = (0, 0, 32, 32)
        if scales:
            size, box = draw_scaled_crop(83, height=61, scales=scales, crop=32, draw=rng.uniform)
        else:
            x, y, w, h = draw_crop_box(83, height=61, draw=rng.uniform, area=(0.08, 1.0))
            part = part[:, y : y + h, x : x + w]
        (expected,) = cut_clips(part, size, [box])
        np.testing.assert_array_equal(clip, expected)


def test_a_policy_has_the_operators_and_magnitudes_of_its_name():
    assert parse_policy("rand-m7-n4-mstd0.5-inc1") == (7.0, 4, 0.5)
    assert parse_policy("rand-m9-n2-inc1") == (9.0, 2, 0.0)
    for text in ("rand-m7-n4-mstd0.5", "augmix", "rand-mx-n4-inc1"):
        with pytest.raises(ValueError, match=r"data.rand_augment"):
            parse_policy(text)


def test_random_operators_of_a_seed_do_not_change():
    """The number of random values matters too: the random crop uses the next ones."""
    rng = np.random.RandomState(3)
    operations = ra.draw_operations(POLICY, rng)
    names = ["SharpnessIncreasing", "ContrastIncreasing", "BrightnessIncreasing"]
    assert [name for name, _ in operations] == names
    factors = [values[0] for _, values in operations]
    assert factors == pytest.approx([1.6741249241630898, 0.36878414311924645, 0.3907018954298207])
    assert rng.uniform() == pytest.approx(0.2784872826479753)
