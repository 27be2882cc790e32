"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np
from mindspore import nn

from resnet50 import loss, model
from resnet50.lr_generator import parameter_groups
from resnet50.network import NETWORK
from utils.config import Run
from utils.runtime import Runtime
from utils.testing.golden import build_state_dict, load_weights
from utils.train import optimizers
from utils.train.train_step import TrainStep

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The settings that a replay may change, under case["train"]; the tutorial's by default.
RECIPE = {"smoothing": 0.1, "smoothed": "excluded", "decay": "norms_and_biases"}


def build_network(case: dict, training: bool = False) -> nn.Cell:
    """The case's network with its weights."""
    config = case["config"]
    net = model.build_network(config["arch"], num_classes=config["num_classes"], mean=MEAN, std=STD)
    load_weights(net, build_state_dict(case, net), NETWORK)
    return net.set_train(training)


def build_loss(case: dict) -> nn.Cell:
    recipe = {**RECIPE, **case.get("train", {})}
    return loss.build_loss(recipe["smoothing"], recipe["smoothed"])


def build_train_step(case: dict, part: str) -> TrainStep:
    """The recorded updates' optimizer; `part` is `step` or `step_decay`."""
    net, recipe = build_network(case, training=True), case["train"][part]["optimizer"]
    train = SimpleNamespace(
        accumulation_steps=1,
        clip_norm=0.0,
        ema_decay=0.0,
        weight_decay=recipe["weight_decay"],
        decay={**RECIPE, **case["train"]}["decay"],
    )
    weights, lr = net.trainable_params(), np.full(5, recipe["lr"])
    opt = optimizers.SGD(weights, parameter_groups(weights, train, lr), recipe["momentum"])
    return TrainStep(net, build_loss(case), opt, Run(device="CPU"), train, Runtime(), 5).set_train()


def cell_name(point: str) -> str:
    """Where a tap of the originals is taken here; the last mean is no cell of ours."""
    return "" if point == "avgpool" else point


def build_target(case: dict) -> np.ndarray:
    """Labels, int32 (N,)."""
    return np.array(case["labels"], np.int32)
