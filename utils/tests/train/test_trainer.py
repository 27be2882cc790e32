"""The trainer between steps, without a network: advice, reads of values, saving."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from mindspore import Tensor
from mindspore import dtype as mstype

from scripts.analysis.build_networks import build_train_step
from tests.helpers import find_smoke_yaml, load_smoke_config
from utils.config import Run, load_config
from utils.networks import find_network
from utils.runtime import Runtime
from utils.train.amp import Float32Output
from utils.train.trainer import TrainingLoop, TrainSetup, choose_sink_size
from utils.yaml_text import load_yaml_file


def make_step(position: int = 0, **fields) -> SimpleNamespace:
    """The attributes of a train step of 8 steps an epoch that a loop uses."""
    counter = Tensor(position, mstype.int32)
    return SimpleNamespace(steps_per_epoch=8, accumulation_steps=1, micro_step=counter, **fields)


def make_training_loop(step, run: Run, directory=None, *settings: str) -> TrainingLoop:
    """A training loop of one epoch."""
    smoke = load_smoke_config("tsm", "train.epochs=1", "train.warmup_epochs=0", *settings)
    sampler = SimpleNamespace(global_batch_size=4)
    setup = TrainSetup(step, lr=[0.1] * 8, segments=[], clips=(4, 8, 3, 64, 64))
    return TrainingLoop(replace(smoke, run=run), Runtime(), setup, sampler, directory)


@pytest.mark.parametrize("packed", ["null", "here"])
def test_advice_is_logged_once_if_the_device_waits_for_data(packed, log_messages):
    loop = make_training_loop(make_step(), Run(), None, f"data.packed={packed}")
    loop.window = SimpleNamespace(seconds=1.0)
    loop.seconds = 1.0
    loop.advise_on_data(0.9)
    assert not log_messages, "the first window fills the pipeline"
    loop.seconds = 2.0
    loop.advise_on_data(0.05)
    assert not log_messages
    loop.advise_on_data(0.4)
    loop.advise_on_data(0.5)
    assert len(log_messages) == 1
    assert "wait 40 % of the time for data: raise data.workers" in log_messages[0]
    assert ("scripts/data/pack_videos.py" in log_messages[0]) == (packed == "null")


@pytest.mark.parametrize(("batches", "size"), [(100, 20), (50, 10), (7, 7), (97, 1), (19, 19)])
def test_a_sink_size_divides_the_number_of_batches(batches, size):
    assert choose_sink_size(batches, 20) == size


@pytest.mark.parametrize(
    ("position", "accumulation_steps", "whole"),
    [(4, 1, True), (4, 2, True), (5, 2, False), (7, 2, True), (9, 2, True), (8, 2, False)],
)
def test_a_run_is_saved_only_between_updates(position, accumulation_steps, whole):
    """7 steps an epoch; the last one is an update alone."""
    step = SimpleNamespace(accumulation_steps=accumulation_steps)
    run = SimpleNamespace(position=position, steps_per_epoch=7, step=step)
    assert TrainingLoop.between_updates(run) == whole


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_float16_recipe_trains_in_float32_on_a_cpu(level, tmp_path, log_messages):
    path = tmp_path / "half.yaml"
    values = load_yaml_file(find_smoke_yaml("resnet50"))
    values["run"].update(amp="O2", loss_scale=1024.0)
    path.write_text(yaml.safe_dump(values))
    overrides = ["run.amp=O2"] if level == "O2" else []
    cfg = load_config(find_network("resnet50").config, path, overrides)
    step = build_train_step("resnet50", cfg, Runtime())
    assert isinstance(step.net, Float32Output) == (level == "O2")
    lines = [line for line in log_messages if "training in float32" in line]
    assert len(lines) == (level == "O0")
    assert all("--run.amp=O2 on the command line" in line for line in lines)


class Outputs:
    """The values of a step on the device; reading them waits for the step."""

    def __init__(self, number: int, reads: list):
        self.number = number
        self.reads = reads

    def asnumpy(self):
        self.reads.append(self.number)
        return np.array([float(self.number), 0.5, 1.0, 0.0, 0.0, 0.0], np.float32)


@pytest.mark.parametrize("log_every", [100, 3])
def test_the_values_of_a_step_are_read_once_and_a_step_late(
    log_every, tmp_path, monkeypatch, log_messages
):
    """They are read at once only if the step is the first, logged, saved or the last."""
    run = Run(device="CPU", log_every=log_every, save_every=1)
    loop = make_training_loop(make_step(), run, SimpleNamespace(path=tmp_path))
    monkeypatch.setattr(loop, "save", lambda name="": None)
    loop.on_train_begin(None)
    reads = []
    after = []
    for number in range(1, 9):
        context = SimpleNamespace(net_outputs=Outputs(number, reads))
        call = SimpleNamespace(original_args=lambda c=context: c, request_stop=lambda: None)
        loop.on_train_step_begin(call)
        loop.on_train_step_end(call)
        after.append(len(reads))
    assert reads == list(range(1, 9))
    expected = [k if k % log_every == 0 or k in (1, 8) else k - 1 for k in range(1, 9)]
    assert after == expected
    lines = [line for line in log_messages if line.startswith("first step  loss 1 ")]
    assert len(lines) == 1
    assert re.search(r"  clips_per_second \S+  left \d+:\d\d:\d\d$", lines[0])
    assert loop.newest_values["step"] == 8


class Directory:
    """The attributes of a run folder that show whether a checkpoint exists."""

    def __init__(self, path):
        self.path = path
        self.resume_file = path / "resume.ckpt"


@pytest.mark.parametrize("damaged", ["weight", "moment"])
@pytest.mark.parametrize("end", ["last step", "signal"])
def test_a_state_that_is_not_finite_is_not_saved_and_fails_the_run(
    damaged, end, log_messages, tmp_path
):
    """The run fails even if no update has overflowed before: the last update can cause it."""
    state = {name: Tensor(np.ones(3, np.float32)) for name in ("weight", "moment")}
    state[damaged] = Tensor(np.array([1, np.inf, 1], np.float32))
    step = make_step(3 if end == "signal" else 8, state=lambda: state)
    loop = make_training_loop(step, Run(device="CPU", save_steps=1), Directory(tmp_path))
    loop.values["stop"] = float(end == "signal")
    loop.checked_position = loop.position - 1
    loop.save_and_evaluate()
    with pytest.raises(ValueError, match="ended with weights .* not finite; nothing was saved"):
        loop.finish()
    (tmp_path / "resume.ckpt").touch()
    assert loop.describe_saved() == "the last checkpoint is intact"
    assert [path.name for path in tmp_path.iterdir()] == ["resume.ckpt"]
    assert log_messages[0] == f"step {loop.position} is not saved: its state is not finite"
