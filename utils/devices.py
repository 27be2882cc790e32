"""How many devices this host has, as far as that can be told without the framework."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

MOST_A_CORE = 8  # workers on a CPU: more would only wait for each other
FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
VISIBLE = {"Ascend": "ASCEND_RT_VISIBLE_DEVICES", "GPU": "CUDA_VISIBLE_DEVICES"}


def check_devices(
    wanted: int, arguments: Sequence[str], environ: Mapping[str, str], files: Path = Path("/dev")
) -> None:
    """Raises ValueError where the run's kind of device is there, but not so many times.

    Where none is there at all, the worker says so itself.
    """
    kind = kind_of(arguments)
    visible = environ.get(VISIBLE.get(kind, ""), "")
    if visible and wanted > len(visible.split(",")):
        raise ValueError(f"DEVICES: {wanted} wanted, {VISIBLE[kind]}={visible} allows fewer")
    there = len(list(files.glob(FILES[kind]))) if kind in FILES else 0
    cores = os.cpu_count() or 1
    if not there and wanted > MOST_A_CORE * cores:
        raise ValueError(f"DEVICES: {wanted} wanted, which is too many for {cores} cores")
    if there and wanted > there:
        raise ValueError(f"DEVICES: {wanted} wanted, this host has {there} of {kind}")


def kind_of(arguments: Sequence[str]) -> str:
    """run.device of the command line or else of the yaml; empty where neither can be read."""
    kind = option(arguments, "--run.device")
    if kind:
        return kind
    try:
        return yaml.safe_load(Path(option(arguments, "--config_path")).read_text())["run"]["device"]
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return ""


def option(arguments: Sequence[str], name: str) -> str:
    """The last value of `--name=value` or `--name value`."""
    value = ""
    for word, following in zip(arguments, [*arguments[1:], ""]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value
