"""Validations: the best weights, patience, averaged weights, and what a resumed run knows."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.helpers import read_weights
from utils.runtime import Runtime
from utils.settings import Run
from utils.signals import StopRequestError
from utils.train.train_step import MovingAverage
from utils.train.validation import Validation


class Recorder:
    """Stands for a network's evaluation: returns metrics, and records the weights it met."""

    def __init__(self, losses=(), top1=0.5, videos=40, averages=False):
        self.net = nn.Dense(2, 2, weight_init="zeros", bias_init="zeros")
        ema = MovingAverage(self.net, 0.5) if averages else None
        self.step = SimpleNamespace(net=self.net, ema=ema)
        self.losses = iter(losses)
        self.top1 = top1
        self.videos = videos
        self.weights = []

    def __call__(self) -> dict:
        self.weights.append(float(self.net.bias.asnumpy()[0]))
        loss = next(self.losses)
        if loss is None:
            raise StopRequestError("a signal")
        return {"top1": self.top1, "loss": loss, "videos": self.videos}

    def set_weight(self, value: float) -> None:
        self.net.bias.set_data(Tensor(np.full(2, value, np.float32)))


def make_validation(recorder, folder, rt=None, **run) -> Validation:
    run = Run(device="CPU", eval_every=1, **run)
    return Validation(recorder, run=run, rt=rt or Runtime(), step=recorder.step, folder=folder)


def validate_epochs(validation: Validation, count: int, first: int = 1) -> list[bool]:
    """Validates epochs, each with other weights; returns whether the run would end."""
    ends = []
    for epoch in range(first, first + count):
        validation.evaluate.set_weight(epoch)
        line = validation.validate(epoch)
        with open(validation.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        ends.append(validation.has_stalled())
    return ends


@pytest.mark.parametrize("metric", ["loss", "top1"])
def test_the_first_of_the_best_epochs_is_kept_and_the_loss_decides_a_tie(metric, tmp_path):
    validation = make_validation(Recorder([2.0, 1.0, 3.0, 1.0]), tmp_path, keep_best=metric)
    validate_epochs(validation, 4)
    assert read_weights(tmp_path / "best.ckpt")["bias"].tolist() == [2.0, 2.0]
    line = {"epoch": 2, "top1": 0.5, "loss": 1.0, "videos": 40, "weights": "trained"}
    values = json.loads((tmp_path / "best.json").read_text())
    assert values == {"keep_best": metric, "validation": line}


def test_of_few_videos_the_last_epoch_is_kept_and_patience_still_ends_the_run(
    tmp_path, log_messages
):
    few = Recorder([2.0, 1.0, 3.0], videos=29)
    validation = make_validation(few, tmp_path, keep_best="loss", patience=1)
    assert validate_epochs(validation, 3) == [False, False, True]
    assert read_weights(tmp_path / "best.ckpt")["bias"].tolist() == [3.0, 3.0]
    assert len([line for line in log_messages if "run.keep_best" in line]) == 1


@pytest.mark.parametrize(
    ("settings", "rt"), [({}, Runtime()), ({"keep_best": "top1"}, Runtime(1, 2))]
)
def test_only_rank_0_writes_and_only_if_asked(settings, rt, monkeypatch, tmp_path):
    monkeypatch.setattr("utils.train.validation.broadcast_bn_statistics", lambda net, rt: None)
    validate_epochs(make_validation(Recorder([1.0]), tmp_path, rt, **settings), 1)
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl"}


def test_a_validation_without_a_readable_video_is_never_the_best(tmp_path):
    recorder = Recorder([0.0, 2.0], videos=0)
    validation = make_validation(recorder, tmp_path, keep_best="loss")
    validate_epochs(validation, 1)
    assert (validation.best_epoch, (tmp_path / "best.ckpt").exists()) == (0, False)
    recorder.videos = 40
    validate_epochs(validation, 1, first=2)
    assert validation.best_epoch == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_never_the_best(value, tmp_path):
    recorder = Recorder([2.0, 1.0])
    validation = make_validation(recorder, tmp_path, keep_best="loss")
    validate_epochs(validation, 1)
    recorder.set_weight(value)
    assert validation.validate(2)["loss"] == 1.0
    assert validation.best_epoch == 1
    assert read_weights(tmp_path / "best.ckpt")["bias"].tolist() == [1.0, 1.0]


def test_patience_counts_the_validations_since_the_best(tmp_path):
    losses = [2.0, 3.0, 1.5, 1.6, 1.5, 1.4]
    validation = make_validation(Recorder(losses), tmp_path, patience=2)
    assert validate_epochs(validation, 6) == [False, False, False, False, True, False]
    constant = make_validation(Recorder([2.0, 3.0, 2.5]), tmp_path, patience=2, keep_best="top1")
    assert validate_epochs(constant, 3) == [False, False, True], "by the setting of keep_best"
    assert not any(validate_epochs(make_validation(Recorder(losses), tmp_path), 6))


def test_a_resumed_run_knows_the_validations_before_its_first_step(tmp_path):
    whole = make_validation(Recorder([2.0, 1.0, 3.0, 0.5]), tmp_path, keep_best="loss", patience=2)
    validate_epochs(whole, 4)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"epoch": 2, "top1": 0.5, "loss": 1.25, "videos": 4}\n')  # a repetition
        file.write('{"epoch": 1.5, "step": 3, "loss": 0.1, "top1": 1.0}\n{"epoch": 3, "lo')
    resumed = make_validation(Recorder([]), tmp_path, keep_best="loss", patience=1)
    resumed.resume(3)
    assert sorted(resumed.lines) == [1, 2, 3]
    assert (resumed.best_epoch, resumed.lines[2]["loss"]) == (2, 1.25)
    assert resumed.has_stalled()
    fresh = make_validation(Recorder([]), tmp_path)
    fresh.resume(0)
    assert fresh.lines == {}


def test_averaged_weights_are_validated_and_kept_and_the_trained_ones_restored(tmp_path):
    recorder = Recorder([1.0, 0.5, None], averages=True)
    validation = make_validation(recorder, tmp_path, keep_best="loss")
    recorder.set_weight(8.0)
    recorder.step.ema()
    assert validation.validate(1)["weights"] == "averaged"
    recorder.step.ema()
    validation.validate(2)
    with pytest.raises(StopRequestError):
        validation.validate(3)
    assert recorder.weights == [4.0, 6.0, 6.0]
    assert recorder.net.bias.asnumpy().tolist() == [8.0, 8.0]
    assert read_weights(tmp_path / "best.ckpt")["bias"].tolist() == [6.0, 6.0]
    assert 3 not in validation.lines
