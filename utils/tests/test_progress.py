"""The progress of a long command where stderr is not a terminal, and on one."""

import pytest

from utils.progress import track


@pytest.fixture
def clock(monkeypatch):
    """A clock that `work` moves."""
    times = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: times[0])
    return times


def work(jobs, clock, seconds: float) -> list:
    done = []
    for job in jobs:
        done.append(job)
        clock[0] += seconds
    return done


def test_a_file_gets_a_line_every_minute(clock, capsys):
    """Ten jobs of 25 s: a line after each third, with the time that is left."""
    assert work(track(range(10), "packing"), clock, 25) == [*range(10)]
    assert capsys.readouterr().err.splitlines() == [
        "packing: 3 of 10 videos, 01:15, left 02:55",
        "packing: 6 of 10 videos, 02:30, left 01:40",
        "packing: 9 of 10 videos, 03:45, left 00:25",
    ]
