"""Learning rates and weight-decay groups of X3D.

Source: facebookresearch/SlowFast, commit 287ec007 (`utils/lr_policy.py`, `models/optimizer.py`).
"""

import numpy as np

from utils.train import schedule as curves
from x3d.config import Train


def get_lr(train: Train, updates_per_epoch: int, effective_batch: int) -> np.ndarray:
    """The learning rate of every update of the run, float64 (epochs * updates_per_epoch,).

    A cosine over the whole run. The warm-up rises linearly to the value of the cosine at the end of
    the warm-up, not to the peak. `lr`, `warmup_lr` and `end_lr` scale with `effective_batch`.
    """
    factor = curves.peak_lr(1.0, train.base_batch, effective_batch)
    epoch = np.arange(train.epochs * updates_per_epoch) / updates_per_epoch
    return factor * compute_lr_at(epoch, train)


def compute_lr_at(epoch: np.ndarray, train: Train) -> np.ndarray:
    """The learning rate at fractional epochs, before scaling with the batch."""

    def cosine(e: np.ndarray) -> np.ndarray:
        half = (train.lr - train.end_lr) * 0.5
        return train.end_lr + half * (1 + np.cos(np.pi * e / train.epochs))

    rates = cosine(epoch)
    warm = train.warmup_epochs
    if warm:
        ramp = train.warmup_lr + epoch * (cosine(np.array(float(warm))) - train.warmup_lr) / warm
        rates = np.where(epoch < warm, ramp, rates)
    return rates


def build_parameter_groups(parameters: list, train: Train, lr: np.ndarray) -> list[dict]:
    """Two groups: batch norms without weight decay; all other parameters with it.

    As in the source, biases have weight decay too.
    """
    groups = []
    for norms in (True, False):
        members = [p for p in parameters if p.name.endswith((".gamma", ".beta")) == norms]
        decay = 0.0 if norms else train.weight_decay
        groups.append({"params": members, "lr": lr, "weight_decay": decay})
    return groups
