"""Signals: the first one, its repetition within a second, and a second one."""

import os
import subprocess
import sys
import time

import pytest

from utils.files import ROOT

WAITING = """
import os, time
from utils import signals
from utils.signals import handle_signals, received, watch
signals.DEBOUNCE = float(os.environ.get("DEBOUNCE", 0))
signals.RANK_DEBOUNCE = float(os.environ.get("RANK_DEBOUNCE", 0))
watch()
def stop(number):
    print("stopping", int(number), list(map(int, received)), flush=True)

with handle_signals(stop):
    print("ready", flush=True)
    time.sleep(600)
"""


WRITING = """
import os, time
from pathlib import Path
from utils.files import open_replacement
from utils.signals import watch
watch()
with open_replacement(Path(os.environ["TARGET"])) as file:
    file.write("half")
    file.flush()
    print("ready", flush=True)
    time.sleep(600)
"""


def start(code: str = WAITING, **variables: str) -> subprocess.Popen:
    """A process that waits."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, **variables}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "variables",
    [
        {"MS_ROLE": "MS_SCHED"},  # a batch system signals all processes
        {"DEBOUNCE": "600"},  # a repetition within a second
        {"ZOO_LAUNCHER": "1", "RANK_DEBOUNCE": "600"},  # the late signal of a rank's launcher
    ],
)
def test_a_process_stays_after_a_signal_that_is_no_second_one(variables):
    process = start(**variables)
    process.terminate()
    if "MS_ROLE" not in variables:
        assert process.stdout.readline() == "stopping 15 [15]\n"
        process.terminate()
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    assert process.communicate() == ("", "")


def test_a_second_signal_ends_the_process():
    process = start()
    process.terminate()
    assert process.stdout.readline() == "stopping 15 [15]\n"
    process.terminate()
    output, errors = process.communicate(timeout=600)
    assert (process.returncode, output) == (143, "")
    assert errors.startswith("terminated again; ")


def test_a_signal_leaves_no_half_written_file(tmp_path):
    process = start(WRITING, TARGET=str(tmp_path / "whole.txt"))
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["whole.txt"]
    process.terminate()
    assert process.communicate(timeout=600)[1] == "terminated; nothing was lost\n"
    assert process.returncode == 143
    assert not list(tmp_path.iterdir())
