"""When a run logs, saves and evaluates: steps against settings, without MindSpore."""

import pytest

from utils.settings import Run
from utils.train.schedule import Schedule


def list_due(schedule: Schedule, what: str) -> list[int]:
    """The steps after which `what` is due in a run."""
    steps = range(1, schedule.last_step + 1)
    return [step for step in steps if getattr(schedule.due(step), what)]


@pytest.mark.parametrize(
    ("settings", "what", "steps"),
    [
        ({"log_every": 5}, "log", [5, 10, 15, 20, 21]),  # the last step always
        ({"save_every": 2}, "save_epoch", [14, 21]),
        ({"save_every": 2}, "save", [14, 21]),
        ({"save_steps": 6, "save_every": 9}, "save", [6, 12, 18, 21]),
        ({"save_steps": 6, "save_every": 9}, "save_epoch", [21]),
        ({"eval_every": 0}, "evaluate", []),
        ({"eval_every": 2}, "evaluate", [14, 21]),
    ],
)
def test_steps_follow_the_settings(settings, what, steps):
    """Three epochs of seven steps."""
    assert list_due(Schedule(Run(**settings), epochs=3, steps_per_epoch=7), what) == steps


def test_saving_waits_for_the_end_of_an_update_and_logging_does_not():
    """Seven steps by two: updates end at 2, 4, 6 and 7."""
    run = Run(save_steps=3, log_every=3)
    schedule = Schedule(run, epochs=2, steps_per_epoch=7, accumulation_steps=2)
    between = [p for p in range(15) if schedule.is_between_updates(p)]
    assert between == [0, 2, 4, 6, 7, 9, 11, 13, 14]
    assert list_due(schedule, "save") == [4, 6, 7, 9, 13, 14]
    assert list_due(schedule, "log") == [3, 6, 9, 12, 14]
