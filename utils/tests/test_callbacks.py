"""What the trainer says and does between steps, without a network."""

from types import SimpleNamespace

import pytest

from utils.callbacks import Trainer, sink_size


def trainer(**fields) -> SimpleNamespace:
    return SimpleNamespace(advised=False, window=SimpleNamespace(seconds=1.0), **fields)


def test_advice_comes_once_where_the_device_starves(told):
    run = trainer(seconds=1.0)
    Trainer.advise(run, 0.9)
    assert not told, "the first window fills the pipeline"
    run.seconds = 2.0
    Trainer.advise(run, 0.05)
    assert not told
    Trainer.advise(run, 0.4)
    Trainer.advise(run, 0.5)
    assert len(told) == 1
    assert "wait 40 % of the time for data: raise data.workers" in told[0]


@pytest.mark.parametrize(("batches", "size"), [(100, 20), (50, 10), (7, 7), (97, 1), (19, 19)])
def test_steps_fed_together_leave_no_batch_over(batches, size):
    assert sink_size(batches, 20) == size


@pytest.mark.parametrize(
    ("position", "accumulate", "whole"),
    [(4, 1, True), (4, 2, True), (5, 2, False), (7, 2, True), (9, 2, True), (8, 2, False)],
)
def test_a_run_is_saved_only_between_updates(position, accumulate, whole):
    """7 steps an epoch; the last one, alone, makes an update of its own."""
    step = SimpleNamespace(accumulate=accumulate)
    run = SimpleNamespace(position=position, per_epoch=7, step=step)
    assert Trainer.between_updates(run) == whole
