"""TensorBoard files, read back record by record, of a run and of the run that resumes it."""

import pytest

from tests.event_reader import read_curves
from utils.train.training_loop import open_events, select_scalars

LINE = {"epoch": 0.5, "step": 3, "loss": 2.5, "top1": 0.25, "lr": 0.125, "loss_scale": 1.0}
TEST = {"epoch": 1, "top1": 0.5, "loss": 1.5, "videos": 8, "sets": {"axes": {"top1": 0.75}}}


def test_log_lines_become_scalars():
    assert select_scalars(LINE) == {
        "train/loss": 2.5, "train/top1": 0.25, "train/lr": 0.125, "train/loss_scale": 1.0,
    }  # fmt: skip
    assert select_scalars(TEST) == {
        "validation/top1": 0.5, "validation/loss": 1.5, "validation_axes/top1": 0.75,
    }  # fmt: skip
    assert select_scalars({"traced_steps": [5, 9], "waiting": 0.5}) == {}


def write_losses(folder, start_step: int, losses: dict[int, float]) -> None:
    writer = open_events(folder, start_step)
    for step, loss in losses.items():
        writer.add_scalar("train/loss", loss, step)
    writer.close()


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path):
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "new" / "tensorboard"
    write_losses(folder, 0, {2: 2.0, 4: 4.0, 6: 6.0, 8: 8.0})
    (old,) = folder.iterdir()
    old.rename(old.with_name("events.out.tfevents.1"))  # names are of seconds
    write_losses(folder, 4, {6: 60.0})
    assert read_curves(folder)["train/loss"] == {2: 2.0, 4: 4.0, 6: 60.0}
