"""Means and times between two log lines, with a clock that the test moves."""

import pytest

from utils.train import meter
from utils.train.meter import OUTPUTS, Meter, describe_fault


@pytest.fixture
def clock(monkeypatch) -> list:
    times = [100.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: times[0])
    return times


def run_step(target: Meter, clock: list, waiting: float, computing: float, loss: float) -> None:
    clock[0] += waiting
    target.begin_step()
    clock[0] += computing
    target.add(1, {**dict.fromkeys(OUTPUTS, 0.0), "loss": loss, "top1": 0.5, "loss_scale": 8.0})
    target.end_step()


def test_a_line_has_the_means_and_times_of_its_window(clock):
    target = Meter(clips=16, steps_per_epoch=10, last_step=20)
    run_step(target, clock=clock, waiting=1.0, computing=3.0, loss=2.0)
    run_step(target, clock=clock, waiting=0.0, computing=4.0, loss=4.0)
    assert target.describe_first_step(2)["seconds_left"] == 18 * 8
    assert target.close_window(2, lr=0.1) == {
        "epoch": 0.2,
        "step": 2,
        "loss": 3.0,
        "top1": 0.5,
        "lr": 0.1,
        "loss_scale": 8.0,
        "overflows": 0,
        "clips_per_second": 4.0,
        "waiting": 0.125,
        "seconds_left": 72,
    }
    run_step(target, clock=clock, waiting=0.0, computing=2.0, loss=1.0)
    assert target.close_window(3, lr=0.1)["loss"] == 1.0
    assert target.seconds == 10.0


def test_the_time_of_an_evaluation_is_in_no_line(clock):
    target = Meter(clips=1, steps_per_epoch=10, last_step=10)
    clock[0] += 1000
    target.restart()
    run_step(target, clock=clock, waiting=0.0, computing=2.0, loss=1.0)
    assert target.close_window(1, lr=0.1)["clips_per_second"] == 0.5


def test_the_first_fault_of_a_late_line_is_named():
    line = {"loss": 2.1, "waiting": 0.5}
    assert "steps wait 50 % of the time" in describe_fault(line, 0.5)
    assert not describe_fault(line, 0.5, reads_files=False)
    assert not describe_fault({**line, "waiting": 0.05}, 0.5)
