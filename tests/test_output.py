"""What commands print: only lines of the zoo, with the environment of a user.

MindSpore's own lines look like `[WARNING] ANALYZER(18065,7f4da6dc5b80,python):2026-...`.
"""

import re

from tests.helpers import read_result

LOG_LINE = re.compile(r"\d\d:\d\d:\d\d \S")


def assert_only_own_lines(completed) -> dict:
    """Asserts that a command printed only log lines on stderr, no lines of MindSpore on stdout.

    Returns its result.
    """
    foreign = [line for line in completed.stderr.splitlines() if not LOG_LINE.match(line)]
    foreign += [line for line in completed.stdout.splitlines() if line.startswith("[")]
    assert not foreign, foreign
    return read_result(completed)


def test_mindspore_has_no_warning_about_a_training(tiny_run):
    """MindSpore prints warnings; its kernels of batch norms would give two for each layer."""
    assert_only_own_lines(tiny_run[0])


def test_a_job_prints_no_lines_about_the_end_of_connections(pair_run):
    assert_only_own_lines(pair_run[0])
