"""Learning rates of TSM, and multipliers of rate and weight decay for its parameter groups.

Source: mit-han-lab/temporal-shift-module, commit 1f6a834b (`main.py`, `ops/models.py`); the Summit
schedule from arXiv:1910.00932; mmaction2's warm-up from its commit 4d6c9347.
"""

import numpy as np

from tsm.config import Train
from utils.train import schedule as curves

# group name of the source: (lr multiplier, weight-decay multiplier)
GROUPS = {
    "first_conv_weight": (1, 1),
    "first_conv_bias": (2, 0),
    "normal_weight": (1, 1),
    "normal_bias": (2, 0),
    "BN scale/shift": (1, 0),
    "custom_ops": (1, 1),  # a group of the source, empty here
}
# Of a ResNet, and of MobileNetV2
FIRST_CONVS = ("base_model.conv1", "base_model.features.0.0")
FLOW_FIRST_CONV = {"first_conv_weight": (5, 1), "first_conv_bias": (10, 0)}


def get_lr(train: Train, updates_per_epoch: int, effective_batch: int) -> np.ndarray:
    """The base learning rate of every update of the run, float64 (epochs * updates_per_epoch,).

    `lr_changes: epoch` follows the original: one rate per epoch. Its warm-up is mmaction2's: the
    first epoch of the warm-up uses `warmup_lr` and its last one, if there are several, the peak.
    `lr_changes: update` follows Summit: the rate of warm-up and curve changes at every update.
    """
    peak = curves.peak_lr(train.lr, train.base_batch, effective_batch)
    rates_per_epoch = updates_per_epoch if train.lr_changes == "update" else 1
    total = round(train.epochs * rates_per_epoch)
    warm = round(train.warmup_epochs * rates_per_epoch)
    if train.schedule == "cosine":
        curve = np.concatenate([np.ones(warm), curves.cosine(total - warm)])
    else:
        milestones = [milestone * rates_per_epoch for milestone in train.milestones]
        curve = curves.steps(total, milestones)
    rates = peak * curve
    if warm and train.lr_changes == "epoch":
        rates[:warm] *= np.linspace(train.warmup_lr / peak, 1, warm)
    elif warm:
        rates[:warm] = curves.warmup(warm, train.warmup_lr, peak)
    return rates if train.lr_changes == "update" else np.repeat(rates, updates_per_epoch)


def build_parameter_groups(
    parameters: list, train: Train, lr: np.ndarray, flow: bool
) -> list[dict]:
    """The optimizer's groups: parameters, learning rate of every update, weight decay.

    `parameters` are the trainable parameters in the order of the network; `lr` is the result of
    `get_lr`. `flow`: the network reads optical flow; its first convolution learns faster.
    """
    members: dict[str, list] = {name: [] for name in GROUPS}
    for parameter in parameters:
        module, _, leaf = parameter.name.rpartition(".")
        if leaf in ("gamma", "beta"):
            group = "BN scale/shift"
        elif leaf in ("weight", "bias"):
            group = f"{'first_conv' if module in FIRST_CONVS else 'normal'}_{leaf}"
        else:
            raise ValueError(f"{parameter.name} needs a policy: neither convolution nor norm")
        members[group].append(parameter)
    multipliers = {**GROUPS, **(FLOW_FIRST_CONV if flow else {})}
    return [
        {
            "params": members[name],
            "lr": lr * lr_mult,
            "weight_decay": train.weight_decay * decay_mult,
        }
        for name, (lr_mult, decay_mult) in multipliers.items()
    ]
