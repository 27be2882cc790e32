"""Learning rates and weight-decay groups of the multi-dataset MViTv2.

Source: JunweiLiang/MultiTrain, commit 16723114 (`utils/lr_policy.py`, `models/optimizer.py`); the
layers of `layer_decay` from facebookresearch/SlowFast, commit 287ec007 (`models/optimizer.py`).
"""

import numpy as np

from mvit_multi.config import Train
from utils.train import schedule as curves


def get_lr(train: Train, steps_per_epoch: int, effective_batch: int) -> np.ndarray:
    """The learning rate of every update of the run, float64.

    The source sets the rate at every micro-batch, so an update has the rate of its last one. `lr`,
    `warmup_lr` and `end_lr` scale with the effective batch size.
    """
    factor = curves.peak_lr(1.0, train.base_batch, effective_batch)
    group = train.accumulation_steps
    ends = np.arange(group, steps_per_epoch + group, group)
    last_steps = np.minimum(ends, steps_per_epoch) - 1
    epoch = np.arange(train.epochs)[:, None] + last_steps[None] / steps_per_epoch
    return factor * compute_lr_at(epoch.reshape(-1), train)


def compute_lr_at(epoch: np.ndarray, train: Train) -> np.ndarray:
    """The learning rate at fractional epochs: linear warm-up to the peak, then half a cosine."""
    warm = train.warmup_epochs
    span = max(train.epochs - warm, 1e-9)
    cosine = 0.5 * (1 + np.cos(np.pi * (epoch - warm) / span))
    rates = train.end_lr + (train.lr - train.end_lr) * cosine
    if warm:
        ramp = train.warmup_lr + epoch * (train.lr - train.warmup_lr) / warm
        rates = np.where(epoch < warm, ramp, rates)
    return rates


def build_parameter_groups(
    parameters: list, train: Train, lr: np.ndarray, depth: int
) -> list[dict]:
    """The groups of each layer: parameters of one dimension without weight decay, others with it.

    A layer of `depth` blocks learns at `layer_decay` to the power of its distance from the
    classifier. If that is 1, all layers are one.
    """
    members: dict[tuple[int, bool], list] = {}
    for parameter in parameters:
        # Layer 0 comes before the blocks, layer `depth` + 1 after them.
        part, *others = parameter.name.split(".")
        layer = depth + 1
        if part == "blocks":
            layer = int(others[0]) + 1
        elif part.startswith(("cls_token", "pos_embed", "patch_embed")):
            layer = 0
        distance = depth + 1 - layer if train.layer_decay < 1 else 0
        members.setdefault((distance, parameter.ndim == 1), []).append(parameter)
    return [
        {
            "params": params,
            "lr": lr * train.layer_decay**distance,
            "weight_decay": 0.0 if flat else train.weight_decay,
        }
        for (distance, flat), params in sorted(members.items())
    ]
