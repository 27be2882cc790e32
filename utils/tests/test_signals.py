"""Signals: the first one, its repetition within a second, and a second one."""

import subprocess
import sys
import time

from utils.config import ROOT
from utils.signals import DEBOUNCE

WAITING = """
import time
from utils.signals import handle_signals, received, watch
watch()
def stop(number):
    print("stopping", int(number), list(map(int, received)), flush=True)

with handle_signals(stop):
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_repetition_within_a_second_does_not_count_as_a_second_signal():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.stdout.readline() == "stopping 15 [15]\n"
    process.terminate()
    time.sleep(DEBOUNCE + 0.2)
    assert process.poll() is None
    process.terminate()
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (143, "")
    assert errors == "terminated again; ended at once, what was saved is intact\n"
