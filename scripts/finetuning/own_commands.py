"""Runs commands of the zoo as processes of their own, for commands of several steps."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from utils.files import ROOT, is_installed
from utils.networks import list_networks


def format_command(words: Sequence[Any]) -> str:
    """The command line of a script of the zoo for the user's shell."""
    script, *arguments = map(str, words)
    folder, _, name = script.rpartition("/")
    start = ["python", script if Path.cwd() == ROOT else str(ROOT / script)]
    if is_installed():
        network = [folder] if folder in list_networks() else []
        start = ["zoo", Path(name).stem.replace("_", "-"), *network]
    return shlex.join([*start, *arguments])


def run_command(
    words: Sequence[str], add: Callable[[subprocess.Popen], None], name: str = ""
) -> dict[str, Any]:
    """The JSON object in the last line of stdout of a script of the zoo.

    `add`, from `pass_on_signals`, makes signals go to it. Each line of its stderr is printed after
    `name`, if there is one. If it fails, this process ends with its exit status.
    """
    script, *arguments = words
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if name else None,
        text=True,
        env=dict(os.environ),  # without the OMP_NUM_THREADS=1 that MindSpore's import adds
    )
    add(process)
    for line in process.stderr or ():
        print(f"[{name}] {line}", end="", file=sys.stderr, flush=True)
    output = process.stdout.read()
    if process.wait():
        sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
    return json.loads(output.splitlines()[-1])
