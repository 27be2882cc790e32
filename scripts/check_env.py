"""Shows on one screen what this zoo finds here: versions, devices, decoders, memory.

    python scripts/check_env.py

A line that needs something done begins with `!` and says what. Exit status 1 where one of them
stands in the way of any run. The last line of stdout is one JSON object: found, missing.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.usage import quietly, take_nothing

# What MindSpore 2.10 itself looks for, and has libraries for.
CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")
CUDA = ("11.1", "11.6")
PYTHON = (3, 9), (3, 12)
# What the zoo needs besides the packages that have a line of their own.
OTHERS = ("pillow", "psutil", "pyyaml", "scipy", "tqdm", "matplotlib")
# What single commands need: pip install '.[NAME]' gets them.
EXTRAS = {"export": ("onnx", "onnxruntime"), "tensorboard": ("tensorboardX",)}
FLAGS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
GIGA = 1e9
SHOWN = 60  # characters of a long name


class Line(NamedTuple):
    """One line of the screen; `wrong` says what to do, and `fatal` that nothing runs without."""

    name: str
    found: str
    wrong: str = ""
    fatal: bool = False


def lines() -> Iterator[Line]:
    yield python()
    yield mindspore()
    yield numpy()
    yield from decoders()
    yield others()
    yield extras()
    yield from devices()
    yield cann()
    yield cuda()
    yield processor()
    yield from memory()


def version(*packages: str) -> str:
    """Of the first of them that is installed; else empty."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def python() -> Line:
    low, high = (".".join(map(str, each)) for each in PYTHON)
    fits = PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]
    wrong = "" if fits else f"MindSpore has wheels for {low} to {high}"
    return Line("Python", platform.python_version(), wrong, fatal=True)


def mindspore() -> Line:
    found, wanted = version("mindspore"), "2.9" if sys.version_info < (3, 10) else "2.10"
    wrong = "" if found.startswith(f"{wanted}.") else f"pip install 'mindspore=={wanted}.*'"
    return Line("MindSpore", found or "not installed", wrong, fatal=not found)


def numpy() -> Line:
    found = version("numpy")
    wrong = "" if found.startswith("1.") else "pip install 'numpy>=1.26,<2': MindSpore needs it"
    return Line("NumPy", found or "not installed", wrong, fatal=True)


def decoders() -> Iterator[Line]:
    """The readers of `data.reader`; one is enough, OpenCV also resizes."""
    reader = "" if version("av") else "pip install av: twice as fast as the others"
    yield Line("PyAV", version("av") or "not installed", reader)
    yield Line("decord", version("decord2", "decord") or "not installed, and not needed")
    opencv = version("opencv-python-headless", "opencv-python")
    wrong = "" if opencv else "pip install 'opencv-python-headless>=4.11,<5'"
    yield Line("OpenCV", opencv or "not installed", wrong, fatal=True)


def others() -> Line:
    lacking = [name for name in OTHERS if not version(name)]
    wrong = f"pip install {' '.join(lacking)}" if lacking else ""
    found = ", ".join(f"{name} {version(name) or '–'}" for name in OTHERS)
    return Line("packages", found, wrong, fatal=True)


def extras() -> Line:
    """Nothing is wrong without them: what asks for one says so."""
    names = [f"{name} {version(name) or '–'}" for group in EXTRAS.values() for name in group]
    return Line("optional", f"{', '.join(names)}; pip install '.[{','.join(EXTRAS)}]' gets them")


def devices() -> Iterator[Line]:
    """What MindSpore can use, and what the host has."""
    there = {
        "Ascend": len(list(Path("/dev").glob("davinci[0-9]*"))),
        "GPU": len(list(Path("/dev").glob("nvidia[0-9]*"))),
    }
    usable = usable_devices()
    yield Line("devices", ", ".join(usable) or "unknown", "" if usable else "MindSpore fails")
    for kind, count in there.items():
        wrong = "" if kind in usable else "MindSpore cannot use them: see the lines below"
        if count:
            yield Line(f"{kind} devices", str(count), wrong)


def usable_devices() -> list[str]:
    """Asked in a process of its own: what fails there, or prints, fails there."""
    code = (
        "import mindspore as ms\n"
        "kinds = [k for k in ('CPU', 'GPU', 'Ascend') if ms.hal.is_available(k)]\n"
        "print('kinds', *kinds)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = re.search("^kinds (.*)$", done.stdout, re.MULTILINE)
    return found[1].split() if found else []


def cann() -> Line:
    home = os.environ.get("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest")
    file = Path(home) / "compiler" / "version.info"
    if not file.is_file():
        return Line("CANN", f"not found (for Ascend only: {', '.join(CANN)})")
    found = re.search(r"Version=(\d+\.\d+)", file.read_text())
    number = found[1] if found else "unknown"
    return Line("CANN", f"{number} in {home}", unexpected(number, CANN))


def cuda() -> Line:
    """The version of the runtime library, or where its name has none, of the compiler."""
    library = re.search(r"libcudart\.so\S* .*=> (\S+)", output("ldconfig", "-p"))
    told = os.path.realpath(library[1]) if library else ""
    told = f"{told} {output('nvcc', '--version')}"
    found = re.search(r"(?:libcudart\.so\.|release )(\d+\.\d+)", told)
    if not found:
        return Line("CUDA", f"not found (for GPUs only: {', '.join(CUDA)})")
    if not shutil.which("nvidia-smi"):  # a library alone, with some other package
        return Line("CUDA", f"{found[1]}, and no nvidia-smi (for GPUs only: {', '.join(CUDA)})")
    return Line("CUDA", found[1], unexpected(found[1], CUDA))


def output(*command: str) -> str:
    """What a command prints; empty where there is no such command."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def unexpected(number: str, expected: tuple[str, ...]) -> str:
    return "" if number in expected else f"MindSpore expects one of {', '.join(expected)}"


def processor() -> Line:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", text)
    flags = set((re.search(r"(?:flags|Features)\s*: (.*)", text) or ["", ""])[1].split())
    kind = next((FLAGS[flag] for flag in FLAGS if flag in flags), "no vector instructions known")
    cap = ", oneDNN kept to AVX2, where it is 50 times as fast" if kind == "AVX-512" else ""
    shown = (
        f"{name[1][:SHOWN] if name else platform.machine()}; {len(os.sched_getaffinity(0))} cores"
    )
    return Line("processor", f"{shown}; {kind}{cap}")


def memory() -> Iterator[Line]:
    meminfo = Path("/proc/meminfo").read_text()
    free = int(re.search(r"MemAvailable:\s*(\d+)", meminfo)[1]) * 1024
    wrong = "" if free > 2 * GIGA else "the smallest recipe takes about 2 GB"
    yield Line("free memory", f"{free / GIGA:.1f} GB", wrong)
    for name, place in (("shared memory", Path("/dev/shm")), ("free disk", home())):
        if place.exists():
            yield Line(name, f"{shutil.disk_usage(place).free / GIGA:.2f} GB in {place}")


def home() -> Path:
    """Where results go: as utils/config.py says, which needs MindSpore."""
    root = Path(sys.path[0])
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def main() -> None:
    take_nothing(__doc__)
    shown = list(lines())
    for line in shown:
        mark = "!" if line.wrong else " "
        print(f"{mark} {line.name:15s} {line.found}{'  <- ' if line.wrong else ''}{line.wrong}")
    missing = [line.name for line in shown if line.wrong and line.fatal]
    print(json.dumps({"found": {line.name: line.found for line in shown}, "missing": missing}))
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    with quietly():
        main()
