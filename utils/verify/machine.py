"""Devices of this host, versions and sizes, read from files and from vendors' tools."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.config import ROOT
from utils.cpu_cores import count_cores
from utils.distributed.devices import VISIBLE, count_devices, find_cann, read_cann_version
from utils.verify.processes import Runner

PACKAGES = ("mindspore", "numpy")
PATIENCE = 30  # seconds for a vendor's tool


@dataclass(frozen=True)
class Plan:
    """Settings of one verification."""

    device: str  # Ascend, GPU or CPU
    devices: int
    chip: str  # that dry runs simulate
    is_dry: bool  # --rehearse: dry runs for what needs a device
    work: Path  # a folder for data and runs, removed at the end
    runner: Runner

    @property
    def is_toy(self) -> bool:
        """Whether sizes are small: on a CPU, which proves nothing about a device anyway."""
        return self.device == "CPU"

    @property
    def level(self) -> str:
        """The amp level of training."""
        return "O0" if self.device == "CPU" else "O2"

    def describe(self) -> str:
        if self.is_dry:
            return (
                f"Dry runs for {self.chip}, the rest on a CPU: graphs compile or not, launches, "
                "memory and the order of AllReduces; no times or values of a device."
            )
        if self.device == "CPU":
            return "Rehearsal on a CPU, proves nothing about a device."
        return f"Measured on {self.devices} x {self.device}."


def choose_device(environ: Mapping[str, str]) -> tuple[str, int]:
    """(kind, number) of the devices of this host that a run may use; a CPU if there is none."""
    for kind in ("Ascend", "GPU"):
        count = count_devices(kind)
        visible = environ.get(VISIBLE[kind], "")
        if count:
            return kind, min(count, len(visible.split(","))) if visible else count
    return "CPU", 1


def describe_machine(device: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Versions, names of devices, cores; nothing that names a user or a host."""
    cann = find_cann(environ)
    return {
        "device": device,
        "device names": list_device_names(device),
        "host": f"{platform.system()} {platform.machine()}",
        "host cores": count_cores(),
        "usable cores": len(os.sched_getaffinity(0)),
        "Python": platform.python_version(),
        **{name: read_version(name) for name in PACKAGES},
        "CANN": (read_cann_version(cann) or "unknown") if cann else "not found",
        "CUDA": read_cuda_version(environ),
        "driver": read_driver_version(device),
        "commit": run_tool("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
        or "unknown",
    }


def read_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def list_device_names(device: str) -> list[str]:
    """As the vendor's tool prints them, one for each device; empty if there is no such tool."""
    if device == "Ascend":
        return find_ascend_names(run_tool("npu-smi", "info"))
    if device == "GPU":
        names = run_tool("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        return [line.strip() for line in names.splitlines() if line.strip()]
    return []


def find_ascend_names(table: str) -> list[str]:
    """From rows of `npu-smi info` such as `| 0     910B3               | OK            | ...`."""
    return re.findall(r"^\|\s*\d+\s+((?:Ascend|9)\S+)\s*\|\s*\w+\s*\|", table, re.MULTILINE)


def read_driver_version(device: str) -> str:
    if device == "Ascend":
        result = re.search(r"npu-smi\s+(\S+)", run_tool("npu-smi", "info"))
        return result[1] if result else "unknown"
    if device == "GPU":
        query = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        return (query.strip().splitlines() or ["unknown"])[0]
    return "none"


def read_cuda_version(environ: Mapping[str, str]) -> str:
    home = environ.get("CUDA_HOME", "")
    text = run_tool(str(Path(home, "bin", "nvcc")) if home else "nvcc", "--version")
    result = re.search(r"release (\d+\.\d+)", text)
    return result[1] if result else "not found"


def run_tool(*command: str) -> str:
    """What a tool prints; empty if it is not installed or fails."""
    program = shutil.which(command[0])
    if not program:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
