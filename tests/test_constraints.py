"""constraints.txt pins a version of every package, and the scripts install it."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import copy_scripts
from utils.files import ROOT

FILES = ("requirements.txt", "requirements-dev.txt")


def read_lines(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_constraints_cover_every_package_that_the_requirements_install():
    """Checks this Python: the requirements and their dependencies."""
    pins = {canonicalize_name(pin.name) for pin in read_lines("constraints.txt") if applies(pin)}
    pending = [line for name in FILES for line in read_lines(name) if applies(line)]
    names = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in names:
            continue
        names.add(name)
        try:
            lines = map(Requirement, requires(name) or ())
        except PackageNotFoundError:  # a development tool that is not installed
            continue
        extras = requirement.extras or {""}
        pending += [line for line in lines if any(applies(line, extra) for extra in extras)]
    assert {"mindspore", "numpy", "pytest", "pillow"} < names
    assert names <= pins


def test_the_scripts_install_the_versions_of_constraints_txt(tmp_path, monkeypatch):
    """In a checkout whose Python prints its arguments; run_tests.sh --latest has no VERSIONS."""
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(tmp_path, 'echo "$0 $@" >&2')
    shutil.copytree(tmp_path / ".venv", tmp_path / "other")

    def install(prefix: str = "", **variables: str) -> str:
        line = f'source "{tmp_path}/scripts/env.sh"; {prefix} install requirements.txt'
        command = ["bash", "-euo", "pipefail", "-c", line]
        environment = {"PATH": "/usr/bin:/bin", **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    line = install()
    assert f"{tmp_path}/.venv/bin/python -m pip install" in line
    assert f" --constraint={tmp_path}/constraints.txt " in line
    assert f" --requirement={tmp_path}/requirements.txt" in line
    assert install() == "", "these versions are installed already"
    (tmp_path / "constraints.txt").write_text("numpy==1.26.4\n")
    assert "pip install" in install()
    line = install("VERSIONS=();", ZOO_VENV=str(tmp_path / "other"))
    assert f"{tmp_path}/other/bin/python -m pip install" in line
    assert "--constraint" not in line
