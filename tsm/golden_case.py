"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from types import SimpleNamespace

import numpy as np

from tsm.loss import build_loss
from tsm.lr_generator import parameter_groups
from tsm.model import TSM, freeze_batch_norms
from tsm.network import NETWORK
from utils.config import Run
from utils.runtime import Runtime
from utils.testing.golden import case_state, put_state
from utils.train import optimizers
from utils.train.train_step import TrainStep

RECIPE = {"fast_head": True}  # the settings that a replay may change, under case["train"]


def settings(case: dict, dropout: float) -> dict:
    """The arguments of TSM for the configuration of a golden case."""
    config = case["config"]
    return {
        "num_classes": config["num_class"],
        "segments": config["num_segments"],
        "arch": config["base_model"],
        "shift_div": config["shift_div"] if config["is_shift"] else 0,
        "shift_place": config["shift_place"],
        "online": config.get("unidirectional", False),
        "temporal_pool": config["temporal_pool"],
        "non_local": config["non_local"],
        "dropout": dropout,
        "consensus": config["consensus"],
        "before_softmax": config["before_softmax"],
        "modality": config["modality"].lower(),
        "frames_per_segment": config["new_length"],
    }


def network(case: dict, training: bool = False) -> TSM:
    """The case's network with its weights; in training nothing is dropped."""
    net = TSM(**settings(case, case["config"]["dropout"]))
    if training and net.dropout is not None:
        net.dropout.p = 0.0
    state = case_state(case, net)
    for part, factor in case.get("scale", {}).items():
        state.update({k: v * np.float32(factor) for k, v in state.items() if part in k})
    put_state(net, state, NETWORK)
    if training:
        freeze_batch_norms(net, "partial" if case["config"]["partial_bn"] else "trained")
    return net.set_train(training)


def loss(case: dict):
    return build_loss(case["config"]["before_softmax"])


def train_step(case: dict, part: str) -> TrainStep:
    """The recorded updates' optimizer; `part` is `step` or `step_decay`."""
    net, recipe = network(case, training=True), case["train"][part]["optimizer"]
    train = SimpleNamespace(
        accumulate=1,
        clip_norm=recipe["clip_total_norm"],
        ema=0.0,
        weight_decay=recipe["weight_decay"],
        fast_head=case["train"].get("fast_head", RECIPE["fast_head"]),
    )
    weights, lr = net.trainable_params(), np.full(5, recipe["lr"])
    opt = optimizers.SGD(weights, parameter_groups(weights, train, lr, False), recipe["momentum"])
    return TrainStep(net, loss(case), opt, Run(device="CPU"), train, Runtime(), 5).set_train()


def cell_name(point: str) -> str:
    """Where a tap of the originals is taken here: a shifted convolution is `conv1.net`.

    Empty for the average pool, which is no cell of ours.
    """
    if "avgpool" in point:
        return ""
    point = point.replace("conv1 (input after", "conv1.net (input after")
    point = point.replace("conv.0 (input after", "conv.0.net (input after")
    return point.replace("layer2 (input after the pool)", "layer2.net (input)")


def target(case: dict) -> np.ndarray:
    """Labels, int32 (N,)."""
    return np.array(case["labels"], np.int32)
