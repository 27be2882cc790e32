#!/usr/bin/env python3
"""Trains MViTv2 on several data sets at once, or on one.

    python mvit_multi/train.py --config_path mvit_multi/configs/mvit_multi_smoke.yaml [--train.lr=1]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second
(here videos, with data.repeated_aug clips each), compile_seconds,
first_step_seconds (since the start).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from mindspore import nn

from mvit_multi.config import Config
from mvit_multi.loss import MixClips, build_loss
from mvit_multi.lr_generator import build_parameter_groups, get_lr
from mvit_multi.model import MViT
from mvit_multi.network import NETWORK
from utils.train import optimizers
from utils.train.adaptive import AdamW
from utils.train.plan import Plan, TrainParts, compute_class_weights
from utils.train.train import train


def build(cfg: Config, plan: Plan) -> TrainParts:
    settings = cfg.train
    net = MViT(**cfg.model_arguments())
    plan.load_and_freeze(net)
    lr = get_lr(settings, plan.sampler.steps_per_epoch, plan.effective_batch)
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train=settings, lr=lr, depth=cfg.model.depth)
    groups = plan.scale_head(groups)
    optimizer: nn.Optimizer
    if settings.optimizer == "sgd":
        optimizer = optimizers.SGD(
            weights, groups=groups, momentum=settings.momentum, nesterov=settings.nesterov
        )
    else:
        optimizer = AdamW(weights, groups=groups)
    mix = MixClips(net.normalize, cfg.data.mixes)
    return TrainParts(
        net,
        loss=build_loss(cfg, compute_class_weights(cfg, plan.sampler), plan.rt),
        optimizer=optimizer,
        lr=lr,
        mix=mix,
    )


if __name__ == "__main__":
    train(NETWORK, build, __doc__)
