#!/usr/bin/env python3
"""Trains TSM.

    python tsm/train.py --config_path tsm/configs/tsm_r50_sthv2_8f.yaml [--train.epochs=1 ...]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1 (and validation_map if multi-label), best_epoch (null without
validations), clips_per_second, compile_seconds, first_step_seconds (since the start). Loss and top1
are means since a log line.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from tsm.config import Config
from tsm.loss import build_loss
from tsm.lr_generator import build_parameter_groups, get_lr
from tsm.model import TSM, freeze_batch_norms
from tsm.network import NETWORK
from utils.train import optimizers
from utils.train.plan import Plan, TrainParts, compute_class_weights
from utils.train.train import train


def build(cfg: Config, plan: Plan) -> TrainParts:
    if cfg.model.consensus != "avg":
        raise ValueError("model.consensus: identity is for evaluation; a training needs avg")
    settings = cfg.train
    net = TSM(**cfg.model_arguments())
    freeze_batch_norms(net, settings.batch_norm)
    plan.load_and_freeze(net)
    lr = get_lr(settings, plan.updates_per_epoch, plan.effective_batch)
    weights = net.trainable_params()
    flow = cfg.data.is_flow
    groups = build_parameter_groups(weights, train=settings, lr=lr, flow=flow)
    optimizer = optimizers.SGD(
        weights,
        groups=plan.scale_head(groups),
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )
    loss = build_loss(cfg, *compute_class_weights(cfg, plan.sampler))
    mix = plan.build_mix(net.normalize)
    return TrainParts(net, loss=loss, optimizer=optimizer, lr=lr, mix=mix)


if __name__ == "__main__":
    train(NETWORK, build, __doc__)
