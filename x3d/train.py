#!/usr/bin/env python3
"""Trains X3D.

    python x3d/train.py --config_path x3d/configs/x3d_s_k400_13x6.yaml [--train.epochs=1 ...]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second,
compile_seconds, first_step_seconds (since the start).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from utils.nn.layers import freeze_norms, list_norms
from utils.train import optimizers
from utils.train.plan import Plan, TrainParts, compute_class_weights
from utils.train.train import train
from x3d.config import Config
from x3d.loss import build_loss
from x3d.lr_generator import build_parameter_groups, get_lr
from x3d.model import X3D
from x3d.network import NETWORK
from x3d.precise_bn import PreciseBatchNorms


def build(cfg: Config, plan: Plan) -> TrainParts:
    settings = cfg.train
    net = X3D(**cfg.model_arguments())
    if settings.batch_norm == "frozen":
        freeze_norms(list_norms(net))
    plan.load_and_freeze(net)
    lr = get_lr(settings, plan.updates_per_epoch, plan.effective_batch)
    weights = net.trainable_params()
    groups = plan.scale_head(build_parameter_groups(weights, settings, lr))
    optimizer = optimizers.SGD(
        weights, groups=groups, momentum=settings.momentum, nesterov=settings.nesterov
    )
    precise = None
    if settings.precise_bn and settings.batch_norm != "frozen":
        ranks = plan.rt.size if settings.sync_batch_norm else 1
        count = min(settings.precise_bn, plan.sampler.steps_per_epoch)
        precise = PreciseBatchNorms(net, ranks, count)  # keeps its compiled graph between calls
    return TrainParts(
        net,
        loss=build_loss(cfg, *compute_class_weights(cfg, plan.sampler)),
        optimizer=optimizer,
        lr=lr,
        mix=plan.build_mix(net.normalize),
        before_saving=precise.update_before_saving if precise and precise.norms else None,
    )


if __name__ == "__main__":
    train(NETWORK, build, __doc__)
