"""Every yaml of every network loads, builds its network and optimizer, and trains one step.

The sizes are toy sizes: images of 32 pixels, batches of two, four frames.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.separate_process import run_in_separate_process
from tests.toy_recipes import YAMLS, build_toy_training, load_toy_recipe
from utils.files import ROOT
from utils.inference.checkpoint import draw_no_weights
from utils.load_config import list_settings, load_config
from utils.networks import find_network, list_networks
from utils.train.gradients import segment_ends
from utils.train.run_dir import CHANGEABLE_ON_RESUME

NAME = {"tsm": ("tsm_", "tsn_")}


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_a_yaml_loads_and_its_head_names_the_command(path: Path):
    network = path.parents[1].name
    cfg = load_config(find_network(network).config, path)
    assert path.stem.startswith(NAME.get(network, (network,)))
    assert path.name in path.read_text().split("\nrun:")[0], "the head names the command"
    assert cfg.run.out == ROOT / "out" / path.stem
    with draw_no_weights():
        net = find_network(network).build_model(**cfg.model_arguments())
    names = [p.name for p in net.trainable_params()]
    assert segment_ends(names, cfg.run.all_reduce)[-1] == len(names) - 1


def test_settings_that_may_change_on_resume_exist():
    existing = set().union(*(list_settings(find_network(n).config) for n in list_networks()))
    for section, keys in CHANGEABLE_ON_RESUME.items():
        assert {f"{section}.{key}" for key in keys} <= existing


def describe_graph(path: Path) -> str:
    """The settings that decide the training graph: network, precision, and switches."""
    cfg = load_toy_recipe(path)
    numbers = {"num_classes", "mean", "std", "init", "drop_path", "datasets"}
    network = {key: value for key, value in cfg.model_arguments().items() if key not in numbers}
    unused = {"schedule", "lr_changes", "warmup_epochs", "warmup_lr", "milestones", "base_batch"}
    switches = {
        key: value if isinstance(value, (bool, str)) else bool(value)
        for key, value in vars(cfg.train).items()
        if key not in unused | {"accumulation_steps", "end_lr", "schedule_epochs", "new_head"}
    }
    run = (cfg.run.amp, cfg.run.dynamic_loss_scale, cfg.train.accumulation_steps > 1)
    mixing = [getattr(cfg.data, key, 0) > 0 for key in ("mixup", "cutmix")]
    return repr((path.parents[1].name, network, run, switches, mixing))


def select_one_yaml_per_graph() -> list:
    """One yaml for every graph. A second yaml of the same graph would test nothing new.

    Slow except for the optimizer LARS: other tests train the smoke recipes.
    """
    paths = {describe_graph(path): path for path in reversed(YAMLS)}.values()
    quick = re.compile(r"_lars$")
    return [p if quick.search(p.stem) else pytest.param(p, marks=pytest.mark.slow) for p in paths]


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_a_yaml_builds_its_optimizer(path: Path):
    cfg = load_toy_recipe(path)
    lr = build_toy_training(path.parents[1].name, cfg)[1].lr
    assert len(lr) == 9 * math.ceil(2 / cfg.train.accumulation_steps)
    assert (lr >= 0).all()
    assert lr.max() > 0


def train_one_step(path: Path) -> tuple:
    """Trains a toy network for one step; returns the outputs."""
    cfg = load_toy_recipe(path)
    network = find_network(path.parents[1].name)
    step = build_toy_training(network.name, cfg)[0]
    shape = network.get_sample_shape(cfg)
    clip = np.random.RandomState(0).randint(0, 255, (2, *shape)).astype(np.uint8)
    target = network.build_targets(cfg, np.array([0, 1], np.int32))
    outputs = step.set_train()(Tensor(clip), Tensor(target), *step.make_dropout_factors())
    return tuple(output.asnumpy() for output in outputs)


@pytest.mark.parametrize("path", select_one_yaml_per_graph(), ids=lambda p: p.stem)
def test_a_yaml_trains_one_step_at_toy_size(path: Path):
    outputs = run_in_separate_process(train_one_step, path)
    assert np.isfinite(float(outputs[0]))
    # A dynamic loss scale starts so high that float16 overflows, and is then lowered.
    assert float(outputs[3]) == 0 or load_toy_recipe(path).run.dynamic_loss_scale
