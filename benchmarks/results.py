"""Results of measurements: of commands, on what machine, against an earlier one."""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mindspore

from utils.config import ROOT
from utils.data.loader import count_usable_cores

CPU_INFO = Path("/proc/cpuinfo")
# What a result says of its circumstances, and should be alike in two that are compared.
FACTS = ("batch", "clip", "views", "reader", "workers", "processes", "torch", "machine")
SAME = ("benchmark", "config")  # what has to be


def machine(device: str) -> dict:
    """What numbers depend on besides the code: processor, cores of this process, versions."""
    return {
        "processor": processor(),
        "cores": count_usable_cores(),
        "device": device,
        "python": platform.python_version(),
        "mindspore": mindspore.__version__,
    }


def processor() -> str:
    """The model's name; of processors that tell none, the architecture."""
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return name[1] if name else platform.machine()


def run(script: str, *given: str) -> dict:
    """Runs a command of this checkout; the JSON object in its last line.

    Raises ValueError with what it has told last.
    """
    line = [sys.executable, str(ROOT / script), *given]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        messages = [f"ended with status {done.returncode}"]
        if done.returncode > 0:  # else the system has killed it
            messages += done.stderr.strip().splitlines()
        raise ValueError(f"{script}: {messages[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def read(path: Path, benchmark: str, config: str) -> dict:
    """An earlier result of the same kind and yaml; the last line of the file holds it.

    Raises ValueError.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise ValueError(f"--against: cannot read {path}: {reason}") from None
    try:
        result = json.loads([line for line in lines if line.strip()][-1])
    except (IndexError, json.JSONDecodeError):
        result = None
    if not isinstance(result, dict) or not set(SAME) <= set(result):
        raise ValueError(f"--against: the last line of {path} is no result of a benchmark")
    for name, wanted in zip(SAME, (benchmark, config)):
        if result[name] != wanted:
            raise ValueError(f"--against: {path} has {name} {result[name]}, this run {wanted}")
    return result


def numbers(result: dict) -> dict[str, float]:
    """What was measured, by name; parts of a part are `name.part`."""
    results = {}
    for name, value in result.items():
        inner = value.items() if isinstance(value, dict) else ()
        for key, each in [(name, value), *((f"{name}.{part}", each) for part, each in inner)]:
            number = isinstance(each, (int, float)) and not isinstance(each, bool)
            if number and name not in (*FACTS, "ratios"):
                results[key] = each
    return results


def ratios(before: dict, now: dict) -> dict[str, float]:
    """Now over before, of every number that both have and that was not 0."""
    old, new = numbers(before), numbers(now)
    return {name: round(new[name] / old[name], 3) for name in new if old.get(name)}


def table(before: dict, now: dict) -> Iterator[str]:
    old, new = numbers(before), numbers(now)
    yield "| name | before | now | now / before |"
    yield "| --- | --- | --- | --- |"
    for name, ratio in ratios(before, now).items():
        yield f"| {name} | {old[name]:g} | {new[name]:g} | {ratio:.3f} |"


def differences(before: dict, now: dict) -> Iterator[str]:
    """What the two were not taken alike in."""
    old, new = ({**result, **result.get("machine", {})} for result in (before, now))
    for name in (*FACTS, *now["machine"]):
        if name != "machine" and old.get(name) != new.get(name):
            yield f"{name} was {old.get(name, 'not told')}, now it is {new.get(name, 'not told')}"
