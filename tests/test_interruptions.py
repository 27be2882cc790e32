"""Signals in the first seconds of a command: one line, exit status 130, 143 or 129."""

import re
import signal
import time

import pytest

from tests.helpers import find_smoke_yaml, start_script, watches_signals
from utils.signals import EVENTS, list_watched

CONFIG = ["--config_path", str(find_smoke_yaml("tsm"))]
FOREVER = [*CONFIG, "--train.epochs=100000"]
# Every kind of command: with MindSpore and without, with processes and handlers of its own.
COMMANDS = {
    "tsm/train.py": FOREVER,
    "scripts/predict.py": [*CONFIG, "--checkpoint_path=none.ckpt", "none.mp4"],
    "scripts/launch.py": ["1", "tsm/train.py", *FOREVER],
    "scripts/finetune.py": ["none", "--recipe=tsm_smoke"],
    "scripts/data/make_lists.py": ["--videos=none", "--out=none"],
}


@pytest.fixture(autouse=True)
def hangup():
    """Commands do not ignore SIGHUP, as they would if `nohup` started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def interrupt(script: str, arguments: list[str], delay: float, number: int) -> tuple:
    """(exit status, stderr) of a command that gets a signal `delay` seconds after its first lines.

    Before them, while Python itself starts, no program can prevent a traceback.
    """
    process = start_script(script, *arguments)
    while not watches_signals(process.pid):
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors


# All commands take the signals by the same function.
@pytest.mark.parametrize(
    ("script", "number"),
    [
        *((script, signal.SIGTERM) for script in COMMANDS),
        ("tsm/train.py", signal.SIGINT),
        ("tsm/train.py", signal.SIGHUP),
    ],
)
def test_a_signal_at_the_start_of_a_command_is_one_line(script, number):
    status, errors = interrupt(script, COMMANDS[script], delay=0, number=number)
    assert (status, errors) == (128 + number, f"{EVENTS[number]}; nothing was lost\n")


def test_a_hangup_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert set(list_watched()) == {signal.SIGINT, signal.SIGTERM}


@pytest.mark.parametrize("delay", [0.2, 3.2])
def test_a_signal_while_mindspore_starts_is_one_line(delay, tiny_args, tmp_path):
    arguments = [*tiny_args, "--train.epochs=100000", f"--run.out={tmp_path}"]
    status, errors = interrupt("tsm/train.py", arguments, delay=delay, number=signal.SIGINT)
    lines = [line for line in errors.splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)]
    assert (status, len(lines)) == (130, 1), errors
    assert lines[0].startswith("interrupted")
