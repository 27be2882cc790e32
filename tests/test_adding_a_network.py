"""Follows docs/adding_a_network.md in a copy of the checkout, and runs its commands."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers import build_env, copy_checkout, read_result
from utils.files import ROOT

PAGE = ROOT / "docs" / "adding_a_network.md"
BLOCK = re.compile(
    r"^```(\w+)(?: file=(\S+?))?(?: part=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def write_part(path: Path, part: str, text: str) -> None:
    """Writes a file, or replaces the definition or constant `part` of it by `text`."""
    lines = path.read_text().splitlines(True) if part else []
    body = ast.parse("".join(lines)).body
    node = None
    for name in part.split(".") if part else ():
        (node,) = (n for n in body if name in (getattr(n, "name", ""), *list_targets(n)))
        body = getattr(node, "body", [])
    if node is not None:
        start = min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno).lineno
        lines[start - 1 : node.end_lineno] = [text]
    path.write_text("".join(lines) if part else text)


def list_targets(node: ast.AST) -> list:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.fixture(scope="module")
def new_network(data_root, tmp_path_factory) -> tuple:
    """The copy with the new network, and the remaining commands of the page."""
    copy = tmp_path_factory.mktemp("copy") / "zoo"
    copy_checkout(copy)
    (copy / "data").mkdir()
    os.symlink(data_root, copy / "data" / "synthetic")
    commands = []
    for kind, file, part, text in BLOCK.findall(PAGE.read_text()):
        if file:
            write_part(copy / file, part, text)
        for line in text.splitlines() if kind == "sh" else ():
            if line.startswith("python "):
                commands.append(line)
            else:
                run_line(copy, line)
    return copy, commands


def run_line(copy: Path, line: str) -> subprocess.CompletedProcess:
    """Runs a command that must succeed."""
    options = {"cwd": copy, "env": build_env(), "capture_output": True, "text": True}
    completed = subprocess.run(["bash", "-ec", line], timeout=300, **options)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


def test_the_new_network_trains_and_evaluates(new_network):
    copy, (train, evaluate, predict, *_) = new_network
    assert train.startswith("python c3d/train.py")
    assert read_result(run_line(copy, train))["steps"] == 6
    result = read_result(run_line(copy, evaluate))
    assert (result["videos"], result["views"]) == (8, "2x1")
    run_line(copy, predict)
    (line,) = (copy / "out/c3d_smoke/predictions/predictions.jsonl").read_text().splitlines()
    fractions = [entry["probability"] for entry in json.loads(line)["top"]]
    assert sum(fractions) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow  # six more processes; the tests of the networks cover their steps
def test_the_other_commands_of_the_page_run_with_the_new_network(new_network):
    copy, (train, _, _, export, convert, complexity, *suites) = new_network
    read_result(run_line(copy, train))
    assert read_result(run_line(copy, export))["max_abs_difference"] < 1e-4
    assert read_result(run_line(copy, convert))["missing"] == []
    assert read_result(run_line(copy, complexity))["parameters"] == 18_304
    for suite, least in zip(suites, (6, 5), strict=True):
        output = run_line(copy, suite).stdout
        assert int(re.search(r"(\d+) passed", output)[1]) >= least  # a failure is a RuntimeError
        assert "failed" not in output
