"""Means and times between two log lines, with a clock that the test moves."""

import pytest

from utils.train import meter
from utils.train.meter import OUTPUTS, Meter, describe_chance


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


def test_much_waiting_is_found_once_and_not_in_the_first_line(clock):
    """The first window fills the pipeline."""
    target = Meter(clips=1, steps_per_epoch=10, last_step=10)
    fractions = []
    for steps_done, waiting in enumerate((9.0, 0.5, 4.0, 5.0), 1):
        run_step(target, clock=clock, waiting=waiting, computing=10.0 - waiting, loss=1.0)
        target.close_window(steps_done, lr=0.1)
        fractions.append(target.find_waiting())
    assert fractions == [0.0, 0.0, 0.4, 0.0]


def log_losses(losses: list, clock: list, steps: int = 100, epoch: int = 20) -> list[int]:
    """Logs a loss every 10 steps; returns the steps at which nothing is learned."""
    target = Meter(clips=16, steps_per_epoch=epoch, last_step=steps)
    advised = []
    for line, loss in enumerate(losses, 1):
        for _ in range(10):
            run_step(target, clock=clock, waiting=0.0, computing=1.0, loss=loss)
        target.close_window(10 * line, lr=0.1)
        if target.learns_nothing(10 * line, 2.0):
            advised.append(10 * line)
    return advised


def test_advice_comes_once_if_no_mean_over_an_epoch_is_below_chance(clock):
    assert log_losses([2.1] * 10, clock) == [40]  # the first epoch after a quarter of the run
    assert log_losses([2.1, 2.1, 1.95, 2.1] + [2.1] * 6, clock) == [40]
    assert log_losses([2.1, 1.9] + [3.0] * 8, clock) == []
    assert log_losses([2.5] * 5 + [1.9] * 5, clock) == [40]
    assert log_losses([2.1] * 40, clock, steps=10_000, epoch=250) == [250]
    assert log_losses([2.1] * 40, clock, steps=10_000, epoch=20) == [200]


@pytest.mark.parametrize(
    ("top1", "low", "classes", "advises"),
    [(0.2, 0.07, 0.2, True), (0.4, 0.26, 0.4, False), (0.8, 0.7, 0.125, True)],
)
def test_an_accuracy_is_compared_with_chance_by_its_interval(top1, low, classes, advises):
    """The last one: all videos get the label of a frequent class."""
    metrics = {"top1": top1, "top1_low": low, "top1_high": 0.9, "videos": 60}
    metrics["mean_class_accuracy"] = classes
    text = describe_chance("test", metrics, 1 / 8)
    expected = f"test top-1 {top1:.1%} ({low:.1%} to 90.0%) is not clearly above chance, 12.5%: try"
    assert text.startswith(expected) if advises else not text
    assert describe_chance("test", {"sets": {"a": metrics}}, 1 / 8) == text
    assert not describe_chance("test", {"sets": {"a": metrics, "b": metrics}}, 1 / 8)
    assert not describe_chance("test", {**metrics, "videos": 0}, 1 / 8)
