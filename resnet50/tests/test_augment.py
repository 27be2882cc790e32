"""TrivialAugmentWide against torchvision's results; erasing; repeated augmentation; cutmix."""

import dataclasses
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet50.config import Config, Data
from resnet50.dataset import build_train_sampler
from resnet50.readers import Images
from resnet50.transforms import MAGNITUDES, apply_operator, augment
from tests.golden_cases import load_case
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.load_config import load_config
from utils.runtime import Runtime

CASE = load_case(Path(__file__).parent / "golden" / "trivial_augment.json")
DATA = Data(root=Path(), crop=8, mixup=0.2, cutmix=1.0, policy="trivial", erase=0.1)
V2 = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_torchvision_v2.yaml"


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    """The image of the recorded cases: smooth colours, 20 x 24 pixels."""
    small = np.random.RandomState(0).randint(0, 256, (6, 7, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((24, 20), Image.Resampling.BICUBIC))


def test_operators_and_magnitudes_are_torchvisions():
    assert list(MAGNITUDES) == list(CASE["magnitudes"])
    for name, (magnitudes, signed) in MAGNITUDES.items():
        assert np.round(magnitudes.astype(float), 9).tolist() == CASE["magnitudes"][name]
        assert signed == (name in CASE["signed"])


@pytest.mark.parametrize("case", CASE["cases"], ids=lambda c: f"{c['name']} {c['magnitude']:.2f}")
def test_an_operator_gives_torchvisions_pixels(image, case):
    result = apply_operator(image, case["name"], case["magnitude"])
    assert result.dtype == np.uint8
    assert zlib.crc32(np.ascontiguousarray(result)) == case["crc32"]


def test_an_erased_box_has_the_mean_colour(image):
    data = dataclasses.replace(DATA, policy="none", erase=0.999)
    result = augment(image, data, np.random.RandomState(1))
    changed = (result != image).any(axis=2)
    rows = np.flatnonzero(changed.any(1))
    columns = np.flatnonzero(changed.any(0))
    box = result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert (box == [124, 116, 104]).all()
    assert 0 < box.size < image.size


def test_repeated_augmentation_equals_torchvisions_sampler():
    """Its rank r of R takes every R-th entry, from r on, of the permutation with copies."""
    for size in (1, 2, 4):
        ranks = [
            TrainSampler(50, batch=3, rank=rank, size=size, seed=7, copies=4)
            for rank in range(size)
        ]
        for epoch in (0, 1):
            drawn = np.random.RandomState([7, epoch]).permutation(50)
            whole = np.repeat(drawn, 4)[: ranks[0].samples_per_epoch]
            for rank, sampler in enumerate(ranks):
                count = len(whole[rank::size])
                positions = range(epoch * count, (epoch + 1) * count)
                samples = [sampler.sample_at(position)[0] for position in positions]
                np.testing.assert_array_equal(samples, whole[rank::size])
                copies = [sampler.repetition_at(position) for position in positions]
                np.testing.assert_array_equal(copies, (np.arange(len(whole)) % 4)[rank::size])
        assert ranks[0].steps_per_epoch == 50 // (3 * size)


class Unread(Images):
    labels = np.zeros(5000, np.int64)

    def __getitem__(self, index):
        raise NotImplementedError


def test_the_recipe_repeats_each_image_on_four_ranks():
    cfg = load_config(Config, V2)
    samplers = [build_train_sampler(cfg, Unread(), Runtime(rank, 8)) for rank in range(8)]
    batch = range(cfg.data.batch)
    step = np.array([[sampler.sample_at(k)[0] for k in batch] for sampler in samplers])
    assert set(np.unique(step, return_counts=True)[1]) == {4}
    assert all(len(set(row)) == cfg.data.batch for row in step)
    kept = dataclasses.replace(samplers[0], epoch_samples=2048)  # as a resumed run does
    assert (kept.copies, kept.steps_per_epoch) == (4, 2)
    assert [kept.sample_at(k) for k in range(256)] == [samplers[0].sample_at(k) for k in range(256)]
