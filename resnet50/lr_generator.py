"""Learning rates of ResNet, and its parameter groups with and without weight decay.

Sources: the MindSpore zoo's `lr_generator.py` (mindspore-ai/models, commit eab643f5), whose cosine
is also that of MindSpore's migration tutorial; NVIDIA DeepLearningExamples, ResNet50 v1.5; and
torchvision's reference training.
"""

import re

import numpy as np

from resnet50.config import Train
from utils.train import schedule as curves


def get_lr(train: Train, updates_per_epoch: int, effective_batch: int) -> np.ndarray:
    """The learning rate of every update of the run, float64 (epochs * updates_per_epoch,).

    If `schedule_epochs` is above 0, the curve has that many epochs; the run ends after `epochs`.
    """
    peak = curves.peak_lr(train.lr, train.base_batch, effective_batch)
    epochs = train.schedule_epochs or train.epochs
    values = 1 if train.lr_changes == "epoch" else updates_per_epoch  # rates of one epoch
    total = epochs * values
    warm = round(train.warmup_epochs * values)
    # The zoo's modes other than cosine, and torchvision's recipes, begin at `warmup_lr` itself.
    if train.schedule in ("linear", "poly", "steps", "step", "torch_cosine"):
        rising = train.warmup_lr + (peak - train.warmup_lr) * np.arange(warm) / max(warm, 1)
    else:
        rising = curves.warmup(warm, train.warmup_lr, peak)
    falling = compute_decay(train.schedule, total=total, warm=warm, peak=peak, end=train.end_lr)
    curve = np.concatenate([rising, falling])
    return np.repeat(curve, updates_per_epoch // values)[: train.epochs * updates_per_epoch]


def compute_decay(schedule: str, total: int, warm: int, peak: float, end: float) -> np.ndarray:
    """The rates after the warm-up, float64 (total - warm,). `end` is for `cosine` and `linear`.

    * cosine, torch_cosine: half a cosine from the peak to `end`; their warm-ups differ.
    * tutorial_cosine: a line times a cosine, which the zoo calls cosine. The index does not start
      at 0 after the warm-up, so the rate drops there. See the README.
    * linear: a line from the peak to `end`.
    * poly: the peak times the square of the remaining fraction.
    * steps: a tenth at 30, 60 and 80 % of all updates, the warm-up's included.
    * step: a tenth at 20, 50 and 70 %, and 0.00005 from 90 % on, whatever the peak is.
    * thirds: a tenth at one third and at two thirds: torchvision's 30 and 60 of 90 epochs.
    """
    i = np.arange(warm, total)
    length = total - warm
    if schedule in ("cosine", "torch_cosine"):
        return end + (peak - end) * curves.cosine(length)
    if schedule == "tutorial_cosine":
        cosine = 0.5 * (1 + np.cos(np.pi * 2 * 0.47 * i / length))
        return peak * ((total - i) / length * cosine + 0.00001)
    if schedule == "linear":
        return peak - (peak - end) * (i - warm) / length
    if schedule == "poly":
        return peak * (1 - (i - warm) / length) ** 2
    milestones: dict[str, list[float]] = {
        "steps": [0.3 * total, 0.6 * total, 0.8 * total],
        "step": [0.2 * total, 0.5 * total, 0.7 * total],
        "thirds": [-(-total // 3), -(-2 * total // 3)],
    }
    rates = peak * curves.steps(total, milestones[schedule])[warm:]
    if schedule == "step":
        rates[i >= 0.9 * total] = 0.00005
    return rates


def is_decayed(name: str, rule: str) -> bool:
    """Whether a parameter has weight decay; `name` has the modules of PyTorch.

    `rule` is `train.decay`. `norms_and_biases` (MindSpore's tutorial and zoo) excludes norms and
    biases, `norms` (torchvision's V2) only norms. `named_bn` (NVIDIA) excludes names with `bn`, so
    shortcut norms and the classifier's bias are decayed. `everything` (torchvision's V1) excludes
    nothing.
    """
    leaf = name.rpartition(".")[2]
    if rule == "norms_and_biases":
        return leaf not in ("gamma", "beta", "bias")
    if rule == "norms":
        return leaf not in ("gamma", "beta")
    return rule == "everything" or not re.search("bn", name)


def build_parameter_groups(parameters: list, train: Train, lr: np.ndarray) -> list[dict]:
    """The optimizer's two groups: parameters with and without weight decay.

    `parameters` are the trainable ones in the network's order; `lr` is the result of `get_lr`.
    LARS adapts the rates of decayed parameters only (`adapted`).
    """
    return [
        {
            "params": [p for p in parameters if is_decayed(p.name, train.decay) == decayed],
            "lr": lr,
            "weight_decay": train.weight_decay if decayed else 0.0,
            "adapted": decayed,
        }
        for decayed in (True, False)
    ]
