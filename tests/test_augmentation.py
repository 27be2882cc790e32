"""Mixup, cutmix, RandAugment, random erasing and label smoothing of TSM and X3D."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.toy_recipes import build_toy_training, draw_samples, load_toy_config
from utils.data.rows import TrainRows
from utils.networks import find_network
from utils.runtime import Runtime, eager_mode
from utils.tests.parity import mark_slow_except
from utils.train.train_step import TrainStep
from utils.video.augment import augment_frames

POLICY = "rand-m9-n2-mstd0.5-inc1"
MIXED = ["data.mixup=0.2", "data.cutmix=1", "train.smoothing=0.1"]
AUGMENTED = [f"data.rand_augment={POLICY}", "data.erase=0.8"]
NETWORKS = ("tsm", "x3d")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    draw_samples("tsm", folder)
    return folder


def build_rows(name: str, root: Path, *settings: str, skip: int = 0) -> TrainRows:
    network = find_network(name)
    cfg = load_toy_config(name, f"data.root={root}", *settings)
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, Runtime())
    return network.train_rows(records, cfg=cfg, sampler=sampler, epochs=2, skip=skip)


def build_step(name: str, *settings: str) -> TrainStep:
    cfg = load_toy_config(name, "run.device=CPU", *settings)
    return build_toy_training(name, cfg)[0].set_train()


@pytest.mark.parametrize("name", NETWORKS)
def test_mixing_changes_targets_only(name, root):
    plain = build_rows(name, root)
    mixed = build_rows(name, root, *MIXED)
    for index in range(8):
        clip, label = plain[index]
        same, target = mixed[index]
        np.testing.assert_array_equal(same, clip)
        assert label.dtype == np.int32
        assert target.dtype == np.float32
        assert target[0] == label
    batches = [np.stack([mixed[2 * k + i][1] for i in (0, 1)]) for k in range(8)]
    assert all(sorted(batch[:, 2]) == [0, 1] for batch in batches)
    assert all((batch[0, 3:] == batch[1, 3:]).all() for batch in batches)
    assert len({batch[0, 1] for batch in batches}) > 4


@pytest.mark.parametrize("name", NETWORKS)
def test_a_resumed_run_has_the_same_rows(name, root):
    rows = build_rows(name, root, *MIXED, *AUGMENTED)
    resumed = build_rows(name, root, *MIXED, *AUGMENTED, skip=3)
    for index in range(4):
        for value, again in zip(rows[6 + index], resumed[index]):
            np.testing.assert_array_equal(value, again)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_frames_of_a_crop_are_augmented_alike_after_its_own_draws(name, root):
    plain = build_rows(name, root)
    augmented = build_rows(name, root, *AUGMENTED)
    axis = {"tsm": 1, "x3d": 0}[name]
    for seed in range(8):
        rng = np.random.RandomState(seed)
        clip, label = plain.make_row(plain.records[0], rng)
        before = clip.copy()
        frames = augment_frames(np.moveaxis(clip, axis, -1), policy=POLICY, erase=0.8, rng=rng)
        expected = np.moveaxis(frames, -1, axis)
        assert (expected != before).any()
        result, same = augmented.make_row(plain.records[0], np.random.RandomState(seed))
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(clip, before)
        assert same == label


def test_an_erased_box_is_noise_in_all_frames_and_the_rest_stays():
    frames = np.zeros((3, 32, 40, 3), np.uint8)
    result = augment_frames(frames, policy="", erase=1.0, rng=np.random.RandomState(0))
    changed = result.any(3)
    rows, columns = (changed.any((0, k)) for k in (2, 1))
    box = result[:, rows][:, :, columns]
    assert 0.02 * 32 * 40 < rows.sum() * columns.sum() < 0.34 * 32 * 40
    assert np.diff(np.flatnonzero(rows)).max() == np.diff(np.flatnonzero(columns)).max() == 1
    assert abs(box.mean() / 255 - 0.45) < 0.03
    assert (box[0] != box[1]).any()
    assert not frames.any()


@pytest.mark.parametrize("name", mark_slow_except(NETWORKS, "tsm"))
def test_a_step_with_mixing_returns_the_loss_of_the_mixture(name, root):
    rows = build_rows(name, root, *MIXED)
    batches = [[np.stack(column) for column in zip(rows[k], rows[k + 1])] for k in (0, 2)]
    step = build_step(name, *MIXED)
    losses = []
    for clip, target in batches:
        with eager_mode():
            scores = step.net(step.mix(Tensor(clip), Tensor(target))).asnumpy()
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        soft = 0.9 * np.eye(8)[target[:, 0].astype(int)] + 0.1 / 8
        lam = target[:, 1:2]
        soft = lam * soft + (1 - lam) * soft[target[:, 2].astype(int)]
        losses.append(-(soft * log_p).sum(1).mean())
        outputs = step(Tensor(clip), Tensor(target), *step.make_dropout_factors()).asnumpy()
        assert outputs[0] == pytest.approx(losses[-1], rel=1e-4)
    assert losses[0] != losses[1]
