"""Results of measurements: describes the machine, compares with an earlier run."""

import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import mindspore

from utils.cores import count_usable_cores
from utils.files import read_text, report_write_errors, write_text

CPU_INFO = Path("/proc/cpuinfo")
# Circumstances in a result; those of two results that are compared should be equal.
FACTS = ("batch", "clip", "views", "reader", "workers", "processes", "torch", "machine")


def describe_machine(device: str) -> dict:
    """What numbers depend on besides the code: processor, cores of this process, versions."""
    return {
        "processor": read_processor(),
        "cores": count_usable_cores(),
        "device": device,
        "python": platform.python_version(),
        "mindspore": mindspore.__version__,
    }


def read_processor() -> str:
    """The name of the processor's model, or its architecture if it has no name."""
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return name[1] if name else platform.machine()


def print_result(result: dict, out: Optional[Path]) -> None:
    """Prints a result as the last line, and writes it to the file `out` if there is one."""
    print(json.dumps(result))
    if out:
        with report_write_errors(out, "--out"):
            write_text(out, json.dumps(result) + "\n")


def read_result(path: Path, benchmark: str, config: str) -> dict:
    """The earlier result in the last line of a file; ValueError if kind or recipe differ."""
    try:
        result = json.loads(read_text(path, f"--against: {path}").strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        result = None
    if not isinstance(result, dict) or not {"benchmark", "config"} <= set(result):
        raise ValueError(f"--against: the last line of {path} is not a result of a benchmark")
    for name, expected in (("benchmark", benchmark), ("config", config)):
        if result[name] != expected:
            raise ValueError(f"--against: {path} has {name} {result[name]}, this run {expected}")
    return result


def list_numbers(result: dict) -> dict[str, float]:
    """The measured numbers by name."""
    return {k: v for k, v in result.items() if type(v) in (int, float) and k not in FACTS}


def compute_ratios(before: dict, now: dict) -> dict[str, float]:
    """Now over before, of each number that both have and that was not 0."""
    old = list_numbers(before)
    new = list_numbers(now)
    return {name: round(new[name] / old[name], 3) for name in new if old.get(name)}


def format_comparison(before: dict, now: dict) -> Iterator[str]:
    """A table of the numbers that both results have."""
    yield "| name | before | now | now / before |"
    yield "| --- | --- | --- | --- |"
    for name, ratio in compute_ratios(before, now).items():
        yield f"| {name} | {before[name]:g} | {now[name]:g} | {ratio:.3f} |"


def list_differences(before: dict, now: dict) -> Iterator[str]:
    """The circumstances in which two results differ."""
    old, new = ({**result, **result.get("machine", {})} for result in (before, now))
    for name in (*FACTS, *now["machine"]):
        if name != "machine" and old.get(name) != new.get(name):
            yield f"{name} was {old.get(name, 'unknown')}, now it is {new.get(name, 'unknown')}"
