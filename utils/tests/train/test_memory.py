"""The memory of a training step: what is logged, and what is refused.

tests/test_benchmark.py compares estimates with measured peaks.
"""

import pytest

from utils.train.memory import StepCost, check_fit

COST = StepCost(fixed=1e9, clip=0.5e9)


@pytest.mark.parametrize(
    ("clips", "batch", "free", "line"),
    [
        (4, 4, 4e9, "needs about 3.0 GB more, 4.0 GB are free"),
        (8, 4, 6e9, "needs about 5.0 GB more, 6.0 GB are free"),
        (4, 4, 2.6e9, "2.6 GB are free, so the system may kill it; --data.batch=3 fits"),
    ],
)
def test_the_memory_of_a_step_is_logged_with_the_batch_that_fits(
    clips, batch, free, line, log_messages
):
    check_fit(COST, clips=clips, batch=batch, free=free)
    assert len(log_messages) == 1
    assert line in log_messages[0]


@pytest.mark.parametrize(
    ("free", "advice"),
    [(2.4e9, "--data.batch=2 fits"), (1.4e9, "not even --data.batch=1 fits: take smaller crops")],
)
def test_a_batch_that_cannot_fit_is_an_error(free, advice):
    with pytest.raises(ValueError, match=f"^data.batch 4: .*{advice}"):
        check_fit(COST, clips=4, batch=4, free=free)
