"""scripts/check_env.py and scripts/env.sh report devices, CANN, CUDA and the disk.

Temporary folders replace /dev, CANN and CUDA; other processes are real.
"""

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
    assert "set_env.sh" in check(check_env.check_ascend, 1)["CANN"].advice
    write(root / folder / "compiler" / "version.info", "Version=8.5.0\nversion_dir=cann-8.5.0\n")
    write(root / script)
    line = check(check_env.check_ascend, 1)["CANN"]
    assert line.result == f"8.5 in {root / folder}"
    assert f"source {root / script} " in line.advice
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root / folder))
    line = check(check_env.check_ascend, 1)["CANN"]
    assert line[1:] == (f"8.5 in {root / folder}", "", False)
    monkeypatch.setenv("ASCEND_HOME_PATH", "/no/cann")
    assert "ASCEND_HOME_PATH=/no/cann" in check(check_env.check_ascend, 0)["CANN"].result
    # Without the variable the newer of two is used.
    monkeypatch.delenv("ASCEND_HOME_PATH")
    for other, number in (("ascend-toolkit/latest", "8.2"), ("cann", "9.1")):
        write(root / other / "compiler" / "version.info", f"Version={number}.0\n")
    assert check(check_env.check_ascend, 0)["CANN"].result == f"9.1 in {root / 'cann'}"


def test_the_version_of_cann_is_read_from_any_of_its_files(tmp_path):
    assert devices.read_cann_version(tmp_path) == ""
    for name, text in (
        ("compiler/version.info", "Version=9.1.0.B030\n"),
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=x\nversion=9.1.0\narch=x\n"),
        ("version.info", "Version=9.1.T500\n"),
        ("opp/version.info", "Version=9.1\n"),
        ("share/info/runtime/version.info", "Version=9.1.0\n"),
    ):
        write(tmp_path / name, text)
        assert devices.read_cann_version(tmp_path) == "9.1"
        (tmp_path / name).unlink()


def test_cann_is_looked_for_without_a_home(monkeypatch):
    """As in a container that gives the process any number of a user."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    assert not str(devices.find_cann({})).startswith("~")


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
        assert (f"{folder}/te-*.whl {folder}/hccl-*.whl" in line.advice) == (text != "")


def test_the_cores_per_npu_are_reported(host, monkeypatch):
    host("davinci", 8)
    for cores, is_enough in ((96, True), (95, False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: range(cores))
        line = check(check_env.check_ascend, 8)["cores"]
        assert line.result.startswith(f"{cores // 8} ")
        assert ("12 cores" in line.advice) == (not is_enough)


def test_a_mindspore_that_hangs_or_crashes_is_reported(host, monkeypatch, tmp_path):
    host("davinci", 1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    missing = "raise ImportError('libgomp.so.1: cannot open shared object file')"
    for text, advice, fatal in (
        ("import time; time.sleep(100)", "MindSpore fails", False),
        ("import os; os.abort()", "MindSpore fails", False),
        (missing, "apt-get install libgomp1", True),
        ("", "MindSpore fails: ModuleNotFoundError: No module named 'mindspore.device", False),
    ):
        monkeypatch.setattr(check_env, "PYTHON_TIMEOUT", 1 if "sleep" in text else 600)
        write(tmp_path / "mindspore.py", text)
        result = check(check_env.check_devices)
        assert (result["devices"].result, result["devices"].fatal) == ("unknown", fatal)
        assert result["devices"].advice.startswith(advice)
        assert result["Ascend devices"].advice
        assert not result["GPU devices"].advice


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
    assert not lines["GPU 8.0"].advice
    driver(MAJOR=8, MINOR=9, VERSION=10020)
    lines = check(check_env.check_gpu, 2)
    assert "450.80" in lines["driver"].advice
    assert not lines["GPU 8.9"].advice
    driver(MAJOR=9)
    assert "CUDA_CACHE_PATH" in check(check_env.check_gpu, 2)["GPU 9.0"].advice
    monkeypatch.setenv("CUDA_CACHE_PATH", "/cache")
    line = check(check_env.check_gpu, 2)["GPU 9.0"]
    assert ("/cache" in line.result, line.advice) == (True, "")
    driver(MAJOR=5)
    assert "6.0" in check(check_env.check_gpu, 2)["GPU 5.0"].advice
    driver(COUNT=0)
    assert "no GPU" in check(check_env.check_gpu, 2)["driver"].advice


def test_a_gpu_needs_a_driver_cuda_home_and_cudnn(host, monkeypatch, tmp_path):
    write(tmp_path / "none" / "libcuda.so.1", "not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "none"))
    assert not check(check_env.check_gpu, 0)
    install = "scripts/env.sh --gpu"
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # with an ldconfig that lists no library
    write(tmp_path / "bin" / "ldconfig", "#!/bin/sh\n").chmod(0o755)
    lines = check(check_env.check_gpu, 1)
    assert "libcuda.so.1" in lines["driver"].advice
    assert install in lines["CUDA_HOME"].advice
    assert install in lines["cuDNN"].advice
    home = tmp_path / "cuda"
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert install in check(check_env.check_gpu, 1)["CUDA_HOME"].advice
    nvcc = write(home / "bin" / "nvcc", "")
    for number, fits in (("11.0", False), ("11.1", True), ("11.8", True), ("12.4", False)):
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {number}, V1'\n")
        nvcc.chmod(0o755)
        line = check(check_env.check_gpu, 1)["CUDA_HOME"]
        assert (line.result, install in line.advice) == (f"{number} in {home}", not fits)
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
    assert "quickstart.sh" in check_env.advise(good)
    host("davinci", 1)
    assert "verify_device.sh" in check_env.advise(good)
    assert "!" in check_env.advise([check_env.Line("NumPy", "2.0", "pip install 'numpy<2'")])


def test_scripts_print_the_script_to_source_if_cann_is_installed(tmp_path):
    """In a checkout with only the scripts, and an environment that is marked as installed."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    mark_installed(checkout)
    line = "set -euo pipefail; source scripts/env.sh; install requirements.txt"

    def install(**variables: str) -> str:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        variables |= {"LOCAL_ASCEND": str(tmp_path), **kept}
        options = {"cwd": checkout, "env": variables, "capture_output": True, "text": True}
        return subprocess.run(["bash", "-c", line], check=True, **options).stderr

    for name in ("ascend-toolkit/set_env.sh", "cann/set_env.sh"):
        assert f"source {write(tmp_path / name)} " in install()
    assert install(ASCEND_HOME_PATH="/x") == ""


def test_the_supported_cuda_versions_are_those_of_the_mindspore_wheel():
    assert f"CUDA {' and '.join(check_env.CUDA)}" in (ROOT / "docs/gpu.md").read_text()
    result = sorted(path.name[len("gpu") :] for path in devices.find_plugins().glob("gpu[0-9]*"))
    if not result:
        pytest.skip("this wheel is for CPUs or NPUs only")
    assert tuple(result) == check_env.CUDA


def test_the_readers_of_videos_decode_a_clip():
    assert [line.advice for line in check(check_env.check_readers).values()] == ["", ""]
    requirements = (ROOT / "requirements.txt").read_text().splitlines()
    assert set(check_env.READERS.values()) <= set(requirements)


@pytest.mark.parametrize(
    ("broken", "title", "advice"),
    [("av", "PyAV", "pip install 'av>="), ("decord", "decord", "--data.reader=pyav")],
)
def test_a_reader_that_cannot_decode_is_named_with_its_error(
    broken, title, advice, monkeypatch, tmp_path
):
    """decord needs PyAV too. Without any reader the exit status is 1: every run of videos fails."""
    (tmp_path / f"{broken}.py").write_text("raise TypeError('unexpected keyword')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = check(check_env.check_readers)
    assert lines[title].result.endswith(": TypeError: unexpected keyword")
    assert advice in lines[title].advice
    failed = [name for name, line in lines.items() if line.advice]
    assert failed == (["PyAV", "decord"] if broken == "av" else ["decord"])
    assert {line.fatal for line in lines.values()} == {broken == "av"}
