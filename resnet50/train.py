#!/usr/bin/env python3
"""Trains ResNet.

    python resnet50/train.py --config_path resnet50/configs/resnet50_smoke.yaml [--train.lr=1 ...]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second
(images here), compile_seconds, first_step_seconds (since the start).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from mindspore import nn

from resnet50.config import Config
from resnet50.loss import build_loss
from resnet50.lr_generator import build_parameter_groups, get_lr
from resnet50.model import build_network
from resnet50.network import NETWORK
from utils.nn.layers import freeze_norms, list_norms
from utils.train import optimizers
from utils.train.adaptive import LARS
from utils.train.plan import Plan, TrainParts, compute_class_weights
from utils.train.train import train


def build(cfg: Config, plan: Plan) -> TrainParts:
    settings = cfg.train
    net = build_network(**cfg.model_arguments())
    if settings.batch_norm == "frozen":
        freeze_norms(list_norms(net))
    plan.load_and_freeze(net)
    lr = get_lr(settings, plan.updates_per_epoch, plan.effective_batch)
    weights = net.trainable_params()
    groups = plan.scale_head(build_parameter_groups(weights, settings, lr))
    momentum = settings.momentum
    optimizer: nn.Optimizer
    if settings.optimizer == "lars":
        optimizer = LARS(
            weights, groups, momentum, trust=settings.trust_coefficient, eps=settings.epsilon
        )
    else:
        optimizer = optimizers.SGD(weights, groups, momentum, nesterov=settings.nesterov)
    loss = build_loss(cfg, *compute_class_weights(cfg, plan.sampler))
    mix = plan.build_mix(net.normalize)
    return TrainParts(net, loss=loss, optimizer=optimizer, lr=lr, mix=mix)


if __name__ == "__main__":
    train(NETWORK, build, __doc__)
