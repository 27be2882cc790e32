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
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from scripts.launcher.launch_config import FILES, count_devices
from utils import cli
from utils.messages import format_line, is_installed
from utils.processes import die_with_parent

# The versions that MindSpore 2.10 looks for, and has libraries for.
CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")
# Device -> what it needs; docs/many_devices.md.
NEEDS = {
    "Ascend": f"CANN {', '.join(CANN)}; source its set_env.sh",
    "GPU": "CUDA 11.1 to 11.8: bash scripts/env.sh --gpu, then source .venv/bin/activate",
}
OPENCV = ("opencv-python-headless", "opencv-python")
# Name, packages of which one is needed, start of the version, advice.
RELEASES = (
    ("MindSpore", ("mindspore",), "2.10.", "pip install 'mindspore==2.10.*'"),
    ("NumPy", ("numpy",), "1.", "pip install 'numpy>=1.26,<2', for MindSpore"),
    ("OpenCV", OPENCV, "", "pip install 'opencv-python-headless>=4.11,<5'"),
)
REQUIRED = ("pillow", "psutil", "pyyaml", "scipy", "tqdm", "matplotlib", "onnx", "jinja2")
REQUIRED += ("safetensors", "ml-dtypes")
ENGINES = ("openvino", "onnxruntime")  # of run.engine
OPTIONAL = ("tensorboardX", "distributed")  # pip install '.[tensorboard,cluster]'
GIGA = 1e9
PYTHON_TIMEOUT = 120  # seconds for another Python process
# The readers of videos, as data.reader names them, and their packages in requirements.txt.
READERS = {"pyav": "av>=17,<20", "decord": "decord2>=3,<4"}
DECODED = "decoded [0, 60, 120, 180]"
DECODE = """
import os, sys, tempfile
sys.path.insert(0, {root!r})
import cv2
import numpy as np
from utils.video.decoders import open_video

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "clip.mp4")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"mp4v"), 4, (64, 48))
    for level in range(0, 240, 60):
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    with open_video(path, {reader!r}) as video:
        levels = video.frames(range(len(video))).mean((1, 2, 3))
    print("decoded", [int(10 * np.round(level / 10)) for level in levels])
"""

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


def check_packages() -> Iterator[Line]:
    is_known = (3, 10) <= sys.version_info[:2] <= (3, 12)
    advice = "" if is_known else "MindSpore 2.10 has wheels for 3.10 to 3.12"
    yield Line("Python", result=platform.python_version(), advice=advice, fatal=True)
    for name, packages, release, advice in RELEASES:
        version = read_version(*packages)
        fits = version and version.startswith(release)
        fatal = not version or name != "MindSpore"  # another MindSpore may work
        yield Line(name, version or "not installed", "" if fits else advice, fatal)
    missing = [name for name in REQUIRED if not read_version(name)]
    advice = f"pip install {' '.join(missing)}" if missing else ""
    yield Line("packages", result=list_versions(REQUIRED), advice=advice, fatal=True)
    advice = "" if any(map(read_version, ENGINES)) else "pip install openvino: faster evaluation"
    yield Line("CPU engines", list_versions(ENGINES), advice)
    yield Line("optional", f"{list_versions(OPTIONAL)}: pip install '.[tensorboard,cluster]'")


def read_version(*packages: str) -> str:
    """The version of the first of these packages that is installed; else empty."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def list_versions(packages: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {read_version(name) or '–'}" for name in packages)


def check_readers() -> Iterator[Line]:
    """Each reader decodes a generated clip in a process of its own."""
    reasons = {}
    for reader in READERS:
        lines = run_python(DECODE.format(root=str(ROOT), reader=reader)).splitlines()
        reasons[reader] = "" if lines[-1:] == [DECODED] else " ".join(lines[-1:]) or "it crashes"
    working = [reader for reader in READERS if not reasons[reader]]
    for reader, requirement in READERS.items():
        version = read_version(requirement.partition(">")[0]) or "not installed"
        result = f"{version}: {format_line(reasons[reader], 200)}" if reasons[reader] else version
        advice = f"pip install '{requirement}'"
        if working:
            advice += f"; until then --data.reader={working[0]}"
        title = {"pyav": "PyAV"}.get(reader, reader)
        advice = advice if reasons[reader] else ""
        yield Line(title, result=result, advice=advice, fatal=not working)


def check_devices() -> Iterator[Line]:
    """The devices that MindSpore can use; those of the host, and what they need."""
    text = run_python(LIST_KINDS)
    result = re.search("^kinds (.*)$", text, re.MULTILINE)
    usable = result[1].split() if result else []
    lacking = advise_library(text)
    reason = format_line(" ".join(text.splitlines()[-1:]), 200)
    advice = "" if usable else lacking or f"MindSpore fails: {reason}"
    yield Line("devices", ", ".join(usable) or "unknown", advice, fatal=bool(lacking))
    for kind, needs in NEEDS.items():
        count = count_devices(kind)
        is_unused = count and kind not in usable
        advice = f"MindSpore cannot use them; GLOG_v=2 shows why. They need {needs}"
        yield Line(f"{kind} devices", str(count or "none"), advice if is_unused else "")


def run_python(code: str) -> str:
    """What code in another process, which may crash, prints; empty if it takes too long."""
    command = [sys.executable, "-c", code]
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=PYTHON_TIMEOUT,
            preexec_fn=die_with_parent,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return ""


def advise(lines: list[Line]) -> str:
    """What to do next."""
    if any(line.advice for line in lines):
        return "do what the lines with ! say, and run this command again"
    if any(map(count_devices, FILES)) and not is_installed():
        return "bash scripts/verify_device.sh checks the devices (docs/many_devices.md)"
    start = "zoo quickstart" if is_installed() else "bash scripts/quickstart.sh"
    return f"{start} trains and evaluates once; docs/own_videos.md: your videos"


def main() -> int:
    name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = name[1][:60] if name else platform.machine()
    free = int(re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    advice = "" if free > 2 * GIGA else "the smallest recipe takes about 2 GB"
    disk = shutil.disk_usage(Path.cwd()).free
    lines = [*check_packages(), *check_readers(), *check_devices()]
    lines.append(Line("processor", f"{processor}; {len(os.sched_getaffinity(0))} cores"))
    lines.append(Line("free memory", f"{free / GIGA:.1f} GB", advice))
    lines.append(Line("free disk", f"{disk / GIGA:.2f} GB in {Path.cwd()}"))
    for line in [*lines, Line("next", advise(lines))]:
        advice = f"  <- {line.advice}" if line.advice else ""
        print(f"{'!' if line.advice else ' '} {line.name:15s} {line.result}{advice}")
    missing = [line.name for line in lines if line.advice and line.fatal]
    print(json.dumps({"found": {line.name: line.result for line in lines}, "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    cli.run_command(main, __doc__)
