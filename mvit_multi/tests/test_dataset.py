"""Training and evaluation rows of encoded videos."""

from pathlib import Path

import numpy as np
import pytest

from mvit_multi import dataset
from mvit_multi.config import Config
from mvit_multi.network import NETWORK
from scripts.data.synthetic.motion_videos import write_video
from tests.helpers import load_smoke_config
from tests.numbered_videos import read_number, write_numbered_video
from utils.data.annotation_file import Record
from utils.data.sampler import TrainSampler
from utils.runtime import Runtime

SIDE = 48
LENGTH = 60


def make_config(root: Path, *settings: str, first: str = "sampling: time") -> Config:
    """Two data sets, the first one with the settings `first`; the second is never mirrored."""
    sets = (
        f"{{name: first, num_classes: 5, lists: a, clips: 2, crops: 3, {first}}}",
        "{name: second, num_classes: 3, lists: b, sampling: segments, flip: false}",
    )
    both = ", ".join(sets).replace("}", f", short_side: {SIDE}}}")
    values = ("frames=5", "stride=3", "repeated_aug=2", "area=[1,1]", "mixup=0.8", "cutmix=1")
    data = [f"data.{value}" for value in (f"root={root}", f"sets=[{both}]", "batch=2", *values)]
    return load_smoke_config("mvit_multi", *data, "eval.batch=1", "eval.val_skip=2", *settings)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A numbered video with three labels in the first data set; another video in the second."""
    root = tmp_path_factory.mktemp("sets")
    write_numbered_video(root / "n.mp4", frames=LENGTH, width=SIDE, height=SIDE, rate=30)
    ramp = np.broadcast_to(np.linspace(0, 255, SIDE, dtype=np.uint8)[:, None], (SIDE, SIDE, 3))
    write_video(root / "ramp.mp4", [ramp] * LENGTH, 30)
    for name, lines in {"a": ["n.mp4 4", "n.mp4 1", "n.mp4 0"], "b": ["ramp.mp4 2"]}.items():
        (root / name).mkdir()
        for split in ("train", "val", "test"):
            (root / name / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return root


def build_source(cfg, epochs: int = 20, skip: int = 0) -> dataset.TrainVideos:
    samples = dataset.read_records(cfg, "train")
    sampler = NETWORK.build_train_sampler(cfg, samples, Runtime())
    return dataset.TrainVideos(samples, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)


def test_copies_use_one_decode_and_different_augmentations(root, monkeypatch):
    opened = []
    open_record = Record.open

    def count_calls(record, data):
        opened.append(record)
        return open_record(record, data)

    monkeypatch.setattr(Record, "open", count_calls)
    source = build_source(
        make_config(root, "data.erase=1", "data.rand_augment=rand-m7-n4-mstd0.5-inc1")
    )
    clips, targets = source[0]
    assert clips.shape == (2, 3, 5, SIDE, SIDE)
    assert clips.dtype == np.uint8
    assert len(opened) == 1
    assert (clips[0] != clips[1]).any()
    np.testing.assert_array_equal(targets[0], targets[1])
    again, _ = source[0]
    np.testing.assert_array_equal(clips, again)


@pytest.mark.parametrize("sampling", ["time", "segments"])
def test_both_sampling_modes_give_the_expected_frames(root, sampling):
    """By time: 5 frames at a distance of 3, from any start; by segments: one of each fifth."""
    source = build_source(make_config(root, first=f"sampling: {sampling}, flip: false"))
    drawn = []
    for index in range(24):
        clips, targets = source[index]
        if targets[0, 0] == 0:
            drawn.append([read_number(frame) for frame in clips[0].transpose(1, 2, 3, 0)])
    numbers = np.array(drawn)
    assert len(numbers) > 12
    assert len(np.unique(numbers[:, 0])) > 3, "the first frame is random"
    if sampling == "time":
        assert np.diff(numbers).min() >= 2
        assert set(numbers[:, -1] - numbers[:, 0]) <= {13, 14}
    else:
        edges = np.array([0, 12, 24, 35, 47, 59])  # of five segments of 60 frames
        assert ((edges[:-1] <= numbers) & (numbers <= edges[1:])).all()
        assert len(np.unique(np.diff(numbers))) > 3, "the distances are random"


def test_the_second_set_is_never_mirrored(root):
    source = build_source(make_config(root))
    count = 0
    for index in range(40):
        clips, targets = source[index]
        if targets[0, 0] == 1:
            count += 1
            assert (clips[..., -1].mean((1, 2, 3)) > clips[..., 0].mean((1, 2, 3))).all()
    assert count > 3


def test_all_ranks_mix_a_batch_alike_and_batches_differ(root):
    cfg = make_config(root, "data.batch=1")
    samples = dataset.read_records(cfg, "train")
    mixes = []
    for rank in (0, 1):
        sampler = TrainSampler(len(samples), batch=1, rank=rank, size=2, seed=0)
        source = dataset.TrainVideos(samples, cfg=cfg, sampler=sampler, epochs=5, skip=0)
        mixes.append([tuple(source[i][1][0, 2:]) for i in range(8)])
    assert mixes[0] == mixes[1]
    assert len(set(mixes[0])) == 8


def test_a_resumed_run_continues_with_the_same_mixes(root):
    whole, resumed = (build_source(make_config(root), skip=skip) for skip in (0, 3))
    for index in range(4):
        for mine, other in zip(resumed[index], whole[index + 6]):
            np.testing.assert_array_equal(mine, other)


def test_evaluation_views_have_the_expected_frames(root):
    clips, label, valid = dataset.EvalVideos(make_config(root), Runtime(), 0)[0]
    assert (clips.shape, label, valid) == ((6, 3, 5, SIDE, SIDE), 4, True)
    starts = [read_number(clips[view, :, 0].transpose(1, 2, 0)) for view in range(6)]
    assert starts == [0, 0, 0, 45, 45, 45]
    rows = dataset.EvalVideos(make_config(root), rt=Runtime(), dataset_index=0, split="val")
    assert len(rows) == 2
