"""scripts/verify_device.sh: arguments, what it reports, and a complete run on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import copy_checkout, copy_scripts, link_environment, mark_installed

# Prints errors beyond the limits for X3D, and has no number for MViT; trains nothing.
PYTHON = f"""
case "$*" in
    -c*) exec "{sys.executable}" "$@" ;;
    *compare_case.py*/x3d_*) echo '{{"first": null, "largest": {{"forward": 0.002, "loss": 0}}}}' ;;
    *compare_case.py*/mvit_*) echo '{{"first": {{}}, "largest": {{"forward": null, "loss": 0}}}}' ;;
    *compare_case.py*) echo '{{"first": null, "largest": {{"forward": 1e-6, "loss": 1e-6}}}}' ;;
esac
"""


def verify(checkout: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "ZOO_VENV"}
    command = ["bash", str(checkout / "scripts/verify_device.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def checkout(tmp_path):
    copy_scripts(tmp_path, PYTHON)
    mark_installed(tmp_path)
    return tmp_path


def test_what_fails_is_printed_and_its_logs_stay(checkout):
    done = verify(checkout, "--device", "Ascend", "--devices", "2")
    assert (done.returncode, done.stdout) == (1, "")
    (folder,) = (checkout / "out").iterdir()
    first, *lines, last = done.stderr.splitlines()
    assert first == "verifying 2 x Ascend"
    assert last == f"failed: x3d mvit_multi training resume; the logs are in {folder}"
    assert "x3d failed: errors {'forward': 0.002, 'loss': 0}" in lines
    assert (folder / "resnet50.log").read_text().startswith('{"first": null')


@pytest.mark.slow
def test_two_workers_on_a_cpu_pass(tmp_path):
    copy_checkout(tmp_path / "zoo")
    link_environment(tmp_path / "zoo")
    done = verify(tmp_path / "zoo", "--device", "CPU", "--devices", "2")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "all passed")
    assert [path.name for path in (tmp_path / "zoo" / "out").iterdir()] == ["logs"]  # of the job
