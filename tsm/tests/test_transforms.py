"""Crops, flips and the layout of clips, against golden cases of the original and PIL."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers import load_smoke_config
from tests.numbered_videos import write_numbered_video
from tsm import dataset, transforms
from utils.data.annotation_file import Record
from utils.runtime import Runtime

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tsm_data.json").read_text())
SCALES = (1, 0.875, 0.75, 0.66)


def make_noise(count, height, width, channels=3):
    shape = (count, height, width, channels)
    return np.random.RandomState(0).randint(256, size=shape, dtype=np.uint8)


def resize_with_pil(frame, size, box=None):
    """A box (x, y, w, h) of a frame, or all of it, at (width, height): (C, H, W)."""
    corners = box and (box[0], box[1], box[0] + box[2], box[1] + box[3])
    channels = np.ascontiguousarray(np.moveaxis(frame, 2, 0))
    images = [Image.fromarray(channel).crop(corners) for channel in channels]
    return np.stack([image.resize(size, Image.Resampling.BILINEAR) for image in images])


@pytest.mark.parametrize("case", GOLDEN["fixed_crop_offsets"])
def test_crop_offsets_equal_the_originals(case):
    positions = (
        transforms.CROP_POSITIONS if case["more_fix_crop"] else transforms.CROP_POSITIONS[:5]
    )
    sizes = {"height": case["image_h"], "crop": (case["crop_w"], case["crop_h"])}
    offsets = transforms.compute_crop_offsets(case["image_w"], **sizes, positions=positions)
    assert [list(offset) for offset in offsets] == case["offsets_x_y"]


def test_training_crops_equal_the_originals():
    for case in GOLDEN["multiscale_candidates"]:
        assert case["max_distort"] == transforms.MAX_DISTORT
        sizes = case["image_w"], case["image_h"], case["input_size"]
        pairs = transforms.list_crop_sizes(*sizes, case["scales"])
        assert [list(pair) for pair in pairs] == case["candidate_w_h"]
    for case in GOLDEN["multiscale_seeded"]:
        rng = random.Random(case["python_random_seed"])
        sizes = case["image_w"], case["image_h"], case["input_size"]
        boxes = [transforms.draw_crop(*sizes, case["scales"], rng) for _ in case["w_h_x_y"]]
        assert [[w, h, x, y] for x, y, w, h in boxes] == case["w_h_x_y"]


def list_views(case: dict, boxes: list) -> list[dict]:
    """The golden layout of (box, mirrored): every view has all images."""
    return [
        {"box": [x, y, x + w, y + h], "flipped": flipped}
        for (x, y, w, h), flipped in boxes
        for _ in range(case["images"])
    ]


def test_three_five_and_ten_boxes_equal_the_originals():
    """The zoo does not mirror the three boxes."""
    three = [(case, 3) for case in GOLDEN["full_res_sample"] if not case["flip"]]
    more = [(case, 10 if case["flip"] else 5) for case in GOLDEN["over_sample"]]
    assert three
    for case, crops in (*three, *more):
        sizes = case["image_w"], case["image_h"], case["crop"]
        assert list_views(case, transforms.list_view_boxes(*sizes, crops)) == case["result"]


def test_scaled_sizes_and_centre_crops_equal_the_originals():
    for group in GOLDEN["group_scale"]:
        for case in group["cases"]:
            size = transforms.short_side_size(case["image_w"], case["image_h"], group["short_side"])
            assert size == (case["scaled_w"], case["scaled_h"])
    for group in GOLDEN["center_crop"]:
        for case in group["cases"]:
            expected = case["x"], case["y"], group["crop"], group["crop"]
            sizes = case["image_w"], case["image_h"], group["crop"]
            assert transforms.list_view_boxes(*sizes, 1) == [(expected, False)]


@pytest.mark.parametrize(("channels", "length"), [(3, 1), (2, 5), (3, 2)])
@pytest.mark.parametrize("flip", [False, True])
def test_a_training_clip_is_one_crop_of_all_frames(channels, length, flip):
    frames = make_noise(4 * length, height=50, width=70, channels=channels)
    settings = {"frames_per_segment": length, "size": 32, "scales": SCALES, "flip": True}
    clip, flipped = transforms.make_train_clip(frames, **settings, rng=FixedRandom(5, flip))
    assert flipped is flip
    assert clip.shape == (4, length * channels, 32, 32)
    assert clip.dtype == np.uint8
    assert clip.flags.c_contiguous
    box = transforms.draw_crop(70, height=50, size=32, scales=SCALES, rng=random.Random(5))
    for t in range(4):
        for k in range(length):
            expected = resize_with_pil(frames[t * length + k], (32, 32), box)
            expected = mirror_image(expected) if flip else expected
            assert np.array_equal(clip[t, k * channels : (k + 1) * channels], expected)


class FixedRandom:
    """Draws crops from a seed; `flip` decides whether a clip is mirrored."""

    def __init__(self, seed, flip):
        self.choice = random.Random(seed).choice
        self.flip = flip

    def random(self):
        return 0.49 if self.flip else 0.5


def mirror_image(image):
    """(C, H, W) with left and right swapped; flow x inverted too."""
    image = image[:, :, ::-1]
    return np.stack((255 - image[0], image[1])) if len(image) == 2 else image


@pytest.mark.parametrize("crops", [1, 3, 5, 10])
@pytest.mark.parametrize(("channels", "length"), [(3, 1), (2, 5)])
def test_views_are_ordered_by_crop_then_by_clip(crops, channels, length):
    clips = 2
    segments = 3
    frames = make_noise(clips * segments * length, height=40, width=61, channels=channels)
    cut = transforms.cut_crops(frames, resize_to=32, crop=28, crops=crops)
    views = transforms.arrange_views(cut, range(len(frames)), clips=clips, segments=segments)
    assert views.shape == (crops * clips, segments, length * channels, 28, 28)
    assert views.flags.c_contiguous
    width, height = transforms.short_side_size(61, 40, 32)
    small = [resize_with_pil(frame, (width, height)) for frame in frames]
    view = 0
    boxes = transforms.list_view_boxes(width, height=height, crop=28, crops=crops)
    for (x, y, w, h), flipped in boxes:
        for clip in range(clips):
            for t in range(segments):
                for k in range(length):
                    frame = small[(clip * segments + t) * length + k]
                    expected = frame[:, y : y + h, x : x + w]
                    expected = mirror_image(expected) if flipped else expected
                    part = views[view, t, k * channels : (k + 1) * channels]
                    assert np.array_equal(part, expected)
            view += 1


def test_a_validation_in_training_takes_one_centre_crop_of_the_size_in_training(tmp_path):
    write_numbered_video(tmp_path / "a.mp4", frames=40, width=96, height=64, rate=30)
    record = Record(str(tmp_path / "a.mp4"), num_frames=None, label=4, line=1)
    sizes = ("data.resize=64", "data.crop=48")
    cfg = load_smoke_config("tsm", *sizes, "eval.clips=2", "eval.crops=3", "eval.crop=64")
    one_view = load_smoke_config("tsm", *sizes, "eval.clips=1", "eval.crops=1")
    clips, _, _ = dataset.EvalVideos([record], cfg=cfg, rt=Runtime(), split="val")[0]
    expected, _, _ = dataset.EvalVideos([record], one_view, Runtime())[0]
    assert clips.shape == (1, 8, 3, 48, 48)
    np.testing.assert_array_equal(clips, expected)
