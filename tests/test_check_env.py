"""scripts/check_env.py and scripts/env.sh report devices, CANN, CUDA and the disk.

Temporary folders replace /dev, CANN and CUDA; other processes are real.
"""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import check_env
from tests.helpers import mark_installed
from utils.config import ROOT
from utils.distributed import devices

# A fake MindSpore with the log messages of the real one without CANN's wheels.
MINDSPORE = """
import os, sys
from types import SimpleNamespace

hal = SimpleNamespace(is_available=lambda kind: kind != "GPU")
head = "ME(7:8,MainProcess):2026-01-01-00:00:00.000.000"
if os.environ.get("GLOG_v") == "2":
    for line in (406, 406, 417):
        print(f"[WARNING] {head} [mindspore/x/_check.py:{line}] no {line} " + 200 * ".", flush=True)
    print(f"[WARNING] {head} [mindspore/hal/device.py:186] Backend GPU is not available.")
    print(f"[WARNING] {head} [mindspore/ccsrc/conf.cc:93] ComputeThreads] too many", flush=True)
print(f"[ERROR] {head} [mindspore/x/_check.py:350] CheckFailed: te", file=sys.stderr, flush=True)
"""


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
    assert check_env.check_cann() == (
        "CANN",
        "not found (for Ascend only: 8.2, 8.3, 8.5, 9.0, 9.1)",
        "install CANN, then source its set_env.sh",
        False,
    )
    write(root / folder / "compiler" / "version.info", "Version=8.5.0\nversion_dir=cann-8.5.0\n")
    write(root / script)
    line = check_env.check_cann()
    assert line.result == f"8.5 in {root / folder}"
    assert line.advice == f"source {root / script} first: ASCEND_HOME_PATH is not set"
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root / folder))
    assert check_env.check_cann() == ("CANN", f"8.5 in {root / folder}", "", False)
    monkeypatch.setenv("ASCEND_HOME_PATH", "/no/cann")
    assert check_env.check_cann().result == "not found in ASCEND_HOME_PATH=/no/cann"


def test_the_newer_cann_is_used(host):
    root = host() / "Ascend"
    for folder, number in (("ascend-toolkit/latest", "8.2"), ("cann", "9.1")):
        write(root / folder / "compiler" / "version.info", f"Version={number}.0\n")
    assert check_env.check_cann().result == f"9.1 in {root / 'cann'}"


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
    assert not list(check_env.check_ascend()), "no device, no CANN"
    write(root / "Ascend" / "cann" / "set_env.sh")
    packages = root / "packages"
    monkeypatch.setenv("PYTHONPATH", str(packages))
    for text, problem in (
        (None, "te: No module named 'te'; hccl: No module named 'hccl'"),
        ("import no_such_package", "te: No module named 'no_such_package'"),
        ("import os; os.abort()", "te: import fails; hccl: import fails"),
        ("", ""),
    ):
        for name in ("te", "hccl") if text is not None else ():
            write(packages / name / "__init__.py", text if name == "te" else "")
        (line,) = check_env.check_ascend()
        assert line.name == "te, hccl"
        assert line.result == (problem or "can be imported")
        folder = root / "Ascend" / "cann" / "lib64"
        install = f"pip install '.[ascend]' {folder}/te-*.whl {folder}/hccl-*.whl"
        assert line.advice == (install if problem else "")


def test_the_cores_per_npu_are_reported(host, monkeypatch):
    host("davinci", 8)
    for cores, advice in ((96, ""), (95, "give each rank 12 cores or more")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: range(cores))
        line = list(check_env.check_ascend())[-1]
        assert line.result == f"{cores // 8} for each of 8 devices"
        assert line.advice.startswith(advice)
        assert bool(line.advice) == bool(advice)


def test_mindspore_warnings_are_printed_once_with_an_npu(host, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("GLOG_v", "3")
    write(tmp_path / "packages" / "mindspore.py", MINDSPORE)
    host()
    assert [line[:3] for line in check_env.check_devices()] == [("devices", "CPU, Ascend", "")]
    host("davinci", 2)
    *_, kind, log = check_env.check_devices()
    assert kind == ("Ascend devices", "2", "", False)
    lines = sorted(log.result.splitlines())
    assert [line[:10] for line in lines] == [
        "CheckFailed"[:10], "no 406 ...", "no 417 ...", "too many"
    ]  # fmt: skip
    assert max(map(len, lines)) == check_env.LOG_WIDTH
    check_env.main()
    *screen, result = capsys.readouterr().out.splitlines()
    assert json.loads(result)["found"]["MindSpore's log"] == log.result
    start = next(i for i, line in enumerate(screen) if "MindSpore's log" in line)
    assert [line[18:] for line in screen[start : start + 4]] == log.result.splitlines()
    assert {line[2:18].strip() for line in screen[start + 1 : start + 4]} == {""}


def test_a_mindspore_that_hangs_or_crashes_is_reported(host, monkeypatch, tmp_path):
    host("davinci", 1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(check_env, "PYTHON_TIMEOUT", 1)
    for text in ("import time; time.sleep(100)", "import os; os.abort()"):
        write(tmp_path / "mindspore.py", text)
        result = [line[:3] for line in check_env.check_devices()]
        assert result[0] == ("devices", "unknown", "MindSpore fails")
        assert result[1][2].startswith("MindSpore cannot use them")


def test_a_gpu_needs_cuda_home_its_compiler_and_cudnn(host, monkeypatch, tmp_path):
    host()
    assert not list(check_env.check_gpu()), "no GPU"
    host("nvidia", 1)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # with an ldconfig that lists no library
    write(tmp_path / "bin" / "ldconfig", "#!/bin/sh\n").chmod(0o755)
    home, cudnn = check_env.check_gpu()
    assert home.result == "not set"
    assert home.advice.startswith("export CUDA_HOME=")
    assert cudnn.advice == "install cuDNN 8, and add its folder to LD_LIBRARY_PATH"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    assert next(check_env.check_gpu()).advice.startswith(f"there is no {nvcc}: install ")
    write(nvcc, "#!/bin/sh\necho 'Cuda compilation tools, release 11.6, V11.6.55'\n").chmod(0o755)
    library = write(tmp_path / "cuda" / "lib64" / "libcudnn.so.8")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/no/folder:{library.parent}")
    assert list(check_env.check_gpu()) == [
        ("CUDA_HOME", str(tmp_path / "cuda"), "", False),
        ("cuDNN", str(library), "", False),
    ]
    assert check_env.check_cuda().result.startswith("11.6")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    text = "libcudnn.so.8 (libc6,x86-64) => /usr/lib/libcudnn.so.8"
    write(tmp_path / "bin" / "ldconfig", f"#!/bin/sh\necho '        {text}'\n")
    assert list(check_env.check_gpu())[1].result == "/usr/lib/libcudnn.so.8"


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
    install, variables = "install requirements.txt", {"LOCAL_ASCEND": str(tmp_path)}
    for name in ("ascend-toolkit/set_env.sh", "cann/set_env.sh"):
        file = write(tmp_path / name)
        completed = run_with_env_script(checkout, install, **variables)
        line = f"ASCEND_HOME_PATH is not set: for Ascend, source {file} first\n"
        assert (completed.returncode, completed.stderr) == (0, line)
    assert run_with_env_script(checkout, install, **variables, ASCEND_HOME_PATH="/x").stderr == ""


def test_an_unsupported_cuda_is_a_problem_if_the_host_has_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "run_tool", lambda *command: "release 13.0")
    for program, advice in ((None, ""), ("/usr/bin/nvidia-smi", "MindSpore expects one of 11.1, ")):
        monkeypatch.setattr(check_env.shutil, "which", lambda name, program=program: program)
        line = check_env.check_cuda()
        assert line.result.startswith("13.0")
        assert line.advice.startswith(advice)
        assert bool(line.advice) == bool(advice)


def test_the_supported_cuda_versions_are_those_of_the_mindspore_wheel():
    assert f"CUDA {' and '.join(check_env.CUDA)}" in (ROOT / "README.md").read_text()
    package = Path(importlib.util.find_spec("mindspore").origin).parent
    result = sorted(path.name[len("gpu") :] for path in package.glob("lib/plugin/gpu[0-9]*"))
    if not result:
        pytest.skip("this wheel is for CPUs or NPUs only")
    assert tuple(result) == check_env.CUDA


def test_the_disk_of_the_result_folder_is_checked(monkeypatch, tmp_path):
    assert check_env.home() == ROOT
    monkeypatch.setattr(
        check_env, "__file__", str(tmp_path / "package" / "scripts" / "check_env.py")
    )
    monkeypatch.chdir(tmp_path)
    assert check_env.home() == tmp_path
