"""The Cell of each network in another program, by the lines and files that its README names."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import build_env
from utils.files import ROOT

START = "The Cell alone, in a MindSpore program of your own: "
# The first lines build the network; the program then saves its weights as the published ones.
PROGRAM = """
import numpy as np
{build}
{name} = np.zeros({shape}, np.uint8)
ms.save_checkpoint(net, "{path}")
{rest}
print(scores.shape)
"""
SHAPES = {
    "tsm": (1, 8, 3, 64, 64),
    "x3d": (1, 3, 13, 160, 160),
    "mvit_multi": (1, 3, 16, 224, 224),
    "resnet50": (1, 3, 64, 64),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_cell_of_a_network_works_in_another_program(name, tmp_path):
    text = (ROOT / name / "README.md").read_text()
    copied, _, rest = text.partition(START)[2].partition("```python\n")
    for path in re.findall(r"`([\w/.]+)`", copied):
        copy(ROOT / path, tmp_path / path)
    lines = rest.partition("```")[0]
    build, load, last = re.fullmatch(r"(.*?)(weights = .*?\n)(.*)", lines, re.DOTALL).groups()
    path = re.search(r'"(weights/.*?)"', load)[1]
    (tmp_path / "weights").mkdir()
    values = {"build": build, "path": path, "rest": load + last, "shape": SHAPES[name]}
    program = PROGRAM.format(**values, name=re.search(r"Tensor\((\w+)\)", last)[1])
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env=build_env(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["(1,", "1000)" if name == "resnet50" else "400)"]


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
