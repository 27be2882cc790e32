"""The plan of a verification, and its machine: devices and versions.

They are read from files and from vendors' tools.
"""

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.launcher import devices as host
from scripts.verify_device.processes import ProcessResult, Runner
from utils.config import ROOT
from utils.cpu_cores import count_cores


@dataclass(frozen=True)
class Plan:
    """Settings of one verification."""

    device: str  # Ascend, GPU or CPU
    devices: int
    work: Path  # a folder for data and runs, removed at the end
    runner: Runner

    @property
    def is_toy(self) -> bool:
        """Whether sizes are small: on a CPU, which proves nothing about a device anyway."""
        return self.device == "CPU"

    @property
    def repeats(self) -> int:
        """The number of repeated measurements."""
        return 3 if self.is_toy else 30

    @property
    def level(self) -> str:
        """The amp level of training."""
        return "O0" if self.device == "CPU" else "O2"

    def measure(self, log: str, task: str, devices: int = 1, /, **request: Any) -> ProcessResult:
        """Runs a task of measurements.py; on several devices by scripts/launch.py."""
        request.update(device=self.device, repeats=self.repeats)
        command = ["scripts/launch.py", str(devices)] if devices > 1 else []
        command += [str(ROOT / "scripts/verify_device/measurements.py"), task, json.dumps(request)]
        # The launcher reads the device too.
        return self.runner.run_script(log, *command, f"--run.device={self.device}")

    def describe(self) -> str:
        if self.device == "CPU":
            return "Rehearsal on a CPU, proves nothing about a device."
        return f"Measured on {self.devices} x {self.device}."


def choose_device(environ: Mapping[str, str]) -> tuple[str, int]:
    """(device, number) of the devices of this host that a run may use; one CPU if there is none."""
    for kind in ("Ascend", "GPU"):
        count = host.count_devices(kind)
        visible = environ.get(host.VISIBLE[kind], "")
        if count:
            return kind, min(count, len(visible.split(","))) if visible else count
    return "CPU", 1


def describe_machine(device: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Versions, names of devices, cores; no name of a user or a host."""
    cann = host.find_cann(environ)
    (names, driver) = query_devices(device)
    commit = host.run_tool("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    return {
        "device": device,
        "device names": names,
        "host": f"{platform.system()} {platform.machine()}",
        "host cores": count_cores(),
        "usable cores": len(os.sched_getaffinity(0)),
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("mindspore", "numpy")},
        "CANN": (host.read_cann_version(cann) or "unknown") if cann else "not found",
        "CUDA": host.read_cuda_version(environ) or "not found",
        "driver": driver,
        "commit": commit or "unknown",
    }


def query_devices(device: str) -> tuple[list[str], str]:
    """(names of all devices, driver version) in the output of the vendor's tool."""
    if device == "Ascend":
        return parse_npu_smi(host.run_tool("npu-smi", "info"))
    if device == "GPU":
        query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
        rows = [line.split(", ") for line in host.run_tool("nvidia-smi", *query).splitlines()]
        return [row[0] for row in rows], rows[0][-1] if rows else "unknown"
    return [], "none"


def parse_npu_smi(table: str) -> tuple[list[str], str]:
    """Reads `npu-smi 23.0.0`, and rows such as `| 0     910B3    | OK       | ...`."""
    names = re.findall(r"^\|\s*\d+\s+((?:Ascend|9)\S+)\s*\|\s*\w+\s*\|", table, re.MULTILINE)
    version = re.search(r"npu-smi\s+(\S+)", table)
    return names, version[1] if version else "unknown"
