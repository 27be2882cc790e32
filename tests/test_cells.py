"""Networks in plain MindSpore: by the README of each in another program, and trained by `Model`."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from scripts.convert_checkpoint import main
from tests.helpers import build_env, run_command
from tests.toy_recipes import draw_samples, list_toy_settings
from utils.files import ROOT
from utils.predict.model import load
from utils.tests.parity import mark_slow_except

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


@pytest.mark.parametrize("name", mark_slow_except(SHAPES, "tsm", "x3d", "resnet50"))
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
    done = run_command([sys.executable, "program.py"], cwd=tmp_path, env=build_env())
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["(1,", "1000)" if name == "resnet50" else "400)"]


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.mark.parametrize("name", ["tsm", "resnet50", pytest.param("x3d", marks=pytest.mark.slow)])
def test_plain_mindspore_trains_a_network_by_the_lines_of_the_page(name, tmp_path, monkeypatch):
    """Its converted checkpoint predicts by itself."""
    page = (ROOT / "docs" / "use_the_cells.md").read_text()
    lines = page.partition("```python\n")[2].partition("```")[0].replace("x3d", name)
    sample = draw_samples(name, tmp_path / "data")
    settings = [*list_toy_settings(name), f"data.root={tmp_path / 'data'}"]
    (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(lines.replace('.yaml")', f'.yaml"), {settings}'), names)
    steps = 3 * names["sampler"].steps_per_epoch
    assert names["optimizer"].global_step.asnumpy().tolist() == [steps]
    source = Path(f"out/plain/{name}-1_{steps}.ckpt")
    main(names["network"], cfg=names["cfg"], source=source, target=Path("plain.ckpt"))
    assert load("plain.ckpt", settings=["run.engine=mindspore"]).predict(sample)
