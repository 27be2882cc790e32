"""Networks in plain MindSpore: by the README of each in another program, and trained by `Model`."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from scripts.convert_checkpoint import main
from tests.helpers import build_env, load_smoke_config, run_command, save_random_weights
from tests.toy_recipes import draw_samples, list_toy_settings
from utils.files import ROOT
from utils.inference import model
from utils.networks import find_network
from utils.tests.parity import mark_slow_except
from utils.weights.checkpoint import weights_of
from utils.weights.checkpoint_file import read

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


def read_program(name: str, settings: list[str]) -> str:
    """The first program of the page for another network, with settings."""
    page = (ROOT / "docs" / "use_the_cells.md").read_text()
    lines = page.partition("```python\n")[2].partition("```")[0].replace("x3d", name)
    return lines.replace('_smoke"', f'_smoke", settings={settings}')


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.mark.parametrize("name", ["tsm", pytest.param("x3d", marks=pytest.mark.slow)])
def test_plain_mindspore_trains_a_network_by_the_lines_of_the_page(name, tmp_path, monkeypatch):
    """Its converted checkpoint predicts by itself; test_package.py trains a ResNet so."""
    sample = draw_samples(name, tmp_path / "data")
    settings = [*list_toy_settings(name), f"data.root={tmp_path / 'data'}"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mindspore_video_zoo", model)
    names: dict = {}
    exec(read_program(name, settings), names)
    steps = 3 * names["sampler"].steps_per_epoch
    assert names["optimizer"].global_step.asnumpy().tolist() == [steps]
    source = Path(f"out/plain/{name}-1_{steps}.ckpt")
    main(names["network"], cfg=names["cfg"], source=source, target=Path("plain.ckpt"))
    assert model.load("plain.ckpt", settings=["run.engine=mindspore"]).predict(sample)


@pytest.mark.parametrize("name", mark_slow_except(SHAPES, "tsm", "mvit_multi", "resnet50"))
def test_a_cell_has_the_weights_of_a_checkpoint_or_a_new_classifier(name, tmp_path):
    path = tmp_path / "net.ckpt"
    cfg = load_smoke_config(name, *list_toy_settings(name))
    save_random_weights(cfg, path, name)
    cell = model.load_cell(path)
    counts = [count + 1 for count in cfg.class_counts]
    new = model.load_cell(str(path), num_classes=counts if len(counts) > 1 else counts[0])
    arrays = read(path)
    for net in (cell, new):
        for key, weight in weights_of(net).items():
            if net is cell or not re.search(find_network(name).classifier, key):
                np.testing.assert_array_equal(weight.asnumpy(), arrays[key], key)
            elif weight.ndim > 1:
                assert weight.asnumpy().std() > 0, key
    clips = np.zeros((2, *find_network(name).get_input_shape(cfg)), np.uint8)
    scores = new(Tensor(clips))
    scores = scores if isinstance(scores, tuple) else (scores,)
    assert [s.shape for s in scores[: len(counts)]] == [(2, count) for count in counts]
    with pytest.raises(ValueError, match="num_classes"):
        model.load_cell(path, num_classes=[*counts, 2])
