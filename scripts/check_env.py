#!/usr/bin/env python3
"""Prints on one screen what is installed, which devices there are, and what to do next.

    python scripts/check_env.py

A line that reports a problem begins with `!` and ends with what to do. Exit status 1 if a problem
makes every run fail. The last line of stdout is one JSON object: found, missing.

ASCEND_RT_VISIBLE_DEVICES=2, or CUDA_VISIBLE_DEVICES=2, chooses the device of a run.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from utils.entry import advise_library, prepare_process

prepare_process(__name__)

import importlib.metadata
import json
import platform
import subprocess
from typing import NamedTuple

from scripts.launcher.launch_config import count_devices
from utils import cli
from utils.files import is_installed
from utils.messages import format_line
from utils.processes import die_with_parent

# The versions that MindSpore 2.10 looks for, and has libraries for.
CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")
# Device -> what it needs; docs/many_devices.md.
NEEDS = {
    "Ascend": f"CANN {', '.join(CANN)}; source its set_env.sh",
    "GPU": "CUDA 11.1 to 11.8: bash scripts/env.sh --gpu, then source .venv/bin/activate",
}
REQUIRED = ("pillow", "psutil", "pyyaml", "scipy", "tqdm", "matplotlib", "onnx", "jinja2")
REQUIRED += ("safetensors", "ml-dtypes")
# OpenCV is needed, under one of two names: without it no reader works.
OPTIONAL = ("opencv-python-headless", "opencv-python", "openvino", "onnxruntime")
OPTIONAL += ("tensorboardX", "distributed")  # pip install '.[tensorboard,cluster]'
PYTHON_TIMEOUT = 120  # seconds for another Python process
# The readers of videos: name, module, package in requirements.txt.
READERS = (("PyAV", "av", "av>=17,<20"), ("decord", "av, decord", "decord2>=3,<4"))
LIST_KINDS = """
from mindspore.device_context import ascend, cpu, gpu

kinds = {"CPU": cpu, "GPU": gpu, "Ascend": ascend}
print("kinds", *(name for name, kind in kinds.items() if kind.is_available()), flush=True)
"""


class Line(NamedTuple):
    """One line of the screen; `advice` is what to do about a problem, which may be `fatal`."""

    name: str
    result: str
    advice: str = ""
    fatal: bool = False  # every run fails


def read_version(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_packages() -> list[Line]:
    python = platform.python_version()
    advice = "" if (3, 10) <= sys.version_info[:2] <= (3, 12) else "MindSpore needs 3.10 to 3.12"
    lines = [Line("Python", python, advice, fatal=True)]
    for name, release in (("MindSpore", "2.10."), ("NumPy", "1.")):
        version = read_version(name.lower())
        advice = "" if version.startswith(release) else f"pip install '{name.lower()}=={release}*'"
        fatal = not version or name != "MindSpore"  # another MindSpore may work
        lines.append(Line(name, version or "not installed", advice, fatal))
    versions = {name: read_version(name) for name in (*REQUIRED, *OPTIONAL)}
    missing = [name for name in REQUIRED if not versions[name]]
    advice = f"pip install {' '.join(missing)}" if missing else ""
    for title, names in (("packages", REQUIRED), ("optional", OPTIONAL)):
        shown = ", ".join(f"{name} {versions[name] or '–'}" for name in names)
        lines.append(Line(title, shown, advice if names is REQUIRED else "", fatal=True))
    return lines


def check_readers() -> list[Line]:
    """Each reader, with OpenCV, is loaded in a process of its own; one of them is enough."""
    reasons = {}
    for name, modules, _ in READERS:
        *_, last = ["it crashes", *run_python(f"import cv2, {modules}; print('loaded')")]
        reasons[name] = "" if last == "loaded" else f": {format_line(last, 200)}"
    lines = []
    for name, _, requirement in READERS:
        version = read_version(requirement.partition(">")[0]) or "not installed"
        advice = f"pip install '{requirement}'" if reasons[name] else ""
        lines.append(Line(name, version + reasons[name], advice, fatal=all(reasons.values())))
    return lines


def check_devices() -> list[Line]:
    """The devices that MindSpore can use, the host's devices, and what they need."""
    text = run_python(LIST_KINDS)
    usable = [kind for line in text if line.startswith("kinds ") for kind in line.split()[1:]]
    lacking = advise_library(" ".join(text))
    failure = lacking or f"MindSpore fails: {format_line(' '.join(text[-1:]), 200)}"
    advice = "" if usable else failure
    lines = [Line("devices", ", ".join(usable) or "unknown", advice, fatal=bool(lacking))]
    for kind, needs in NEEDS.items():
        count = count_devices(kind)
        advice = f"MindSpore cannot use them; GLOG_v=2 shows why. They need {needs}"
        is_unused = count and kind not in usable
        lines.append(Line(f"{kind} devices", str(count or "none"), advice if is_unused else ""))
    return lines


def run_python(code: str) -> list[str]:
    """The lines that code in another process, which may crash, prints; none if it is too slow."""
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=PYTHON_TIMEOUT,
            preexec_fn=die_with_parent,
            check=False,
        ).stdout.splitlines()
    except subprocess.TimeoutExpired:
        return []


def main() -> int:
    lines = [*check_packages(), *check_readers(), *check_devices()]
    if any(line.advice for line in lines):
        advice = "do what the lines with ! say, and run this command again"
    elif any(map(count_devices, NEEDS)) and not is_installed():
        advice = "bash scripts/verify_device.sh checks the devices (docs/many_devices.md)"
    else:
        start = "zoo quickstart" if is_installed() else "bash scripts/quickstart.sh"
        advice = f"{start} trains and evaluates once; docs/own_videos.md: your videos"
    for line in [*lines, Line("next", advice)]:
        advice = f"  <- {line.advice}" if line.advice else ""
        print(f"{'!' if line.advice else ' '} {line.name:15s} {line.result}{advice}")
    missing = [line.name for line in lines if line.advice and line.fatal]
    print(json.dumps({"found": {line.name: line.result for line in lines}, "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    cli.run_command(main, __doc__)
