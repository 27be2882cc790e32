"""`train.freeze`: what gets gradients, optimizer state, averages and AllReduce, and what stays."""

import numpy as np
import pytest
from mindspore import nn

from scripts.analysis.build_networks import build_train_step, make_dummy_batch
from tests.helpers import load_smoke_config
from utils.networks import find_network
from utils.runtime import Runtime
from utils.train.gradients import split_all_reduce
from utils.train.plan import freeze_weights

SMALL = {
    "tsm": ["model.first_width=8", "data.segments=2", "data.crop=32", "data.batch=2"],
    "resnet50": ["model.first_width=2", "data.batch=4"],
    "x3d": ["model.depth_factor=0.4", "data.scales=[32,32]", "data.crop=32", "data.frames=4"],
    "mvit_multi": ["model.dim=8", "data.crop=32", "data.frames=4", "data.batch=2"],
}


def load_small_config(network: str, *settings: str):
    return load_smoke_config(network, *SMALL[network], *settings)


def build_frozen_network(network: str, setting: str):
    net = find_network(network).build_model(**load_small_config(network).model_arguments())
    freeze_weights(net, setting, find_network(network).classifier)
    return net


@pytest.mark.parametrize(
    ("network", "start", "count"),
    [("tsm", "base_model.fc.", 2), ("resnet50", "fc.", 2), ("x3d", "head.projection.", 2),
     ("mvit_multi", ("head.", "expander."), 22)],
)  # fmt: skip
def test_a_frozen_backbone_leaves_the_classifier_and_its_norms_evaluate(
    network, start, count, log_messages
):
    net = build_frozen_network(network, "backbone")
    names = [weight.name for weight in net.trainable_params()]
    assert len(names) == count
    assert all(name.startswith(start) for name in names)
    assert f"train.freeze backbone: {count} of " in log_messages[0]
    norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert all(norm.use_batch_statistics is False for norm in norms)
    assert bool(norms) == (network != "mvit_multi")


def test_an_expression_freezes_the_weights_that_it_names():
    net = build_frozen_network("tsm", r"layer[12]\.|bn1\.gamma$")
    trained = {weight.name for weight in net.trainable_params()}
    every = [name for name, _ in net.parameters_and_names() if "moving_" not in name]
    assert {name for name in every if name not in trained} == {
        name for name in every if "layer1." in name or "layer2." in name
        or name.endswith("bn1.gamma")
    }  # fmt: skip
    norms = dict(net.cells_and_names())
    assert norms["base_model.layer2.0.bn1"].use_batch_statistics is False
    assert norms["base_model.layer3.0.bn1"].use_batch_statistics is None, "it trains its beta"


@pytest.mark.parametrize("setting", ["layer9", "."])
def test_an_expression_for_nothing_or_all_is_refused(setting):
    with pytest.raises(ValueError, match=f"^train.freeze: .*'{setting}'"):
        build_frozen_network("tsm", setting)


def test_a_split_of_all_reduce_counts_frozen_weights_too():
    cfg = load_small_config("tsm", "run.all_reduce=[layer2, layer3]")
    net = build_frozen_network("tsm", "conv1|layer2|layer3.0")
    trained = [weight.name for weight in net.trainable_params()]
    ends = split_all_reduce(net, cfg.run, freezes=True)
    assert [trained[end].split(".")[1] for end in ends[:2]] == ["layer1", "layer3"]
    assert ends[2] == len(trained) - 1
    net = build_frozen_network("tsm", "backbone")
    assert split_all_reduce(net, cfg.run, freezes=True) == [1]


def test_a_frozen_network_trains_its_classifier_only():
    """Also with accumulation and averages; dropout, statistics and weights of the rest stay."""
    settings = ["train.freeze=backbone", "train.ema_decay=0.5", "train.accumulation_steps=2"]
    cfg = load_small_config("tsm", *settings)
    step = build_train_step("tsm", cfg, Runtime())
    assert [weight.name for weight in step.optimizer.parameters] == [
        "base_model.fc.weight",
        "base_model.fc.bias",
    ]
    assert len(step.ema.means) == len(step.grad_sums) == 2
    before = {name: value.asnumpy().copy() for name, value in step.ema_parameters().items()}
    clips, target = make_dummy_batch("tsm", cfg)
    for _ in range(4):
        assert np.isfinite(step(clips, target, *step.make_dropout_factors()).asnumpy()).all()
    after = {name: value.asnumpy() for name, value in step.ema_parameters().items()}
    changed = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert changed == {"base_model.fc.weight", "base_model.fc.bias"}
    assert step.ema_parameters().keys() == dict(step.net.parameters_and_names()).keys()
