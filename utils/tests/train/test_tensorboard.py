"""Event files, read back record by record; steps of a resumed run; a disk that is full."""

from pathlib import Path

import pytest

from tests.event_reader import curves, events
from utils.train import tensorboard
from utils.train.tensorboard import EventFiles, scalars

LINE = {"epoch": 0.5, "step": 3, "loss": 2.5, "top1": 0.25, "lr": 0.125, "loss_scale": 1.0}
TEST = {"epoch": 1, "top1": 0.5, "top5": 1.0, "videos": 8, "sets": {"axes": {"top1": 0.75}}}


def test_a_line_of_the_log_becomes_scalars():
    assert scalars(LINE) == {
        "train/loss": 2.5, "train/top1": 0.25, "train/lr": 0.125, "train/loss_scale": 1.0,
    }  # fmt: skip
    assert scalars(TEST) == {
        "validation/top1": 0.5, "validation/top5": 1.0, "validation_axes/top1": 0.75,
    }  # fmt: skip
    assert scalars({"traced_steps": [5, 9], "waiting": 0.5}) == {}


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    pytest.importorskip("tensorboardX")
    first = EventFiles(tmp_path / "new" / "tensorboard", 0)
    for step in (2, 4, 6):
        first.write(step, {**LINE, "loss": float(step)})
    first.write(6, TEST)
    (old,) = first.folder.iterdir()
    old = old.rename(old.with_name("events.out.tfevents.1"))  # names are of seconds
    again = EventFiles(first.folder, 4)
    again.write(6, {**LINE, "loss": 60.0})
    shown = curves(first.folder)
    assert shown["train/loss"] == {2: 2.0, 4: 4.0, 6: 60.0}
    assert shown["validation/top1"] == {}
    assert events(old)[0].file_version == "brain.Event:2"


def test_without_a_folder_nothing_is_imported(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    EventFiles(None, 0).write(1, LINE)
    with pytest.raises(ValueError, match=r"^run.tensorboard: tensorboardX cannot be imported"):
        tensorboard.require_package()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_told_once_and_ends_the_writing(tmp_path, log_messages, monkeypatch):
    record_writer = pytest.importorskip("tensorboardX.record_writer")
    full = open("/dev/full", "wb")  # noqa: SIM115 - EventFiles lets it go
    monkeypatch.setattr(record_writer, "open_file", lambda path: full)
    files = EventFiles(tmp_path, 0)
    for step in (1, 2, 3):
        files.write(step, LINE)
    (line,) = log_messages
    assert line.startswith("run.tensorboard: no more events in")
    assert "No space left on device" in line


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path, log_messages):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    files = EventFiles(tmp_path / "file", 0)
    for step in (1, 2):
        files.write(step, LINE)
    (line,) = log_messages
    assert line.startswith("run.tensorboard: no more events in")
