"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np
from mindspore import nn

from tsm import loss
from tsm.lr_generator import build_parameter_groups
from tsm.model import TSM, freeze_batch_norms
from tsm.network import NETWORK
from utils.testing import golden
from utils.train import optimizers

# Settings of case["train"] that `compare_step.py --recipe` may change.
RECIPE = {"head_lr_mult": 5.0}


def list_model_arguments(case: dict, dropout: float) -> dict:
    config = case["config"]
    same = ("shift_place", "temporal_pool", "non_local", "consensus", "before_softmax")
    return {
        **{name: config[name] for name in same},
        "num_classes": config["num_class"],
        "segments": config["num_segments"],
        "arch": config["base_model"],
        "shift_div": config["shift_div"] if config["is_shift"] else 0,
        "online": config.get("unidirectional", False),
        "dropout": dropout,
        "modality": config["modality"].lower(),
        "frames_per_segment": config["new_length"],
    }


def build_network(case: dict, training: bool = False) -> TSM:
    """The network of a case with its weights; in training without dropout."""
    net = TSM(**list_model_arguments(case, case["config"]["dropout"]))
    if training and net.dropout is not None:
        net.dropout.p = 0.0
    golden.load_weights(net, golden.build_state_dict(case, net), NETWORK)
    if training:
        freeze_batch_norms(net, "partial" if case["config"]["partial_bn"] else "trained")
    return net.set_train(training)


def build_loss(case: dict):
    return loss.build_loss(case["config"]["before_softmax"])


def build_train_step(case: dict, part: str) -> nn.Cell:
    """The train step of the recorded updates; `part` is `step` or `step_decay`."""
    net = build_network(case, training=True)
    recipe = case["train"][part]["optimizer"]
    head_lr_mult = {**RECIPE, **case["train"]}["head_lr_mult"]
    train = SimpleNamespace(weight_decay=recipe["weight_decay"], head_lr_mult=head_lr_mult)
    weights = net.trainable_params()
    lr = np.full(golden.UPDATES, recipe["lr"])
    groups = build_parameter_groups(weights, train, lr, flow=False)
    opt = optimizers.SGD(weights, groups, recipe["momentum"])
    return golden.build_train_step(net, build_loss(case), opt, recipe["clip_total_norm"])


def cell_name(point: str) -> str:
    """A shifted convolution is `conv1.net`; empty for the average pool, which is no cell here."""
    if "avgpool" in point:
        return ""
    point = point.replace("conv1 (input after", "conv1.net (input after")
    point = point.replace("conv.0 (input after", "conv.0.net (input after")
    return point.replace("layer2 (input after the pool)", "layer2.net (input)")


build_target = golden.build_labels
