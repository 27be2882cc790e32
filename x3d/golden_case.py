"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np
from mindspore import nn

from utils.testing import golden
from utils.train import optimizers
from x3d import loss
from x3d.lr_generator import build_parameter_groups
from x3d.model import X3D
from x3d.network import NETWORK

RECIPE: dict = {}  # no setting may change: those of the optimizer are in the case


def list_model_arguments(case: dict, depthwise_impl: str = "frames") -> dict:
    config = case["config"]
    return {
        "num_classes": config["num_classes"],
        "frames": config["num_frames"],
        "crop": config["train_crop_size"],
        "depth_factor": config["variant_factors"]["depth_factor"],
        "dropout": 0.0,
        "depthwise_impl": depthwise_impl if config["channelwise_3x3x3"] else "dense",
        "stem_impl": depthwise_impl if config["stem_temporal_conv_grouped"] else "dense",
    }


def build_network(case: dict, training: bool = False, depthwise_impl: str = "frames") -> X3D:
    net = X3D(**list_model_arguments(case, depthwise_impl))
    golden.load_weights(net, golden.build_state_dict(case, net), NETWORK)
    return net.set_train(training)


def build_loss(case: dict) -> nn.Cell:
    return loss.build_loss()


def build_train_step(case: dict, part: str) -> nn.Cell:
    """The train step of the recorded updates; `part` is `step`."""
    net = build_network(case, training=True)
    recipe = case["train"][part]["optimizer"]
    train = SimpleNamespace(weight_decay=recipe["weight_decay"])
    weights = net.trainable_params()
    lr = np.full(golden.UPDATES, recipe["lr"])
    groups = build_parameter_groups(weights, train, lr)
    opt = optimizers.SGD(weights, groups, recipe["momentum"], recipe["nesterov"])
    return golden.build_train_step(net, build_loss(case), opt)


def cell_name(point: str) -> str:
    """Empty for the pool, which is no cell here."""
    return "" if point == "head.avg_pool" else point


build_target = golden.build_labels
