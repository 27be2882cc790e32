"""Which devices and which CANN this host has, as far as files tell it, without the framework."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

DEVICE_FILES = Path("/dev")
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
