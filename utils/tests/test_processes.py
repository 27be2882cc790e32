"""The peak memory of a program does not include that of the process that started it."""

import subprocess
import sys

from utils.files import ROOT

# Holds 500 MB, then starts a program in a fork, as a shell does.
START = """
import os, sys
memory = b"x" * 500_000_000
child = os.fork()
if not child:
    code = "from utils.processes import read_peak_memory; print(read_peak_memory())"
    os.execv(sys.executable, [sys.executable, "-c", code])
os.waitpid(child, 0)
"""


def test_memory_of_the_parent_does_not_count():
    command = [sys.executable, "-c", START]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    assert 0.005 < float(process.stdout) < 0.1
