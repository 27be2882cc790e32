"""constraints.txt pins one version of every package for each Python; the scripts install it."""

import re
import runpy
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import copy_scripts, run_script
from utils.files import ROOT

compare_versions = runpy.run_path(str(ROOT / "scripts" / "compare_versions.py"))
FILES = ("requirements.txt", "requirements-dev.txt")
PYTHONS = ("3.10", "3.11", "3.12")


def read_lines(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def applies(requirement: Requirement, extra: str = "", **environment: str) -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({"extra": extra, **environment})


def test_constraints_cover_every_package_that_the_requirements_install():
    """Checks this Python: the requirements and their dependencies."""
    pins = compare_versions["read_pins"]((ROOT / "constraints.txt").read_text())
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
    assert names - pins.keys() == set()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_have_one_version_that_fits_every_requirement(python, machine):
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.7",
        "platform_machine": machine,
    }
    pins = [pin for pin in read_lines("constraints.txt") if applies(pin, **environment)]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert sorted(set(names)) == sorted(names)
    versions = {name: str(pin.specifier)[2:] for name, pin in zip(names, pins)}
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    for requirement in [line for name in FILES for line in read_lines(name)]:
        if applies(requirement, **environment):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])


def test_every_requirement_ends_before_the_next_major_version():
    """A new release, such as PyAV 19 once was, must not change what is installed."""
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[.*?(?=^# `zoo COMMAND`)", text, re.DOTALL | re.MULTILINE)[
        0
    ]
    quoted = re.findall(r"""^ *"(.*)",$|^ *'(.*)',$|^\w+ = \["(.*)"\]$""", block, re.MULTILINE)
    requirements = [Requirement("".join(groups)) for groups in quoted]
    requirements += [line for name in FILES for line in read_lines(name)]
    requirements.append(Requirement(re.search(r'^requires = \["(.*)"\]', text, re.MULTILINE)[1]))
    assert {"av", "decord2", "gradio", "nncf", "sympy", "setuptools"} <= {
        r.name for r in requirements
    }
    for requirement in requirements:
        operators = {bound.operator for bound in requirement.specifier}
        assert operators & {"<", "=="}, str(requirement)


def test_the_gpu_extra_has_the_pins_of_requirements_gpu_txt():
    text = (ROOT / "pyproject.toml").read_text()
    extra = re.search(r"^gpu = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1]
    lines = read_lines("requirements-gpu.txt")
    assert re.findall(r'"(.*)",\n', extra) == list(map(str, lines))
    assert all(str(line.specifier).startswith("==") for line in lines)


def test_constraints_name_no_package_index():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert "index" not in text.replace("indexes", "")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with scripts, requirements and a Python that prints its arguments to stderr."""
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(tmp_path, 'echo "$0 $@" >&2')
    shutil.copytree(tmp_path / ".venv", tmp_path / "other")
    return tmp_path


def run_install(checkout, prefix: str = "", **variables: str) -> str:
    """Returns the arguments of the fake Python."""
    line = f'source "{checkout}/scripts/env.sh"; {prefix} install requirements.txt'
    environment = {"PATH": "/usr/bin:/bin", **variables}
    completed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True, env=environment
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stderr


def test_the_scripts_install_the_versions_of_constraints_txt(checkout):
    line = run_install(checkout)
    assert f"{checkout}/.venv/bin/python -m pip install" in line
    assert f" --constraint={checkout}/constraints.txt " in line
    assert f" --requirement={checkout}/requirements.txt" in line
    assert run_install(checkout) == "", "these versions are installed already"
    (checkout / "constraints.txt").write_text("numpy==1.26.4\n")
    assert "pip install" in run_install(checkout)


def test_the_newest_versions_can_be_installed_in_another_environment(checkout):
    line = run_install(checkout, "VERSIONS=();", ZOO_VENV=str(checkout / "other"))
    assert f"{checkout}/other/bin/python -m pip install" in line
    assert "--constraint" not in line


def test_the_table_of_versions_lists_the_differences():
    text = "# head\nnumpy==1.26.4\nav==1.0 ; python_version < '3'\nav==2.0 ; python_version > '3'\n"
    pins = compare_versions["read_pins"](text)
    assert pins == {"numpy": "1.26.4", "av": "2.0"}
    installed = {"numpy": "1.26.4", "av": "3.0", "new": "1", "pip": "23"}
    rows = list(compare_versions["list_changes"](pins, installed))
    assert rows == [("av", "2.0", "3.0"), ("new", "-", "1")]


def test_the_help_of_run_tests_describes_latest():
    completed = run_script("scripts/run_tests.sh", "--help")
    assert completed.returncode == 0
    assert "[--latest]" in completed.stdout
    assert "constraints.txt" in completed.stdout
