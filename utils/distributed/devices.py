"""Devices, CANN and CUDA of this host, from files and from vendors' tools, without MindSpore."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from utils.cpu_cores import LEAST_CORES

DEVICE_FILES = Path("/dev")
TOOL_TIMEOUT = 30  # seconds for a vendor's tool
MOST_A_CORE = 8  # workers on a CPU: more would only wait for each other
FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
VISIBLE = {"Ascend": "ASCEND_RT_VISIBLE_DEVICES", "GPU": "CUDA_VISIBLE_DEVICES"}
# Seconds that HCCL waits for the other ranks, unless the user says otherwise. For connections its
# own limit is 120; ranks read their lists and compile at different speeds. In a collective it is
# 1836; the first step also compiles kernels one by one, and rank 0 alone saves. HCCL rounds this
# one down to a multiple of 68 on the Atlas training series: 3672 is 54 x 68.
HCCL_TIMEOUTS = {"HCCL_CONNECT_TIMEOUT": "600", "HCCL_EXEC_TIMEOUT": "3672"}
CANN_FOLDERS = ("cann", "ascend-toolkit/latest")  # from CANN 8.5 on; before
CANN_VERSIONS = (
    "compiler/version.info",  # the one that MindSpore reads
    "*-linux/ascend_toolkit_install.info",
    "version.info",
    "opp/version.info",
    "share/info/*/version.info",
)


def count_devices(kind: str) -> int:
    """The devices of `run.device` that have a file in /dev; 0 for a CPU."""
    return len(list(DEVICE_FILES.glob(FILES[kind]))) if kind in FILES else 0


def check_devices(wanted: int, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises ValueError if this host has devices of the run's kind, but fewer than `wanted`.

    If it has none, the worker reports that itself.
    """
    kind = kind_of(arguments)
    visible = environ.get(VISIBLE.get(kind, ""), "")
    if visible and wanted > len(visible.split(",")):
        raise ValueError(f"DEVICES: {wanted} wanted, {VISIBLE[kind]}={visible} allows fewer")
    there = count_devices(kind)
    cores = os.cpu_count() or 1
    if not there and wanted > MOST_A_CORE * cores:
        raise ValueError(f"DEVICES: {wanted} wanted, which is too many for {cores} cores")
    if there and wanted > there:
        raise ValueError(f"DEVICES: {wanted} wanted, this host has {there} of {kind}")


def should_bind_cores(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether msrun should bind each rank of this job to its own part of the cores.

    Only ranks on Ascend, and only if each device of the host then has enough cores: msrun divides
    the cores by the devices of the host, not by the ranks. ZOO_BIND_CORE=0 leaves ranks unbound.
    """
    there = count_devices("Ascend")
    if environ.get("ZOO_BIND_CORE") == "0" or not there or kind_of(arguments) != "Ascend":
        return False
    return len(os.sched_getaffinity(0)) // there >= LEAST_CORES


def kind_of(arguments: Sequence[str]) -> str:
    """run.device of the command line or else of the yaml; empty if neither can be read."""
    from utils.yaml_text import load_yaml_file  # here: scripts/check_env.py runs without yaml

    kind = option(arguments, "--run.device")
    if kind:
        return kind
    try:
        kind = load_yaml_file(Path(option(arguments, "--config_path")))["run"]["device"]
    except (OSError, KeyError, TypeError, ValueError):
        return ""
    return kind if isinstance(kind, str) else ""


def option(arguments: Sequence[str], name: str) -> str:
    """The last value of `--name=value` or `--name value`."""
    value = ""
    for word, following in zip(arguments, [*arguments[1:], ""]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def find_cann(environ: Mapping[str, str]) -> Optional[Path]:
    """The folder of CANN: ASCEND_HOME_PATH, or else the first installed one; None if none exists.

    Installers write to LOCAL_ASCEND, /usr/local/Ascend as root, or else ~/Ascend.
    """
    home = environ.get("ASCEND_HOME_PATH")
    if home:
        return Path(home) if Path(home).is_dir() else None
    local = environ.get("LOCAL_ASCEND")
    roots = [Path(local)] if local else [Path("/usr/local/Ascend"), Path("~/Ascend")]
    folders = [root.expanduser() / name for root in roots for name in CANN_FOLDERS]
    return next((folder for folder in folders if folder.is_dir()), None)


def find_set_env(cann: Path) -> Path:
    """The script that sets CANN's environment; before CANN 8.5 it lies one folder up."""
    folders = [cann, cann.parent]
    files = [folder / "set_env.sh" for folder in folders if (folder / "set_env.sh").is_file()]
    return files[0] if files else cann / "set_env.sh"


def read_cann_version(cann: Path) -> str:
    """Two numbers such as 8.5, of the first file that has them; empty if there is none."""
    for pattern in CANN_VERSIONS:
        for file in sorted(cann.glob(pattern)):
            result = re.search(r"^version=(\d+\.\d+)", file.read_text(), re.I | re.M)
            if result:
                return result[1]
    return ""


def find_nvcc(environ: Mapping[str, str]) -> str:
    """The compiler in CUDA_HOME, which MindSpore's GPU plugin asks for the version; or empty."""
    home = environ.get("CUDA_HOME")
    return os.path.join(home, "bin", "nvcc") if home else ""


def read_cuda_version(environ: Mapping[str, str]) -> str:
    """The version of CUDA_HOME's compiler, of the runtime library, or of `nvcc`; empty if none."""
    library = os.path.realpath(find_library("libcudart.so", environ))
    compilers = [run_tool(name, "--version") for name in (find_nvcc(environ), "nvcc")]
    result = re.search(
        r"(?:libcudart\.so\.|release )(\d+\.\d+)", f"{compilers[0]} {library} {compilers[1]}"
    )
    return result[1] if result else ""


def find_library(name: str, environ: Mapping[str, str]) -> str:
    """The path from which the loader takes a library; empty if there is none."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    result = re.search(rf"{re.escape(name)}\S* .*=> (\S+)", run_tool("ldconfig", "-p"))
    return result[1] if result else ""


def run_tool(*command: str) -> str:
    """The output of a command; empty if it is not installed, fails, or takes too long."""
    path = shutil.which(command[0]) or shutil.which(command[0], path="/sbin:/usr/sbin")
    if not path:
        return ""
    try:
        result = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=TOOL_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""
