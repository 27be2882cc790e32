"""`bash scripts/env.sh --gpu` on a host without a GPU: driver, installed CUDA, wheels.

A stub driver stands for NVIDIA's. The libraries of the wheels are the real ones.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.launcher import cuda
from scripts.launcher.cuda import find_plugins
from tests.helpers import assert_one_line_error, build_stub_driver, copy_scripts, run_command
from utils.files import ROOT

# pip of the checkout writes its arguments to stderr. It installs CUDA only, into the folder WHEELS.
PYTHON = f"""
case "$*" in
    *"-m pip install"*requirements-gpu*) [ -z "${{WHEELS:-}}" ] ||
        exec {shlex.quote(sys.executable)} "$@" --target="$WHEELS" --no-compile --no-deps ;;
    *"-m pip install"*) echo "pip: $*" >&2 && exit ;;
    *) exec {shlex.quote(sys.executable)} "$@" ;;
esac
"""


@pytest.fixture
def checkout(compiler, tmp_path) -> Path:
    """A checkout of the scripts with an environment, with the packages of this one."""
    copy_scripts(tmp_path, PYTHON)
    shutil.copy(ROOT / "requirements-gpu.txt", tmp_path)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f'VIRTUAL_ENV="{tmp_path}/.venv"\n')
    build_stub_driver(tmp_path / "driver")
    return tmp_path


def run(checkout: Path, command: str, **variables: object) -> subprocess.CompletedProcess:
    """Runs a command with the stub driver; CUDA and ZOO_VENV of this process are hidden."""
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL"))}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    variables = {"PATH": path, "LD_LIBRARY_PATH": checkout / "driver", **kept, **variables}
    texts = {name: str(value) for name, value in variables.items()}
    return run_command(["bash", "-c", command], cwd=checkout, env=texts, timeout=None)


@pytest.mark.parametrize("script", ["env.sh --gpu", "quickstart.sh --device GPU"])
def test_without_a_driver_nothing_is_installed(script, checkout):
    """One line. The first is a file that the loader cannot load; the second driver sees no GPU."""
    shutil.rmtree(checkout / ".venv")
    (checkout / "driver" / "libcuda.so.1").write_text("")
    build_stub_driver(checkout / "idle", gpus=0)
    for folder, words in (("driver", "no NVIDIA driver here"), ("idle", "sees no GPU")):
        variables = {"LD_LIBRARY_PATH": checkout / folder, "ZOO_PYTHON": sys.executable}
        done = run(checkout, f"bash scripts/{script}", **variables)
        assert done.stdout == ""
        assert_one_line_error(done, words)
        assert not (checkout / ".venv").exists()


def make_cuda(home: Path, number: str) -> Path:
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {number}, V{number}.1'\n")
    nvcc.chmod(0o755)
    return home


def test_cuda_home_is_used_if_it_works_and_is_not_the_folder_of_the_wheels(checkout, monkeypatch):
    home = checkout / "cuda-11.2"
    own = checkout / ".venv" / "cuda"
    searched = []
    monkeypatch.setattr(cuda, "list_missing", lambda *words: searched.append(words))
    paths = {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": f"{own}/lib64:/other"}
    assert cuda.find_installed(paths, own) == home
    others = {**paths, "LD_LIBRARY_PATH": "/other"}
    assert searched == [(home, others)], "libraries of the wheels are no others'"
    assert cuda.find_installed({}, own) is None
    assert cuda.find_installed({"CUDA_HOME": str(own)}, own) is None
    monkeypatch.setattr(cuda, "list_missing", lambda home, environ: ["libcudnn.so.8"])
    assert cuda.find_installed(paths, own) is None


def test_the_loader_names_what_a_cuda_lacks(checkout):
    for number in ("11.0", "12.4"):
        home = make_cuda(checkout / number, number)
        assert cuda.list_missing(home, {}) == ["nvcc 11.1 to 11.8"]
    missing = cuda.list_missing(make_cuda(checkout / "11.7", "11.7"), {"PATH": "/usr/bin:/bin"})
    assert {"libcudnn.so.8", "libcublas.so.11", "libcudart.so.11.0"} <= set(missing)
    assert not [name for name in missing if "mindspore" in name]


def test_the_environment_of_a_cuda_is_set_once_and_by_the_activated_environment(
    checkout, monkeypatch
):
    home = checkout / "an installed cuda"
    monkeypatch.setattr(cuda, "find_installed", lambda environ, own: home)
    assert cuda.main("installed", str(checkout / ".venv" / "cuda")) == 0
    line = "source scripts/env.sh; install requirements.txt; source .venv/cuda/set_env.sh; env"
    done = run(checkout, line, CUDA_CACHE_PATH="/cache")
    exported = dict(re.findall(r"^(CUDA_\w+|LD_LIBRARY_PATH)=(.*)$", done.stdout, re.MULTILINE))
    assert exported["CUDA_HOME"] == str(home)
    folders = [home / "lib64", find_plugins() / "gpu11.6", checkout / "driver"]
    assert exported["LD_LIBRARY_PATH"] == ":".join(map(str, folders))
    assert (exported["CUDA_CACHE_PATH"], exported["CUDA_CACHE_MAXSIZE"]) == ("/cache", "4294967296")
    assert cuda.list_library_folders(home) == folders[:2]


LOADED = """
import ctypes, sys
import mindspore
mindspore.device_context.gpu.is_available()
print([line.split()[-1] for line in open("/proc/self/maps") if "libmindspore_gpu" in line][-1])
for name in ("libcudnn.so.8", "libcublas.so.11", "libcusolver.so.11"):
    print([line.split()[-1] for line in open("/proc/self/maps") if name in line][-1])
"""


@pytest.mark.slow
def test_the_wheels_have_every_library_and_function_of_the_back_end(checkout):
    """Downloads 1.7 GB. The whole command, as a user runs it; then MindSpore loads its back end."""
    driver = {"LD_LIBRARY_PATH": str(checkout / "driver")}
    folder = checkout / ".venv" / "cuda"
    if cuda.find_installed(driver, folder):
        pytest.skip("this host has an installed CUDA that works")
    wheels = checkout / "wheels"
    variables = {"WHEELS": wheels, "PYTHONPATH": wheels}
    done = run(checkout, "bash scripts/env.sh --gpu", **variables)
    if re.search("No matching distribution|Could not find a version|Connection", done.stderr):
        pytest.skip("no package index")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("pip: ")]
    size = next(number for number, line in enumerate(lines) if "1.7 GB, 3 GB on disk" in line)
    assert lines[size + 1].startswith("installing requirements-gpu.txt")
    assert cuda.list_missing(folder, {**os.environ, **driver}) == []
    assert "libcuda.so.1" in cuda.list_missing(folder, {**os.environ, "LD_LIBRARY_PATH": ""})
    activated = "source .venv/bin/activate; "
    versions = "$CUDA_HOME/bin/nvcc --version; $CUDA_HOME/bin/ptxas --version"
    done = run(checkout, activated + versions)
    assert "Cuda compilation tools, release 11.8, V11.8.89" in done.stdout
    assert "ptxas: NVIDIA (R) Ptx optimizing assembler" in done.stdout
    done = run(checkout, activated + "$CUDA_HOME/bin/nvcc kernel.cu")
    assert (done.returncode, "have no compiler" in done.stderr) == (1, True)
    # A second call installs nothing, and the line of `activate` stays the only one.
    again = "bash scripts/env.sh --gpu; grep -c set_env .venv/bin/activate"
    done = run(checkout, again, **variables)
    assert "installing requirements-gpu" not in done.stderr
    assert done.stdout == "1\n"
    (checkout / "load.py").write_text(LOADED)
    done = run(checkout, activated + f"LD_BIND_NOW=1 {shlex.quote(sys.executable)} load.py")
    plugin, *libraries = done.stdout.splitlines()
    assert plugin.endswith("libmindspore_gpu.so.11.6")
    assert len(libraries) == 3
    assert all(str(wheels) in path for path in libraries)
