"""Learning rates and decay groups of the multi-dataset MViTv2.

Source: JunweiLiang/MultiTrain, commit 16723114 (`utils/lr_policy.py`, `models/optimizer.py`).
"""

from typing import Any

import numpy as np

from utils.train import lr_schedules


def get_lr(train: Any, steps_per_epoch: int, global_batch: int) -> np.ndarray:
    """The rate of every update of the run, float64.

    The source sets it with every micro-batch, so an update has that of its group's last one. All
    three rates scale with the global batch.
    """
    factor = lr_schedules.peak_lr(1.0, train.base_batch, global_batch)
    ends = np.arange(train.accumulate, steps_per_epoch + train.accumulate, train.accumulate)
    last = np.minimum(ends, steps_per_epoch) - 1
    epoch = np.arange(train.epochs)[:, None] + last[None] / steps_per_epoch
    return factor * rate_at(epoch.reshape(-1), train)


def rate_at(epoch: np.ndarray, train: Any) -> np.ndarray:
    """At fractional epochs: a line up to the peak, then half a cosine from there."""
    warm = train.warmup_epochs
    span = max(train.epochs - warm, 1e-9)
    cosine = 0.5 * (1 + np.cos(np.pi * (epoch - warm) / span))
    rates = train.end_lr + (train.lr - train.end_lr) * cosine
    if warm:
        ramp = train.warmup_lr + epoch * (train.lr - train.warmup_lr) / warm
        rates = np.where(epoch < warm, ramp, rates)
    return rates


def parameter_groups(parameters: list, train: Any, lr: np.ndarray) -> list[dict]:
    """Parameters of one dimension without weight decay; all else with it, tables too."""
    groups = []
    for flat in (False, True):
        members = [p for p in parameters if (p.ndim == 1) == flat]
        decay = 0.0 if flat else train.weight_decay
        groups.append({"params": members, "lr": lr, "weight_decay": decay})
    return groups
