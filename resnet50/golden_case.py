"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np
from mindspore import nn

from resnet50 import loss, model
from resnet50.lr_generator import build_parameter_groups
from resnet50.network import NETWORK
from utils.testing import golden
from utils.train import optimizers

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Settings of case["train"] that `compare_step.py --recipe` may change; by default the tutorial's.
RECIPE = {"smoothing": 0.1, "smoothed": "excluded", "decay": "norms_and_biases"}


def build_network(case: dict, training: bool = False) -> nn.Cell:
    config = case["config"]
    net = model.build_network(config["arch"], num_classes=config["num_classes"], mean=MEAN, std=STD)
    golden.load_weights(net, golden.build_state_dict(case, net), NETWORK)
    return net.set_train(training)


def build_loss(case: dict) -> nn.Cell:
    recipe = {**RECIPE, **case.get("train", {})}
    return loss.build_loss(recipe["smoothing"], recipe["smoothed"])


def build_train_step(case: dict, part: str) -> nn.Cell:
    """The train step of the recorded updates; `part` is `step` or `step_decay`."""
    net = build_network(case, training=True)
    recipe = case["train"][part]["optimizer"]
    decay = {**RECIPE, **case["train"]}["decay"]
    train = SimpleNamespace(weight_decay=recipe["weight_decay"], decay=decay)
    weights = net.trainable_params()
    lr = np.full(golden.UPDATES, recipe["lr"])
    opt = optimizers.SGD(weights, build_parameter_groups(weights, train, lr), recipe["momentum"])
    return golden.build_train_step(net, build_loss(case), opt)


def cell_name(point: str) -> str:
    """Empty for the average pool, which is no cell here."""
    return "" if point == "avgpool" else point


build_target = golden.build_labels
