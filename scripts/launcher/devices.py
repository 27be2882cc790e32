"""Devices, CANN and CUDA of this host, from files and from vendors' tools, without MindSpore."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

DEVICE_FILES = Path("/dev")
TOOL_TIMEOUT = 30  # seconds for a vendor's tool
FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
VISIBLE = {"Ascend": "ASCEND_RT_VISIBLE_DEVICES", "GPU": "CUDA_VISIBLE_DEVICES"}
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


def find_cann(environ: Mapping[str, str]) -> Optional[Path]:
    """The folder of CANN: ASCEND_HOME_PATH, or else the first installed one; None if none exists.

    Installers write to LOCAL_ASCEND, /usr/local/Ascend as root, or else ~/Ascend.
    """
    home = environ.get("ASCEND_HOME_PATH")
    if home:
        return Path(home) if Path(home).is_dir() else None
    local = environ.get("LOCAL_ASCEND")
    roots = [local] if local else ["/usr/local/Ascend", os.path.expanduser("~/Ascend")]
    folders = [Path(root, name) for root in roots for name in CANN_FOLDERS]
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


def read_nvcc_version(home: Path) -> tuple[int, int]:
    """The version of the compiler of an installed CUDA; (0, 0) if there is none."""
    result = re.search(r"release (\d+)\.(\d+),", run_tool(str(home / "bin" / "nvcc"), "--version"))
    return (int(result[1]), int(result[2])) if result else (0, 0)


def find_plugins() -> Path:
    """The folder of the back ends of MindSpore, which is not imported. Raises ValueError."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise ValueError(f"{sys.executable} has no MindSpore")
    return Path(spec.origin).parent / "lib" / "plugin"


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
