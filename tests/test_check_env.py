"""What the screen of scripts/check_env.py says of CUDA and of the disk."""

import importlib.util
import sys
from pathlib import Path

import pytest

from utils.config import ROOT


@pytest.fixture
def check_env(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    spec = importlib.util.spec_from_file_location("check_env", ROOT / "scripts" / "check_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_another_cuda_matters_where_a_gpu_is_to_be_used(check_env, monkeypatch):
    monkeypatch.setattr(check_env, "output", lambda *command: "release 13.0")
    for there, wrong in ((None, ""), ("/usr/bin/nvidia-smi", "MindSpore expects one of 11.1, ")):
        monkeypatch.setattr(check_env.shutil, "which", lambda name, there=there: there)
        line = check_env.cuda()
        assert line.found.startswith("13.0")
        assert line.wrong.startswith(wrong)
        assert bool(line.wrong) == bool(wrong)


def test_cuda_is_what_this_mindspore_has_libraries_for(check_env):
    assert f"CUDA {' and '.join(check_env.CUDA)}" in (ROOT / "README.md").read_text()
    package = Path(importlib.util.find_spec("mindspore").origin).parent
    found = sorted(path.name[len("gpu") :] for path in package.glob("lib/plugin/gpu[0-9]*"))
    if not found:
        pytest.skip("this wheel is for CPUs or NPUs only")
    assert tuple(found) == check_env.CUDA


def test_the_disk_is_that_of_the_results(check_env, monkeypatch, tmp_path):
    assert check_env.home() == ROOT
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    monkeypatch.chdir(tmp_path)
    assert check_env.home() == tmp_path
