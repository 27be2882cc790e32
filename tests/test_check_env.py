"""scripts/check_env.py and scripts/env.sh report devices, readers and what they need.

A temporary folder replaces /dev; other processes are real.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import check_env
from scripts.launcher import devices
from tests.helpers import mark_installed
from utils.files import ROOT


def check(function, *arguments) -> dict:
    """The lines of a check by name."""
    return {line.name: line for line in function(*arguments)}


@pytest.fixture
def host(monkeypatch, tmp_path):
    """host(kind, count) returns the folder of a host with `count` devices."""
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


def test_devices_that_mindspore_cannot_use_are_reported_with_what_they_need(host, monkeypatch):
    monkeypatch.setattr(check_env, "run_python", lambda code: "kinds CPU")
    host("davinci", 8)
    lines = check(check_env.check_devices)
    assert (lines["devices"].result, lines["Ascend devices"].result) == ("CPU", "8")
    assert "set_env.sh" in lines["Ascend devices"].advice
    assert lines["GPU devices"][1:3] == ("none", "")
    host("nvidia", 1)
    assert "scripts/env.sh --gpu" in check(check_env.check_devices)["GPU devices"].advice
    monkeypatch.setattr(check_env, "run_python", lambda code: "kinds CPU GPU Ascend")
    assert not any(line.advice for line in check_env.check_devices())


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
