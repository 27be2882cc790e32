"""CUDA for MindSpore's GPU back end: the driver, the CUDA in CUDA_HOME, or NVIDIA's wheels.

    python scripts/launcher/cuda.py driver               is there a driver, with a GPU?
    python scripts/launcher/cuda.py installed FOLDER     uses a CUDA 11.1 to 11.8 in CUDA_HOME
    python scripts/launcher/cuda.py wheels FOLDER        uses the wheels of requirements-gpu.txt

scripts/env.sh runs these, the first with any Python. The others write FOLDER/set_env.sh, which sets
CUDA_HOME, LD_LIBRARY_PATH and the driver's cache of compiled kernels; `wheels` writes a folder of
links that has the form of an installed CUDA. Exit status 2, with one line on stderr, without a
driver or if libraries are missing; 1 without a line if CUDA_HOME has no CUDA that works.

The driver is asked through libcuda.so.1, not by nvidia-ml-py: `driver` runs before any package is
installed, and NVML also counts GPUs that CUDA_VISIBLE_DEVICES hides from MindSpore.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements-gpu.txt"
COMPILER = "nvidia-cuda-nvcc-cu11"  # its wheel has ptxas, but no nvcc
VERSIONS = ((11, 1), (11, 8))  # of CUDA: the first and the last that MindSpore's libraries fit
PLUGINS = {(11, 1): "libmindspore_gpu.so.11.1", (11, 6): "libmindspore_gpu.so.11.6"}
CACHE_BYTES = 2**32  # of kernels that the driver has compiled
NVCC = """#!/bin/sh
# MindSpore reads the version of CUDA from this file.
case "$1" in
    --version* | -V) echo 'Cuda compilation tools, release {release}, V{version}' ;;
    *) echo 'nvcc: the wheels of CUDA have no compiler; only --version works' >&2 && exit 1 ;;
esac
"""
SET_ENV = """# Sourced by .venv/bin/activate and scripts/env.sh.
export CUDA_HOME={home}
case ":${{LD_LIBRARY_PATH:-}}:" in
    *:{libraries}:*) ;;
    *) export LD_LIBRARY_PATH={libraries}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" ;;
esac
[ -n "${{CUDA_CACHE_PATH:-}}" ] || export CUDA_CACHE_PATH={cache}
[ -n "${{CUDA_CACHE_MAXSIZE:-}}" ] || export CUDA_CACHE_MAXSIZE={cache_bytes}
"""


def main(task: str, folder: str = "") -> int:
    own = Path(folder)
    try:
        if task == "driver":
            check_driver()
            return 0
        home = find_installed(os.environ, own) if task == "installed" else link_wheels(own)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if home is None:
        return 1
    own.mkdir(parents=True, exist_ok=True)
    text = SET_ENV.format(
        home=shlex.quote(str(home)),
        libraries=shlex.quote(os.pathsep.join(map(str, list_library_folders(home)))),
        cache=shlex.quote(str(ROOT / ".cache" / "cuda")),
        cache_bytes=CACHE_BYTES,
    )
    (own / "set_env.sh").write_text(text)
    return 0


def check_driver() -> None:
    """Raises ValueError if there is no driver, or if it sees no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        advice = "install it (in a container: start it with GPUs), or use --device CPU"
        raise ValueError(f"no NVIDIA driver here, libcuda.so.1: {advice}") from None
    count = ctypes.c_int()
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        advice = "nvidia-smi should list it; CUDA_VISIBLE_DEVICES may hide it"
        raise ValueError(f"the NVIDIA driver sees no GPU (status {status}): {advice}")


def find_installed(environ: Mapping[str, str], own: Path) -> Optional[Path]:
    """CUDA_HOME, if MindSpore's GPU back end loads with it and it is not `own`, the links."""
    home = Path(environ.get("CUDA_HOME") or own)
    libraries = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    others = os.pathsep.join(path for path in libraries if not path.startswith(str(own)))
    works = home != own and not list_missing(home, {**environ, "LD_LIBRARY_PATH": others})
    return home if works else None


def list_missing(home: Path, environ: Mapping[str, str]) -> list[str]:
    """What MindSpore's GPU back end lacks with the CUDA of this folder: libraries, functions.

    The loader resolves the libraries as it does for MindSpore.
    """
    nvcc = home / "bin" / "nvcc"
    text = ""
    if os.access(nvcc, os.X_OK):
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+),", text)
    number = (int(release[1]), int(release[2])) if release else (0, 0)
    if not VERSIONS[0] <= number <= VERSIONS[1]:
        return ["nvcc 11.1 to 11.8"]
    plugin = find_plugins() / PLUGINS[max(least for least in PLUGINS if least <= number)]
    if not plugin.is_file():
        return [plugin.name]
    folders = [*map(str, list_library_folders(home)), environ.get("LD_LIBRARY_PATH", "")]
    variables = {**environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
    text = subprocess.run(["ldd", "-r", plugin], capture_output=True, text=True, env=variables)
    pattern = r"(\S+) => not found|undefined symbol: ((?:cu[a-zA-Z]|nvrtc)\w+)"
    return sorted({"".join(names) for names in re.findall(pattern, text.stdout + text.stderr)})


def list_library_folders(home: Path) -> list[Path]:
    """The folders for LD_LIBRARY_PATH; the second has MindSpore's own NCCL."""
    return [home / "lib64", find_plugins() / "gpu11.6"]


def link_wheels(folder: Path) -> Path:
    """Makes `folder` a CUDA of links to the installed wheels, and returns it.

    Raises ValueError if the back end of MindSpore lacks a library or a function then.
    """
    lines = REQUIREMENTS.read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        new = Path(temporary) / "cuda"
        for name in ("bin", "lib64"):
            (new / name).mkdir(parents=True)
        for name in pins:
            for file in importlib.metadata.files(name):
                path = Path(file.locate())
                if file.parts[-2] == "lib" and ".so" in file.name:
                    (new / "lib64" / file.name).symlink_to(path)
                elif file.name == "ptxas":
                    (new / "bin" / "ptxas").symlink_to(path)
                    (new / "nvvm").symlink_to(path.parents[1] / "nvvm")
        # MindSpore looks for these names.
        version = pins[COMPILER]
        (new / "lib64" / f"libcudart.so.{version}").symlink_to("libcudart.so.11.0")
        (new / "lib64" / "libcudnn.so").symlink_to("libcudnn.so.8")
        nvcc = new / "bin" / "nvcc"
        nvcc.write_text(NVCC.format(release=version.rpartition(".")[0], version=version))
        nvcc.chmod(0o755)
        missing = list_missing(new, os.environ)
        if missing:
            raise ValueError(f"MindSpore's GPU back end lacks {', '.join(missing[:3])}")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    return folder


def find_plugins() -> Path:
    """The folder of the back ends of MindSpore, which is not imported. Raises ValueError."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise ValueError(f"{sys.executable} has no MindSpore")
    return Path(spec.origin).parent / "lib" / "plugin"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
