"""Compiles the kernels of this folder for the CPU of this machine, once, and enables them.

They need g++ and a processor that MindSpore's oneDNN has convolutions for. If that is missing or
ZOO_CPU_KERNELS is 0, the networks use MindSpore's own kernels: the same numbers up to rounding.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Optional

SOURCES = Path(__file__).resolve().parent
SWITCH = "ZOO_CPU_KERNELS"
LIBRARY, ONEDNN = "libkernels.so", "libdnnl.so"
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")
OPTIONS += ("-fopenmp", "-shared", "-fPIC")

_enabled: list[Path] = []  # the library, if it is enabled


def find_library() -> Optional[Path]:
    """The enabled library; None: use MindSpore's kernels."""
    return _enabled[0] if _enabled else None


def disable() -> None:
    """Cells that are built from now on use MindSpore's kernels."""
    _enabled.clear()


def enable(cache: Path) -> str:
    """Cells that are built from now on use these kernels, compiled in `cache`.

    Returns why this is not possible; empty if it is.
    """
    disable()
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if platform.machine() != "x86_64" or not shutil.which("g++"):
        return "they need g++ and an x86-64 processor"
    try:
        library = build(cache)
        ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        return next(iter(output.strip().splitlines()), "g++ failed")
    _enabled.append(library)
    return ""


def build(cache: Path) -> Path:
    """The library in a folder whose name has a checksum of all that it depends on."""
    folder = cache / compute_checksum()
    if (folder / LIBRARY).is_file():
        return folder / LIBRARY
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        building = Path(temporary) / "kernels"
        building.mkdir()
        command = ["g++", *OPTIONS, *map(str, sorted(SOURCES.glob("*.cc"))), "-ldl"]
        command += ["-o", str(building / LIBRARY)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        shutil.copy(find_onednn(), building / ONEDNN)
        try:
            building.rename(folder)
        except OSError:
            if not (folder / LIBRARY).is_file():  # else another process was faster
                raise
    return folder / LIBRARY


def find_onednn() -> Path:
    return Path(importlib.util.find_spec("mindspore").origin).parent / "lib" / "libdnnl.so.3"


def compute_checksum() -> str:
    """Of the sources, MindSpore's version and the processor's instructions."""
    text = [importlib.metadata.version("mindspore"), " ".join(OPTIONS)]
    text += [path.read_text() for path in sorted(SOURCES.glob("*.cc"))]
    flags = re.search(r"^flags\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    text.append(flags[0] if flags else "")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
