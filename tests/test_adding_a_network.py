"""docs/adding_a_network.md, done as it says, in a copy of the checkout."""

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import build_env
from utils.config import ROOT
from utils.networks import list_networks

PAGE = ROOT / "docs" / "adding_a_network.md"
BLOCK = re.compile(
    r"^```(\w+)(?: file=(\S+?))?(?: part=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
LEFT_OUT = shutil.ignore_patterns("golden", "__pycache__", ".*", "kernel_meta")


def put(path: Path, part: str, text: str) -> None:
    """Writes a file, or puts `text` in the place of a definition or constant in it."""
    lines = path.read_text().splitlines(True) if part else []
    body, node = ast.parse("".join(lines)).body, None
    for name in part.split(".") if part else ():
        (node,) = (n for n in body if name in (getattr(n, "name", ""), *targets(n)))
        body = getattr(node, "body", [])
    if node is not None:
        start = min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno).lineno
        lines[start - 1 : node.end_lineno] = [text]
    path.write_text("".join(lines) if part else text)


def targets(node: ast.AST) -> list:
    named = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in named if isinstance(target, ast.Name)]


@pytest.fixture(scope="module")
def added(data_root, tmp_path_factory) -> tuple:
    """The copy with the new network, and the page's further commands, which are not run yet."""
    copy = tmp_path_factory.mktemp("copy") / "zoo"
    copy.mkdir()
    for name in (*list_networks(), "utils", "scripts", "benchmarks", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
    for name in ("README.md", "conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    (copy / "data").mkdir()
    os.symlink(data_root, copy / "data" / "synthetic")
    commands = []
    for kind, file, part, text in BLOCK.findall(PAGE.read_text()):
        if file:
            put(copy / file, part, text)
        for line in text.splitlines() if kind == "sh" else ():
            if line.startswith("python "):
                commands.append(line)
            else:
                perform(copy, line)
    return copy, commands


def perform(copy: Path, line: str) -> str:
    """What a command that must succeed prints."""
    options = {"cwd": copy, "env": build_env(), "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-ec", line], timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result(copy: Path, line: str) -> dict:
    return json.loads(perform(copy, line).splitlines()[-1])


def test_the_new_network_trains_and_evaluates(added):
    copy, (train, evaluate, predict, *_) = added
    assert train.startswith("python c3d/train.py")
    assert result(copy, train)["steps"] == 6
    messages = result(copy, evaluate)
    assert (messages["videos"], messages["views"]) == (8, "2x1")
    perform(copy, predict)
    (line,) = (copy / "out/c3d_smoke/predictions/predictions.jsonl").read_text().splitlines()
    fractions = [each["probability"] for each in json.loads(line)["top"]]
    assert sum(fractions) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow  # six more processes; what they run is tested in the networks themselves
def test_all_other_commands_of_the_page_serve_the_new_network(added):
    copy, (train, _, _, export, convert, complexity, scan, suite) = added
    result(copy, train)
    assert result(copy, export)["max_abs_difference"] < 1e-4
    assert result(copy, convert)["missing"] == []
    assert result(copy, complexity)["parameters"] == 18_304
    assert result(copy, scan)["good"] == 32
    messages = perform(copy, suite)
    assert int(re.search(r"(\d+) passed", messages)[1]) > 50
    assert "failed" not in messages
