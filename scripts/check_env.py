"""Prints versions, devices, decoders and memory of this machine on one screen.

    python scripts/check_env.py

A line that reports a problem begins with `!` and ends with what to do. Exit status 1 if a problem
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils import cli
from utils.cpu_cores import LEAST_CORES
from utils.distributed import devices as host

# The versions that MindSpore 2.10 looks for, and has libraries for.
CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")
CUDA = ("11.1", "11.6")
PYTHON = (3, 9), (3, 12)
# Other packages that the zoo needs; the remaining ones have separate lines.
OTHERS = ("pillow", "psutil", "pyyaml", "scipy", "tqdm", "matplotlib", "onnx")
# Packages of single commands: pip install '.[NAME]' gets them.
EXTRAS = {"tensorboard": ("tensorboardX",), "cluster": ("distributed",)}
ENGINES = ("openvino", "onnxruntime")  # of run.engine
FLAGS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
WHEELS = ("te", "hccl")  # of CANN: te compiles kernels, hccl joins ranks
GIGA = 1e9
NAME_WIDTH = 60  # characters of a long name
PYTHON_TIMEOUT = 120  # seconds for another Python process
LOG_LINES, LOG_WIDTH = 5, 160  # lines of MindSpore's log, characters of each
INDENT = "\n" + 18 * " "


class Line(NamedTuple):
    """One line of the screen. `advice` is empty, or what to do about a problem.

    `fatal`: the problem makes every run fail.
    """

    name: str
    result: str
    advice: str = ""
    fatal: bool = False


def check_all() -> Iterator[Line]:
    yield from check_packages()
    yield from check_devices()
    yield check_cann()
    yield from check_ascend()
    yield check_cuda()
    yield from check_gpu()
    yield describe_processor()
    yield from check_memory()


def read_version(*packages: str) -> str:
    """The version of the first of these packages that is installed; else empty."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def check_packages() -> Iterator[Line]:
    low, high = (".".join(map(str, number)) for number in PYTHON)
    fits = PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]
    advice = "" if fits else f"MindSpore has wheels for {low} to {high}"
    yield Line("Python", platform.python_version(), advice, fatal=True)
    mindspore, expected = read_version("mindspore"), "2.9" if sys.version_info < (3, 10) else "2.10"
    fits = mindspore.startswith(f"{expected}.")
    advice = "" if fits else f"pip install 'mindspore=={expected}.*'"
    yield Line("MindSpore", mindspore or "not installed", advice, fatal=not mindspore)
    numpy = read_version("numpy")
    advice = "" if numpy.startswith("1.") else "pip install 'numpy>=1.26,<2': MindSpore needs it"
    yield Line("NumPy", numpy or "not installed", advice, fatal=True)
    # The readers of `data.reader`; one is enough, OpenCV also resizes.
    av = read_version("av")
    advice = "" if av else "pip install av: twice as fast as the others"
    yield Line("PyAV", av or "not installed", advice)
    yield Line("decord", read_version("decord2", "decord") or "not installed, and not needed")
    opencv = read_version("opencv-python-headless", "opencv-python")
    advice = "" if opencv else "pip install 'opencv-python-headless>=4.11,<5'"
    yield Line("OpenCV", opencv or "not installed", advice, fatal=True)
    missing = [name for name in OTHERS if not read_version(name)]
    advice = f"pip install {' '.join(missing)}" if missing else ""
    yield Line("packages", list_versions(OTHERS), advice, fatal=True)
    advice = "" if any(map(read_version, ENGINES)) else "pip install openvino: faster evaluation"
    yield Line("CPU engines", list_versions(ENGINES), advice)
    names = [name for group in EXTRAS.values() for name in group]
    advice = f"pip install '.[{','.join(EXTRAS)}]' gets them"
    yield Line("optional", f"{list_versions(names)}; {advice}")


def list_versions(packages: Sequence[str]) -> str:
    return ", ".join(f"{name} {read_version(name) or '–'}" for name in packages)


def check_devices() -> Iterator[Line]:
    """The devices that MindSpore can use, and those of the host."""
    counts = {kind: host.count_devices(kind) for kind in host.FILES}
    usable, log = find_usable_devices("2" if counts["Ascend"] else None)
    yield Line("devices", ", ".join(usable) or "unknown", "" if usable else "MindSpore fails")
    for kind, count in counts.items():
        advice = "" if kind in usable else "MindSpore cannot use them: see the lines below"
        if count:
            yield Line(f"{kind} devices", str(count), advice)
    if counts["Ascend"] and log:
        yield Line("MindSpore's log", "\n".join(log))


def find_usable_devices(level: Optional[str]) -> tuple[list[str], list[str]]:
    """The kinds of device that MindSpore can use, and the first distinct lines of its log.

    `level` is GLOG_v, 2 for warnings; None does not change it. MindSpore runs in another process,
    because it may print or crash.
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
    return result[1].split() if result else [], list(dict.fromkeys(messages))[:LOG_LINES]


def run_python(code: str, variables: Mapping[str, str]) -> str:
    """The output of code in another process of this interpreter; empty if it takes too long."""
    options = {"env": {**os.environ, **variables}, "timeout": PYTHON_TIMEOUT, "errors": "replace"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        return subprocess.run([sys.executable, "-c", code], **pipes, **options, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""


def check_cann() -> Line:
    folder, home = host.find_cann(os.environ), os.environ.get("ASCEND_HOME_PATH")
    if folder is None:
        where = f"in ASCEND_HOME_PATH={home}" if home else f"(for Ascend only: {', '.join(CANN)})"
        advice = "install CANN, then source its set_env.sh" if host.count_devices("Ascend") else ""
        return Line("CANN", f"not found {where}", advice)
    number = host.read_cann_version(folder)
    advice = (
        "" if home else f"source {host.find_set_env(folder)} first: ASCEND_HOME_PATH is not set"
    )
    expected = check_version(number or "unknown", CANN)
    return Line("CANN", f"{number or 'unknown version'} in {folder}", advice or expected)


def check_ascend() -> Iterator[Line]:
    """CANN's Python packages, and cores for each device; nothing on a host without either."""
    count, folder = host.count_devices("Ascend"), host.find_cann(os.environ)
    if count or folder:
        code = (
            f"import importlib\nfor name in {WHEELS}:\n"
            "    try: importlib.import_module(name); print('import', name, 'done', flush=True)\n"
            "    except Exception as error: print('import', name, error)"
        )
        states = dict(re.findall(r"^import (\w+) (.*)$", run_python(code, {}), re.MULTILINE))
        missing = [name for name in WHEELS if states.get(name) != "done"]
        failures = "; ".join(f"{name}: {states.get(name, 'import fails')}" for name in missing)
        wheels = " ".join(f"{folder or 'CANN'}/lib64/{name}-*.whl" for name in WHEELS)
        advice = f"pip install '.[ascend]' {wheels}" if failures else ""
        yield Line(", ".join(WHEELS), failures or "can be imported", advice)
    if count:
        cores = len(os.sched_getaffinity(0)) // count
        advice = (
            f"give each rank {LEAST_CORES} cores or more, by fewer DEVICES or a larger container: "
            "with fewer, decoding and the launch of kernels compete"
        )
        result = f"{cores} for each of {count} devices"
        yield Line("cores", result, advice if cores < LEAST_CORES else "")


def check_cuda() -> Line:
    number = host.read_cuda_version(os.environ)
    only = f"(only GPUs need it: {' or '.join(CUDA)})"
    if not number:
        return Line("CUDA", f"not found {only}")
    if not shutil.which("nvidia-smi"):  # another package has brought the library
        return Line("CUDA", f"{number}, without a GPU driver {only}")
    return Line("CUDA", number, check_version(number, CUDA))


def check_gpu() -> Iterator[Line]:
    """What MindSpore's GPU plugin needs to load; nothing on a host without GPUs."""
    if not host.count_devices("GPU"):
        return
    home, compiler, advice = os.environ.get("CUDA_HOME"), host.find_nvcc(os.environ), ""
    if not home:
        advice = "export CUDA_HOME=FOLDER, the folder of CUDA whose bin/nvcc exists"
    elif not os.path.isfile(compiler):
        advice = f"there is no {compiler}: install CUDA's compiler, or correct CUDA_HOME"
    yield Line("CUDA_HOME", home or "not set", advice)
    library = host.find_library("libcudnn.so.8", os.environ)
    advice = "" if library else "install cuDNN 8, and add its folder to LD_LIBRARY_PATH"
    yield Line("cuDNN", library or "no libcudnn.so.8", advice)


def check_version(number: str, expected: tuple[str, ...]) -> str:
    """The advice for a version that MindSpore does not expect; else empty."""
    return "" if number in expected else f"MindSpore expects one of {', '.join(expected)}"


def describe_processor() -> Line:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", text)
    flags = set((re.search(r"(?:flags|Features)\s*: (.*)", text) or ["", ""])[1].split())
    kind = next((FLAGS[flag] for flag in FLAGS if flag in flags), "no vector instructions known")
    # MindSpore's oneDNN is 50 times slower with AVX-512 than with AVX2: utils/runtime.py.
    cap = " (MindSpore uses AVX2, which is faster)" if kind == "AVX-512" else ""
    description = name[1][:NAME_WIDTH] if name else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return Line("processor", f"{description}; {cores} cores; {kind}{cap}")


def check_memory() -> Iterator[Line]:
    meminfo = Path("/proc/meminfo").read_text()
    free = int(re.search(r"MemAvailable:\s*(\d+)", meminfo)[1]) * 1024
    advice = "" if free > 2 * GIGA else "the smallest recipe takes about 2 GB"
    yield Line("free memory", f"{free / GIGA:.1f} GB", advice)
    for name, position in (("shared memory", Path("/dev/shm")), ("free disk", home())):
        if position.exists():
            yield Line(name, f"{shutil.disk_usage(position).free / GIGA:.2f} GB in {position}")


def home() -> Path:
    """The folder of results, as in utils/config.py, which needs MindSpore."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def main() -> int:
    lines = list(check_all())
    for line in lines:
        result = line.result.replace("\n", INDENT)
        advice = f"  <- {line.advice}" if line.advice else ""
        print(f"{'!' if line.advice else ' '} {line.name:15s} {result}{advice}")
    missing = [line.name for line in lines if line.advice and line.fatal]
    print(json.dumps({"found": {line.name: line.result for line in lines}, "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    cli.run_command(main, __doc__, watch_signals=False)
