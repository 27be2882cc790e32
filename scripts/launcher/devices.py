"""Devices of this host, and the back ends of MindSpore, from files and without MindSpore."""

import importlib.util
import sys
from pathlib import Path

DEVICE_FILES = Path("/dev")
FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
VISIBLE = {"Ascend": "ASCEND_RT_VISIBLE_DEVICES", "GPU": "CUDA_VISIBLE_DEVICES"}


def count_devices(kind: str) -> int:
    """The devices of `run.device` that have a file in /dev; 0 for a CPU."""
    return len(list(DEVICE_FILES.glob(FILES[kind]))) if kind in FILES else 0


def find_plugins() -> Path:
    """The folder of the back ends of MindSpore, which is not imported. Raises ValueError."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise ValueError(f"{sys.executable} has no MindSpore")
    return Path(spec.origin).parent / "lib" / "plugin"
