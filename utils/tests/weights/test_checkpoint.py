"""Checkpoints are written atomically and loaded strictly; a folder has one run."""

import contextlib
import json
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

from utils.data.annotation_file import Record
from utils.data.rows import UnreadableFiles
from utils.data.sampler import TrainSampler
from utils.files import write_text
from utils.load_config import read_yaml
from utils.runtime import Runtime
from utils.settings import Run
from utils.train.run_dir import RunDirectory
from utils.train.train_step import create_counter
from utils.weights.checkpoint import load, save, weights_of
from utils.weights.checkpoint_file import read


@dataclass(frozen=True)
class Data:
    frames: int = 8
    workers: int = 2


@dataclass(frozen=True)
class Train:
    epochs: int = 3


@dataclass(frozen=True)
class Config:
    run: Run
    data: Data = Data()
    train: Train = Train()


def build_network(classes=2):
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, classes))


def make_config(folder, **run):
    return Config(Run(device="CPU", out=Path(folder), **run))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused_before_any_change(value, tmp_path):
    source = build_network()
    target = build_network()
    source[1].bias.set_data(Tensor([0, value], source[1].bias.dtype))
    save(tmp_path / "a.ckpt", weights_of(source))
    before = target[0].weight.asnumpy().copy()
    with pytest.raises(ValueError, match=r"a.ckpt has weights that are NaN or infinite, 1.bias:"):
        load(target, tmp_path / "a.ckpt")
    np.testing.assert_array_equal(target[0].weight.asnumpy(), before)


def test_weights_of_another_network_are_refused_before_any_change(tmp_path):
    save(tmp_path / "a.ckpt", weights_of(build_network(5)))
    net = build_network(2)
    before = net[0].weight.asnumpy().copy()
    with pytest.raises(ValueError, match=r"shape 1.weight is \[5, 4\] instead of \[2, 4\]"):
        load(net, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="missing 2.weight, 2.bias"):
        load(nn.SequentialCell(*build_network(5), nn.Dense(5, 1)), tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="unknown 1.weight.*1.bias"):
        load(nn.SequentialCell(nn.Dense(3, 4)), tmp_path / "a.ckpt")
    np.testing.assert_array_equal(net[0].weight.asnumpy(), before)


def test_a_new_head_keeps_its_initial_weights(tmp_path):
    source = build_network(5)
    net = build_network(2)
    save(tmp_path / "a.ckpt", weights_of(source))
    fresh = net[1].weight.asnumpy().copy()
    assert load(net, path=tmp_path / "a.ckpt", new_head=True, head=r"1\.") == ["1.weight", "1.bias"]
    np.testing.assert_array_equal(net[1].weight.asnumpy(), fresh)
    np.testing.assert_array_equal(net[0].weight.asnumpy(), source[0].weight.asnumpy())


@pytest.fixture
def file_size_limit():
    """At most 100 kB can be written to a file, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, file_size_limit):
    path = tmp_path / "a.ckpt"
    save(path, {"w": Tensor(np.ones(4, np.float32))})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="run.out: cannot write"):
        save(path, {"w": Tensor(np.ones(10**6, np.float32))})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.ckpt"]


@pytest.mark.parametrize("kind", ["checkpoint", "text"])
def test_a_file_is_synced_to_disk_before_it_is_renamed(kind, tmp_path, monkeypatch):
    """Otherwise a power failure could leave an empty file."""
    calls = []
    fsync = os.fsync
    rename = os.replace

    def record_fsync(number: int) -> None:
        calls.append(("fsync", os.fstat(number).st_ino, os.fstat(number).st_size))
        fsync(number)

    def record_replace(source, target) -> None:
        calls.append(("replace", os.stat(source).st_ino, os.stat(source).st_size))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    path = tmp_path / "a.ckpt"
    if kind == "text":
        write_text(path, "text")
    else:
        save(path, weights_of(build_network()))
    facts = path.stat().st_ino, path.stat().st_size
    assert calls == [("fsync", *facts), ("replace", *facts)]


def test_the_weights_of_a_resume_file_are_loaded(tmp_path):
    """Its other arrays, such as those of the optimizer, are left out; no weight may be missing."""
    net = build_network()
    other = build_network()
    weights = weights_of(net)
    state = {
        **weights,
        **{f"momentum.{n}": Tensor(np.full(p.shape, 9, np.float32)) for n, p in weights.items()},
        "micro_step": Tensor(np.int32(7)),
        "sampler": Tensor(np.ones(4, np.int32)),
    }
    save(tmp_path / "any.ckpt", state)
    load(other, tmp_path / "any.ckpt")
    for name, parameter in weights_of(other).items():
        np.testing.assert_array_equal(parameter.asnumpy(), weights[name].asnumpy())
    del state[next(iter(weights))]
    save(tmp_path / "any.ckpt", state)
    with pytest.raises(ValueError, match="does not fit this network: missing"):
        load(other, tmp_path / "any.ckpt")


def make_sampler(batch=4, size=1, samples=100) -> TrainSampler:
    return TrainSampler(samples, batch=batch, rank=0, size=size, seed=0)


@contextlib.contextmanager
def open_run(cfg):
    folder = RunDirectory(cfg, Runtime())
    yield folder
    folder.lock.close()


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that has begun, and holds its lock."""
    with open_run(make_config(tmp_path)) as opened:
        opened.find_start(make_sampler(), 1)  # writes config.yaml
        yield opened


def make_marks(*marked: int) -> UnreadableFiles:
    marks = UnreadableFiles([None] * 100)
    marks.restore_marks(np.array(marked, int))
    return marks


class Step:
    """The saved part of a train step: its counter."""

    def __init__(self, completed: int, accumulation_steps: int = 1):
        self.accumulation_steps = accumulation_steps
        self.micro_step = create_counter("micro_step")
        self.micro_step.set_data(Tensor(completed, self.micro_step.dtype))

    def state(self) -> dict:
        return {"micro_step": self.micro_step}


def test_a_folder_belongs_to_one_run_at_a_time(folder, tmp_path):
    with pytest.raises(ValueError, match="is in use by another run"):
        RunDirectory(make_config(tmp_path), Runtime())
    folder.lock.close()
    RunDirectory(make_config(tmp_path), Runtime()).lock.close()


@pytest.mark.parametrize("name", ["run.log", "epoch_001.ckpt", "config.yaml", "state.json"])
def test_files_of_somebody_else_are_not_taken_for_a_run(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"run.out: {tmp_path}"):
        RunDirectory(make_config(tmp_path), Runtime())
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_run_resumes_only_with_equal_settings(folder, tmp_path):
    """A run of an older version has the defaults of newer settings, and may have older ones."""
    cfg = make_config(tmp_path)
    folder.lock.close()
    save(folder.resume_file, weights_of(build_network()))
    RunDirectory(replace(cfg, data=Data(workers=7)), Runtime()).lock.close()
    settings = read_yaml(tmp_path / "config.yaml")
    del settings["run"]["cpu_amp"]
    settings["run"]["flat_weights"] = False  # a setting that is gone
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    RunDirectory(cfg, Runtime()).lock.close()
    for other, words in (
        (replace(cfg, data=Data(frames=4)), "data.frames 8, not 4"),
        (make_config(tmp_path, cpu_amp="O2"), "run.cpu_amp O0, not O2"),
        (make_config(tmp_path, resume=False), "run.resume is false"),
    ):
        with pytest.raises(ValueError, match=words):
            RunDirectory(other, Runtime())


def test_a_run_resumes_on_other_ranks_if_the_effective_batch_size_stays(folder):
    """2 devices x 4, 100 samples: 12 steps of 8, 96 samples an epoch; 5 steps are done."""
    folder.save(Step(5), make_sampler(size=2), make_marks(3, 40))
    assert folder.find_start(make_sampler(batch=8), 1).samples_per_epoch == 96
    one = folder.find_start(make_sampler(), 2)
    step = Step(0)
    assert (one.steps_per_epoch, folder.start_step) == (24, 10)
    marks = make_marks()
    folder.restore(step, marks)
    assert np.flatnonzero(marks.view_flags()).tolist() == [3, 40]
    assert int(step.micro_step.asnumpy()) == 10
    with pytest.raises(ValueError, match="12 are an update"):
        folder.find_start(make_sampler(size=3), 1)
    with pytest.raises(ValueError, match="over other samples"):
        folder.find_start(make_sampler(size=2, samples=103), 1)
    folder.save(Step(5, accumulation_steps=2), make_sampler(), marks)
    with pytest.raises(ValueError, match="8 samples an update and 100 an epoch"):
        folder.find_start(make_sampler(batch=8), 1)


def test_a_run_resumes_only_with_the_same_samples(folder):
    """Their files may move, and have another suffix. A run of an older version does not say."""
    sampler = make_sampler(size=2)
    folder.sample_hashes = folder.sample_hashes[:0]
    folder.save(Step(5), sampler, make_marks())
    folder.find_start(sampler, 1, [Record("/new/v.avi", None, 1, 1)])
    folder.save(Step(5), sampler, make_marks())
    folder.find_start(sampler, 1, [Record("/moved/v.mp4", None, 1, 1)])
    for other in (Record("/new/w.avi", None, 1, 1), Record("/new/v.avi", None, 2, 1)):
        with pytest.raises(ValueError, match="over other samples"):
            folder.find_start(sampler, 1, [other])
    folder.restore(Step(0), make_marks())


@pytest.mark.parametrize("is_old_version", [False, True])
def test_old_epochs_of_the_run_are_deleted_with_their_averages(is_old_version, folder, tmp_path):
    """Epochs of another run stay; a run of an older version does not say which are its own."""
    for epoch in (1, 2, 4, 5, 10, 20):
        for name in (f"epoch_{epoch:03d}.ckpt", f"epoch_{epoch:03d}_ema.ckpt"):
            (tmp_path / name).write_text("")
    folder.own_epochs = [1, 2, 4, 5]
    folder.save(Step(5), make_sampler(), make_marks())
    assert [file.stem for file in folder.list_own_epochs()] == [
        "epoch_002",
        "epoch_004",
        "epoch_005",
    ]
    folder.lock.close()
    if is_old_version:
        arrays = read(folder.resume_file)
        del arrays["epochs"]
        save(folder.resume_file, {name: Tensor(value) for name, value in arrays.items()})
    with open_run(make_config(tmp_path, keep_checkpoints=1)) as resumed:
        resumed.restore(Step(0), make_marks())
        resumed.save(Step(5), make_sampler(), make_marks())
    kept = {20} if is_old_version else {5, 10, 20}
    names = {f"epoch_{k:03d}{kind}.ckpt" for k in kept for kind in ("", "_ema")}
    assert {p.name for p in tmp_path.glob("epoch_*")} == names
