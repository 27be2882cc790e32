"""Shows on one screen what this zoo finds here: versions, devices, decoders, memory.

    python scripts/check_env.py

A line that needs something done begins with `!` and says what to do. Exit status 1 if one of them
makes every run fail. The last line of stdout is one JSON object: found, missing.

ASCEND_RT_VISIBLE_DEVICES=2, or CUDA_VISIBLE_DEVICES=2, chooses the device of a run.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils import cli
from utils.cpu_cores import LEAST_CORES
from utils.distributed.devices import (
    FILES,
    count_devices,
    find_cann,
    find_set_env,
    read_cann_version,
)

# What MindSpore 2.10 itself looks for, and has libraries for.
CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")
CUDA = ("11.1", "11.6")
PYTHON = (3, 9), (3, 12)
# What the zoo needs besides the packages that have a line of their own.
OTHERS = ("pillow", "psutil", "pyyaml", "scipy", "tqdm", "matplotlib")
# What single commands need: pip install '.[NAME]' gets them.
EXTRAS = {"export": ("onnx", "onnxruntime"), "tensorboard": ("tensorboardX",)}
FLAGS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
WHEELS = ("te", "hccl")  # of CANN: kernels are compiled by one, ranks joined by the other
GIGA = 1e9
SHOWN = 60  # characters of a long name
PATIENCE = 120  # seconds for a question to another Python process
LOGGED, LOG_WIDTH = 5, 160  # lines of MindSpore's log, characters of each
INDENT = "\n" + 18 * " "


class Line(NamedTuple):
    """One line of the screen; `wrong` says what to do, and `fatal` that nothing runs without."""

    name: str
    result: str
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
    yield from check_ascend()
    yield cuda()
    yield from check_gpu()
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
    result, wanted = version("mindspore"), "2.9" if sys.version_info < (3, 10) else "2.10"
    wrong = "" if result.startswith(f"{wanted}.") else f"pip install 'mindspore=={wanted}.*'"
    return Line("MindSpore", result or "not installed", wrong, fatal=not result)


def numpy() -> Line:
    result = version("numpy")
    wrong = "" if result.startswith("1.") else "pip install 'numpy>=1.26,<2': MindSpore needs it"
    return Line("NumPy", result or "not installed", wrong, fatal=True)


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
    result = ", ".join(f"{name} {version(name) or '–'}" for name in OTHERS)
    return Line("packages", result, wrong, fatal=True)


def extras() -> Line:
    """Nothing is wrong without them: what asks for one says so."""
    names = [f"{name} {version(name) or '–'}" for group in EXTRAS.values() for name in group]
    return Line("optional", f"{', '.join(names)}; pip install '.[{','.join(EXTRAS)}]' gets them")


def devices() -> Iterator[Line]:
    """What MindSpore can use, and what the host has."""
    there = {kind: count_devices(kind) for kind in FILES}
    usable, log = find_usable_devices("2" if there["Ascend"] else None)
    yield Line("devices", ", ".join(usable) or "unknown", "" if usable else "MindSpore fails")
    for kind, count in there.items():
        wrong = "" if kind in usable else "MindSpore cannot use them: see the lines below"
        if count:
            yield Line(f"{kind} devices", str(count), wrong)
    if there["Ascend"] and log:
        yield Line("MindSpore's log", "\n".join(log))


def find_usable_devices(level: Optional[str]) -> tuple[list[str], list[str]]:
    """The kinds of device that MindSpore can use, and the first different lines of its log.

    `level` is GLOG_v, 2 for warnings; None leaves it as it is. MindSpore is asked in a process of
    its own, which may print or crash.
    """
    code = (
        "import mindspore as ms\n"
        "kinds = [k for k in ('CPU', 'GPU', 'Ascend') if ms.hal.is_available(k)]\n"
        "print('kinds', *kinds, flush=True)"
    )
    text = run_python(code, {"GLOG_v": level} if level else {})
    result = re.search("^kinds (.*)$", text, re.MULTILINE)
    # [WARNING] ME(process,...):time [file:line] message, with a function before it in C++
    lines = re.findall(r"^\[(?:WARNING|ERROR|CRITICAL)\] .*?:\d+\] (?:\w+\] )?(.*)", text, re.M)
    messages = [line[:LOG_WIDTH] for line in lines if not re.match(r"Backend \w+ is not", line)]
    return result[1].split() if result else [], list(dict.fromkeys(messages))[:LOGGED]


def run_python(code: str, variables: Mapping[str, str]) -> str:
    """What code prints, by this interpreter in a process of its own; empty if it takes too long."""
    command, environ = [sys.executable, "-c", code], {**os.environ, **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    try:
        return subprocess.run(command, **pipes, env=environ, timeout=PATIENCE, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""


def cann() -> Line:
    folder, home = find_cann(os.environ), os.environ.get("ASCEND_HOME_PATH")
    if folder is None:
        where = f"in ASCEND_HOME_PATH={home}" if home else f"(for Ascend only: {', '.join(CANN)})"
        wrong = "install CANN, then source its set_env.sh" if count_devices("Ascend") else ""
        return Line("CANN", f"not found {where}", wrong)
    number = read_cann_version(folder)
    wrong = "" if home else f"source {find_set_env(folder)} first: ASCEND_HOME_PATH is not set"
    expected = unexpected(number or "unknown", CANN)
    return Line("CANN", f"{number or 'unknown version'} in {folder}", wrong or expected)


def check_ascend() -> Iterator[Line]:
    """What runs on Ascend need besides CANN; nothing on a host without either."""
    count, folder = count_devices("Ascend"), find_cann(os.environ)
    if count or folder:
        code = (
            f"import importlib\nfor name in {WHEELS}:\n"
            "    try: importlib.import_module(name); print('import', name, 'done', flush=True)\n"
            "    except Exception as error: print('import', name, error)"
        )
        states = dict(re.findall(r"^import (\w+) (.*)$", run_python(code, {}), re.MULTILINE))
        failures = [
            f"{name}: {states.get(name, 'import fails')}"
            for name in WHEELS
            if states.get(name) != "done"
        ]
        wheels = " ".join(f"{folder or 'CANN'}/lib64/{name}-*.whl" for name in WHEELS)
        wrong = f"pip install '.[ascend]' {wheels}" if failures else ""
        yield Line(", ".join(WHEELS), "; ".join(failures) or "can be imported", wrong)
    if count:
        each = len(os.sched_getaffinity(0)) // count
        wrong = (
            f"give each rank {LEAST_CORES} cores or more, by fewer DEVICES or a larger container: "
            "with fewer, decoding and the launch of kernels compete"
        )
        result = f"{each} for each of {count} devices"
        yield Line("cores", result, wrong if each < LEAST_CORES else "")


def cuda() -> Line:
    """The version that CUDA_HOME's compiler has, or else the runtime library, or `nvcc`."""
    library = re.search(r"libcudart\.so\S* .*=> (\S+)", output("ldconfig", "-p"))
    names = os.path.realpath(library[1]) if library else ""
    compilers = [output(name, "--version") for name in (find_nvcc(), "nvcc")]
    text = f"{compilers[0]} {names} {compilers[1]}"
    result = re.search(r"(?:libcudart\.so\.|release )(\d+\.\d+)", text)
    if not result:
        return Line("CUDA", f"not found (for GPUs only: {', '.join(CUDA)})")
    if not shutil.which("nvidia-smi"):  # a library alone, with some other package
        return Line("CUDA", f"{result[1]}, and no nvidia-smi (for GPUs only: {', '.join(CUDA)})")
    return Line("CUDA", result[1], unexpected(result[1], CUDA))


def find_nvcc() -> str:
    """The compiler in CUDA_HOME, which MindSpore's GPU plugin asks for the version; or empty."""
    home = os.environ.get("CUDA_HOME")
    return os.path.join(home, "bin", "nvcc") if home else ""


def check_gpu() -> Iterator[Line]:
    """Without these MindSpore's GPU plugin does not load; nothing on a host without GPUs."""
    if not count_devices("GPU"):
        return
    home, wrong = os.environ.get("CUDA_HOME"), ""
    if not home:
        wrong = "export CUDA_HOME=FOLDER, the folder of CUDA whose bin/nvcc exists"
    elif not os.path.isfile(find_nvcc()):
        wrong = f"there is no {find_nvcc()}: install CUDA's compiler, or correct CUDA_HOME"
    yield Line("CUDA_HOME", home or "not set", wrong)
    library = find_library("libcudnn.so.8")
    wrong = "" if library else "install cuDNN 8, and add its folder to LD_LIBRARY_PATH"
    yield Line("cuDNN", library or "no libcudnn.so.8", wrong)


def find_library(name: str) -> str:
    """The path from which the loader takes a library; empty if there is none."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    result = re.search(rf"{re.escape(name)} .*=> (\S+)", output("ldconfig", "-p"))
    return result[1] if result else ""


def output(*command: str) -> str:
    """What a command prints; empty if there is no such command."""
    program = shutil.which(command[0]) or shutil.which(command[0], path="/sbin:/usr/sbin")
    if not program:
        return ""
    command = (program, *command[1:])
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
    for name, position in (("shared memory", Path("/dev/shm")), ("free disk", home())):
        if position.exists():
            yield Line(name, f"{shutil.disk_usage(position).free / GIGA:.2f} GB in {position}")


def home() -> Path:
    """Where results go: as utils/config.py says, which needs MindSpore."""
    root = Path(sys.path[0])
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def main() -> int:
    shown = list(lines())
    for line in shown:
        mark = "!" if line.wrong else " "
        result = line.result.replace("\n", INDENT)
        print(f"{mark} {line.name:15s} {result}{'  <- ' if line.wrong else ''}{line.wrong}")
    missing = [line.name for line in shown if line.wrong and line.fatal]
    print(json.dumps({"found": {line.name: line.result for line in shown}, "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    cli.run_command(main, __doc__, watch_signals=False)
