"""What a process does at the first signal, at its echo, and at a second one."""

import subprocess
import sys
import time

from utils.config import ROOT
from utils.signals import ECHO

WAITING = """
import time
from utils.signals import reacting, received, watch
watch()
with reacting(lambda number: print("asked", int(number), list(map(int, received)), flush=True)):
    print("ready", flush=True)
    time.sleep(60)
"""


def test_an_echo_is_no_second_signal():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.stdout.readline() == "asked 15 [15]\n"
    process.terminate()
    time.sleep(ECHO + 0.2)
    assert process.poll() is None
    process.terminate()
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (143, "")
    assert errors == "terminated again; ended at once, what was saved is intact\n"
