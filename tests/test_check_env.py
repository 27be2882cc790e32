"""scripts/check_env.py and scripts/env.sh report devices, readers and what they need.

A temporary folder replaces /dev; other processes are real.
"""

from pathlib import Path

import pytest

from scripts import check_env
from scripts.launcher import launch_config as devices
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


def test_devices_that_mindspore_cannot_use_are_reported_with_what_they_need(host, monkeypatch):
    monkeypatch.setattr(check_env, "run_python", lambda code: ["kinds CPU"])
    host("davinci", 8)
    lines = check(check_env.check_devices)
    assert (lines["devices"].result, lines["Ascend devices"].result) == ("CPU", "8")
    assert "set_env.sh" in lines["Ascend devices"].advice
    assert lines["GPU devices"][1:3] == ("none", "")
    host("nvidia", 1)
    assert "scripts/env.sh --gpu" in check(check_env.check_devices)["GPU devices"].advice
    monkeypatch.setattr(check_env, "run_python", lambda code: ["kinds CPU GPU Ascend"])
    assert not any(line.advice for line in check_env.check_devices())


def test_the_readers_of_videos_are_loaded():
    assert [line.advice for line in check(check_env.check_readers).values()] == ["", ""]
    requirements = (ROOT / "requirements.txt").read_text().splitlines()
    assert {requirement for *_, requirement in check_env.READERS} <= set(requirements)


@pytest.mark.parametrize(
    ("broken", "title", "advice"),
    [("av", "PyAV", "pip install 'av>="), ("decord", "decord", "pip install 'decord2>=")],
)
def test_a_reader_that_cannot_be_loaded_is_named_with_its_error(
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
