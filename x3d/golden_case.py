"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np
from mindspore import nn

from utils.config import Run
from utils.runtime import Runtime
from utils.testing.golden import case_state, put_state
from utils.train import optimizers
from utils.train.train_step import TrainStep
from x3d.loss import build_loss
from x3d.lr_generator import parameter_groups
from x3d.model import X3D
from x3d.network import NETWORK

RECIPE: dict = {}  # the settings that a replay may change: the optimizer's are in the case


def network(case: dict, training: bool = False, form: str = "frames") -> X3D:
    """The case's network with its weights; `form` where the case has groups."""
    config = case["config"]
    net = X3D(
        num_classes=config["num_classes"],
        frames=config["num_frames"],
        crop=config["train_crop_size"],
        depth_factor=config["variant_factors"]["depth_factor"],
        dropout=0.0,
        form=form if config["channelwise_3x3x3"] else "dense",
        stem_form=form if config["stem_temporal_conv_grouped"] else "dense",
    )
    put_state(net, case_state(case, net), NETWORK)
    return net.set_train(training)


def loss(case: dict) -> nn.Cell:
    return build_loss()


def train_step(case: dict, part: str) -> TrainStep:
    """The recorded updates' optimizer; `part` is `step`."""
    net, recipe = network(case, training=True), case["train"][part]["optimizer"]
    train = SimpleNamespace(
        accumulate=1, clip_norm=0.0, ema=0.0, weight_decay=recipe["weight_decay"]
    )
    weights, lr = net.trainable_params(), np.full(5, recipe["lr"])
    groups = parameter_groups(weights, train, lr)
    opt = optimizers.SGD(weights, groups, recipe["momentum"], recipe["nesterov"])
    return TrainStep(net, loss(case), opt, Run(device="CPU"), train, Runtime(), 5).set_train()


def cell_name(point: str) -> str:
    """Where a tap of the original is taken here; its pool is no cell of ours."""
    return "" if point == "head.avg_pool" else point


def target(case: dict) -> np.ndarray:
    """Labels, int32 (N,)."""
    return np.array(case["labels"], np.int32)
