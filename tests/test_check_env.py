"""scripts/check_env.py and scripts/env.sh report devices, CANN, CUDA and the disk.

Temporary folders replace /dev, CANN and CUDA; other processes are real.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import check_env
from scripts.launcher import devices
from tests.helpers import build_stub_driver, mark_installed
from utils.files import ROOT


def check(function, *arguments) -> dict:
    """The lines of a check by name."""
    return {line.name: line for line in function(*arguments)}


@pytest.fixture
def host(monkeypatch, tmp_path):
    """host(kind, count) returns the folder of a host with `count` devices without CANN and CUDA."""
    for name in ("ASCEND_HOME_PATH", "CUDA_HOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_ASCEND", str(tmp_path / "Ascend"))
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path / "dev")

    def build(kind: str = "", count: int = 0) -> Path:
        (tmp_path / "dev").mkdir(exist_ok=True)
        for number in range(count):
            (tmp_path / "dev" / f"{kind}{number}").touch()
        (tmp_path / "dev" / f"{kind}_manager").touch()
        return tmp_path

    return build


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("folder", "script"),
    [("cann", "cann/set_env.sh"), ("ascend-toolkit/latest", "ascend-toolkit/set_env.sh")],
)
def test_a_cann_that_is_not_sourced_is_reported_with_its_script(host, monkeypatch, folder, script):
    root = host("davinci", 1) / "Ascend"
    line = check(check_env.check_ascend, 1)["CANN"]
    assert line[1:3] == ("not found", "install CANN, then source its set_env.sh")
    write(root / folder / "compiler" / "version.info", "Version=8.5.0\nversion_dir=cann-8.5.0\n")
    write(root / script)
    line = check(check_env.check_ascend, 1)["CANN"]
    assert line.result == f"8.5 in {root / folder}"
    assert line.advice == f"source {root / script} first: ASCEND_HOME_PATH is not set"
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root / folder))
    line = check(check_env.check_ascend, 1)["CANN"]
    assert line[1:] == (f"8.5 in {root / folder}", "", False)
    monkeypatch.setenv("ASCEND_HOME_PATH", "/no/cann")
    assert check(check_env.check_ascend, 0)["CANN"].result == (
        "not found in ASCEND_HOME_PATH=/no/cann"
    )


def test_the_newer_cann_is_used(host):
    root = host() / "Ascend"
    for folder, number in (("ascend-toolkit/latest", "8.2"), ("cann", "9.1")):
        write(root / folder / "compiler" / "version.info", f"Version={number}.0\n")
    assert check(check_env.check_ascend, 0)["CANN"].result == f"9.1 in {root / 'cann'}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compiler/version.info", "Version=9.1.0.B030\n"),
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=x\nversion=9.1.0\narch=x\n"),
        ("version.info", "Version=9.1.T500\n"),
        ("opp/version.info", "Version=9.1\n"),
        ("share/info/runtime/version.info", "Version=9.1.0\n"),
    ],
)
def test_the_version_of_cann_is_read_from_any_of_its_files(tmp_path, name, text):
    assert devices.read_cann_version(tmp_path) == ""
    write(tmp_path / name, text)
    assert devices.read_cann_version(tmp_path) == "9.1"


def test_the_wheels_of_cann_are_imported_in_a_separate_process(host, monkeypatch):
    root = host()
    assert not check(check_env.check_ascend, 0), "no device, no CANN"
    write(root / "Ascend" / "cann" / "set_env.sh")
    packages = root / "packages"
    monkeypatch.setenv("PYTHONPATH", str(packages))
    for text, result in (
        (None, "cannot be imported: te, hccl"),
        ("import no_such_package", "cannot be imported: te"),
        ("import os; os.abort()", "cannot be imported: te"),
        ("", "can be imported"),
    ):
        for name in ("te", "hccl") if text is not None else ():
            write(packages / name / "__init__.py", text if name == "te" else "")
        line = check(check_env.check_ascend, 0)["te, hccl"]
        assert line.result == result
        folder = root / "Ascend" / "cann" / "lib64"
        install = f"pip install '.[ascend]' {folder}/te-*.whl {folder}/hccl-*.whl"
        assert line.advice == ("" if result == "can be imported" else install)


def test_the_cores_per_npu_are_reported(host, monkeypatch):
    host("davinci", 8)
    for cores, advice in ((96, ""), (95, "give each rank 12 cores or more")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: range(cores))
        line = check(check_env.check_ascend, 8)["cores"]
        assert line.result == f"{cores // 8} for each of 8 devices"
        assert line.advice.startswith(advice)
        assert bool(line.advice) == bool(advice)


def test_a_mindspore_that_hangs_or_crashes_is_reported(host, monkeypatch, tmp_path):
    host("davinci", 1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(check_env, "PYTHON_TIMEOUT", 1)
    missing = "raise ImportError('libgomp.so.1: cannot open shared object file')"
    for text, advice, fatal in (
        ("import time; time.sleep(100)", "MindSpore fails", False),
        ("import os; os.abort()", "MindSpore fails", False),
        (missing, "apt-get install libgomp1, or yum install libgomp", True),
    ):
        write(tmp_path / "mindspore.py", text)
        result = check(check_env.check_devices)
        assert result["devices"][1:] == ("unknown", advice, fatal)
        assert result["Ascend devices"].advice.startswith("MindSpore cannot use them")
        assert result["GPU devices"][1:3] == ("none; they need CUDA 11.1 to 11.8", "")


@pytest.fixture
def driver(compiler, monkeypatch, tmp_path):
    """driver(**macros) installs a stub driver, by default with two GPUs of architecture 8.0."""

    def build(**macros: object) -> None:
        folder = tmp_path / f"driver{len(list(tmp_path.glob('driver*')))}"
        build_stub_driver(folder, **macros)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))

    return build


def test_the_code_that_a_gpu_runs_depends_on_its_architecture(host, driver, monkeypatch):
    monkeypatch.delenv("CUDA_CACHE_PATH", raising=False)
    driver(VERSION=12040)
    lines = check(check_env.check_gpu, 2)
    assert lines["driver"][1:3] == ("for CUDA 12.4; 2 x Stub GPU", "")
    assert lines["GPU 8.0"][1:3] == ("runs the machine code in MindSpore", "")
    driver(MAJOR=8, MINOR=9, VERSION=10020)
    lines = check(check_env.check_gpu, 2)
    assert lines["driver"].advice == "install 450.80 or newer"
    assert lines["GPU 8.9"].result == "runs the machine code in MindSpore"
    driver(MAJOR=9)
    line = check(check_env.check_gpu, 2)["GPU 9.0"]
    assert line.result.startswith("the driver compiles MindSpore's kernels at the first start")
    assert line.advice.startswith("export CUDA_CACHE_PATH and CUDA_CACHE_MAXSIZE=4294967296")
    monkeypatch.setenv("CUDA_CACHE_PATH", "/cache")
    line = check(check_env.check_gpu, 2)["GPU 9.0"]
    assert line.result.endswith("kept in /cache")
    assert line.advice == ""
    driver(MAJOR=5)
    assert check(check_env.check_gpu, 2)["GPU 5.0"].advice.startswith("it needs a GPU of")
    driver(COUNT=0)
    line = check(check_env.check_gpu, 2)["driver"]
    assert line.advice.startswith("the NVIDIA driver sees no GPU (cuInit returned 0)")


def test_a_gpu_needs_a_driver_cuda_home_and_cudnn(host, monkeypatch, tmp_path):
    write(tmp_path / "none" / "libcuda.so.1", "not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "none"))
    assert not check(check_env.check_gpu, 0)
    install = "bash scripts/env.sh --gpu, then source .venv/bin/activate"
    needs = f"MindSpore needs CUDA 11.1 to 11.8: {install}"
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # with an ldconfig that lists no library
    write(tmp_path / "bin" / "ldconfig", "#!/bin/sh\n").chmod(0o755)
    lines = check(check_env.check_gpu, 1)
    assert lines["driver"].advice.startswith("no NVIDIA driver here: the loader does not find")
    assert lines["CUDA_HOME"][1:3] == ("not set", needs)
    assert lines["cuDNN"][1:3] == ("no libcudnn.so.8", install)
    home = tmp_path / "cuda"
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert check(check_env.check_gpu, 1)["CUDA_HOME"][1:3] == (str(home), needs)
    nvcc = write(home / "bin" / "nvcc", "")
    for number, fits in (("11.0", False), ("11.1", True), ("11.8", True), ("12.4", False)):
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {number}, V1'\n")
        nvcc.chmod(0o755)
        line = check(check_env.check_gpu, 1)["CUDA_HOME"]
        assert line[1:3] == (f"{number} in {home}", "" if fits else needs)
    library = write(home / "lib64" / "libcudnn.so.8")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'none'}:{library.parent}")
    assert check(check_env.check_gpu, 1)["cuDNN"][1:3] == (str(library), "")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "none"))
    text = "libcudnn.so.8 (libc6,x86-64) => /usr/lib/libcudnn.so.8"
    write(tmp_path / "bin" / "ldconfig", f"#!/bin/sh\necho '        {text}'\n")
    assert check(check_env.check_gpu, 1)["cuDNN"].result == "/usr/lib/libcudnn.so.8"


def test_the_next_step_depends_on_the_devices(host):
    good = [check_env.Line("NumPy", "1.26")]
    host()
    assert check_env.advise(good).startswith("bash scripts/quickstart.sh")
    host("davinci", 1)
    assert check_env.advise(good).startswith("bash scripts/verify_device.sh")
    bad = [check_env.Line("NumPy", "2.0", "pip install 'numpy<2'")]
    assert check_env.advise(bad).startswith("do what the lines with ! say")


def test_the_help_describes_the_choice_of_a_device(run_here):
    for name in ("check_env.py", "launch.py"):
        usage = run_here(f"scripts/{name}", "--help").stdout
        assert "ASCEND_RT_VISIBLE_DEVICES=" in usage
        assert "CUDA_VISIBLE_DEVICES" in usage


@pytest.fixture
def checkout(tmp_path):
    """A checkout with only the scripts, and an environment that is marked as installed."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    mark_installed(folder)
    return folder


def run_with_env_script(checkout: Path, line: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a line of bash after scripts/env.sh."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; source {checkout}/scripts/env.sh; {line}"],
        capture_output=True, text=True, env={**kept, **variables},
    )  # fmt: skip


def test_scripts_print_the_script_to_source_if_cann_is_installed(checkout, tmp_path):
    install = "install requirements.txt"
    variables = {"LOCAL_ASCEND": str(tmp_path)}
    for name in ("ascend-toolkit/set_env.sh", "cann/set_env.sh"):
        file = write(tmp_path / name)
        completed = run_with_env_script(checkout, install, **variables)
        line = f"ASCEND_HOME_PATH is not set: for Ascend, source {file} first\n"
        assert (completed.returncode, completed.stderr) == (0, line)
    assert run_with_env_script(checkout, install, **variables, ASCEND_HOME_PATH="/x").stderr == ""


def test_the_supported_cuda_versions_are_those_of_the_mindspore_wheel():
    assert f"CUDA {' and '.join(check_env.CUDA)}" in (ROOT / "docs/gpu.md").read_text()
    package = Path(importlib.util.find_spec("mindspore").origin).parent
    result = sorted(path.name[len("gpu") :] for path in package.glob("lib/plugin/gpu[0-9]*"))
    if not result:
        pytest.skip("this wheel is for CPUs or NPUs only")
    assert tuple(result) == check_env.CUDA


def test_the_readers_of_videos_decode_a_clip():
    lines = check(check_env.check_readers)
    assert [line.advice for line in lines.values()] == ["", ""]
    requirements = (ROOT / "requirements.txt").read_text().splitlines()
    assert set(check_env.READERS.values()) <= set(requirements)


@pytest.mark.parametrize(
    ("broken", "title", "advice"),
    [
        ("av", "PyAV", "pip install 'av>=17,<20'"),
        ("decord", "decord", "pip install 'decord2>=3,<4'; until then --data.reader=pyav"),
    ],
)
def test_a_reader_that_cannot_decode_is_named_with_its_error(
    broken, title, advice, monkeypatch, tmp_path
):
    """decord needs PyAV too. Without any reader the exit status is 1: every run of videos fails."""
    (tmp_path / f"{broken}.py").write_text("raise TypeError('unexpected keyword')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = check(check_env.check_readers)
    assert lines[title].result.endswith(": TypeError: unexpected keyword")
    assert lines[title].advice == advice
    failed = [name for name, line in lines.items() if line.advice]
    assert failed == (["PyAV", "decord"] if broken == "av" else ["decord"])
    assert {line.fatal for line in lines.values()} == {broken == "av"}
