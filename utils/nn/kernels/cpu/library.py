"""Compiles the kernels of this folder for the CPU of this machine, once.

They need g++. If that is missing or ZOO_CPU_KERNELS is 0, the networks use MindSpore's own kernels:
the same numbers up to rounding.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Callable

import mindspore

from utils.files import wait_for_lock
from utils.messages import SETTINGS_LINE, print_line, shorten
from utils.processes import describe_exit

SOURCES = Path(__file__).resolve().parent
SWITCH = "ZOO_CPU_KERNELS"
LIBRARY = "libkernels.so"
ONEDNN = "libdnnl.so"
MINDSPORE_ONEDNN = Path(mindspore.__file__).parent / "lib" / "libdnnl.so.3"
CPUINFO = Path("/proc/cpuinfo")  # flags on x86-64, Features on aarch64
OPTIONS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")
OPTIONS += ("-fopenmp", "-shared", "-fPIC")


def load(cache: Path, report: Callable[[str], object] = print_line) -> Path:
    """The library of the kernels, compiled in `cache` if it is not there.

    Raises OSError or ValueError with one line if it cannot be used here. `report` gets a line
    before a compilation.
    """
    if os.environ.get(SWITCH) == "0":
        raise OSError(f"{SWITCH} is 0")
    if not shutil.which("g++"):
        raise OSError("they need g++")
    folder = cache / compute_checksum()
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(cache, lambda: None):
            if not folder.exists():  # else another process has compiled it
                for scratch in cache.glob("tmp*"):  # of a compilation that was killed
                    shutil.rmtree(scratch, ignore_errors=True)
                report("compiling the zoo's CPU kernels, once; this takes about half a minute ...")
                compile_into(folder)
    ctypes.CDLL(str(folder / LIBRARY))
    return folder / LIBRARY


def compile_into(folder: Path) -> None:
    """Compiles the library beside `folder`, and renames the result when it is on the disk.

    Raises OSError with the first line of an error of the compiler.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        building = Path(temporary) / "kernels"
        building.mkdir()
        sources = map(str, sorted(SOURCES.glob("*.cc")))
        command = ["g++", *OPTIONS, *sources, "-ldl", "-o", str(building / LIBRARY)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"g++ {describe_exit(done.returncode)}"]
            raise OSError(shorten(lines[0], SETTINGS_LINE))
        shutil.copy(MINDSPORE_ONEDNN, building / ONEDNN)
        os.sync()  # a power cut leaves whole files or none
        building.rename(folder)


def compute_checksum() -> str:
    """Of the sources, MindSpore's version and the processor's instructions."""
    text = [importlib.metadata.version("mindspore"), " ".join(OPTIONS)]
    text += [path.read_text() for path in sorted(SOURCES.glob("*.cc"))]
    flags = re.search(r"^(flags|Features)\s*:.*$", CPUINFO.read_text(), re.MULTILINE)
    text.append(flags[0] if flags else "")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
