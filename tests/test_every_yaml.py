"""Every yaml of every room, found by glob: loads, builds, one forward and one training step.

At toy size: images of 32 pixels, batches of two, four frames.
"""

import importlib
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from utils.command import rooms
from utils.config import ROOT, load_config
from utils.order import Order
from utils.runtime import Runtime

YAMLS = sorted(path for room in rooms() for path in (ROOT / room / "configs").glob("*.yaml"))
NAME = {"tsm": ("tsm_", "tsn_")}


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_a_yaml_loads_and_says_how_to_run_it(path: Path):
    room = path.parents[1].name
    cfg = load_config(importlib.import_module(f"{room}.config").Config, path)
    assert path.stem.startswith(NAME.get(room, (room,)))
    assert path.name in path.read_text().split("\nrun:")[0], "the head names the command"
    assert cfg.run.out == ROOT / "out" / path.stem
    importlib.import_module(f"{room}.model").build_network(**cfg.network())


def toy(path: Path, out: Path):
    """The yaml's configuration on the CPU with a small network, small images, few classes."""
    module = importlib.import_module(f"{path.parents[1].name}.config")
    overrides = [f"run.out={out}", "run.device=CPU", "data.crop=32", "data.batch=2"]
    overrides += ["data.segments=4", "train.epochs=6", "train.pretrained=null"]
    cfg = load_config(module.Config, path)
    if cfg.model.arch.startswith("resnet") and not cfg.model.non_local:
        overrides += ["model.arch=resnet18", "model.first_width=16"]
    return load_config(module.Config, path, overrides)


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_a_yaml_trains_one_step_at_toy_size(path: Path, tmp_path):
    room = path.parents[1].name
    cfg = toy(path, tmp_path)
    build = importlib.import_module(f"{room}.train").build
    clip_shape = importlib.import_module(f"{room}.dataset").clip_shape(cfg.data, cfg.data.crop)
    step, lr, _ = build(cfg, Runtime(), Order(4, 2, 0, 1, 0))
    assert len(lr) == 6 * 2
    assert (lr > 0).all()
    clip = np.random.RandomState(0).randint(0, 255, (2, *clip_shape)).astype(np.uint8)
    outputs = step.set_train()(Tensor(clip), Tensor(np.array([0, 1], np.int32)))
    assert np.isfinite(float(outputs[0].asnumpy()))
    # A dynamic scale begins where float16 overflows, and comes down.
    assert float(outputs[3].asnumpy()) == 0 or cfg.run.dynamic_loss_scale
