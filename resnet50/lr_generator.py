"""Learning rates and decay groups of the ResNet recipes.

Sources: the MindSpore zoo's `lr_generator.py` (mindspore-ai/models, commit eab643f5), whose cosine
is also that of MindSpore's migration tutorial; NVIDIA DeepLearningExamples, ResNet50 v1.5; and
torchvision's reference training.
"""

import re
from typing import Any

import numpy as np

from utils.train import lr_schedules


def get_lr(train: Any, updates_per_epoch: int, global_batch: int) -> np.ndarray:
    """The rate of every update of the run, float64 (epochs * updates_per_epoch,).

    `schedule_epochs` above 0 lays the curve out for so many epochs, and trains `epochs` of them.
    """
    peak = lr_schedules.peak_lr(train.lr, train.base_batch, global_batch)
    epochs = train.schedule_epochs or train.epochs
    per = 1 if train.lr_changes == "epoch" else updates_per_epoch
    total, warm = epochs * per, round(train.warmup_epochs * per)
    curve = CURVES[train.schedule](total, warm, train.warmup_lr, peak, train.end_lr)
    return np.repeat(curve, updates_per_epoch // per)[: train.epochs * updates_per_epoch]


def cosine(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """Warm-up to the peak, then half a cosine to `end`."""
    falling = end + (peak - end) * lr_schedules.cosine(total - warm)
    return np.concatenate([lr_schedules.warmup(warm, start, peak), falling])


def tutorial_cosine(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """A line times a cosine, which the zoo calls cosine; `end` has no effect.

    i is not reduced by the warm-up, so the rate drops at its end. See the README.
    """
    i, length = np.arange(warm, total), total - warm
    falling = (total - i) / length * 0.5 * (1 + np.cos(np.pi * 2 * 0.47 * i / length)) + 0.00001
    return np.concatenate([lr_schedules.warmup(warm, start, peak), peak * falling])


def linear(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    i = np.arange(warm, total)
    falling = peak - (peak - end) * (i - warm) / (total - warm)
    return np.concatenate([climb(warm, start, peak), falling])


def poly(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """The peak times the square of what remains; `end` has no effect."""
    i = np.arange(warm, total)
    falling = peak * (1 - (i - warm) / (total - warm)) ** 2
    return np.concatenate([climb(warm, start, peak), falling])


def steps(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """A tenth at 30, 60 and 80 % of all updates, the warm-up's included; `end` has no effect."""
    rates = peak * lr_schedules.steps(total, [0.3 * total, 0.6 * total, 0.8 * total])
    return np.concatenate([climb(warm, start, peak), rates[warm:]])


def step(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """A tenth at 20, 50 and 70 %, and 0.00005 from 90 %, whatever the peak."""
    rates = peak * lr_schedules.steps(total, [0.2 * total, 0.5 * total, 0.7 * total])
    rates[np.arange(total) >= 0.9 * total] = 0.00005
    return np.concatenate([climb(warm, start, peak), rates[warm:]])


def thirds(total: int, warm: int, start: float, peak: float, end: float) -> np.ndarray:
    """A tenth at one third and at two thirds: torchvision's 30 and 60 of 90 epochs."""
    rates = peak * lr_schedules.steps(total, [-(-total // 3), -(-2 * total // 3)])
    return np.concatenate([lr_schedules.warmup(warm, start, peak), rates[warm:]])


def climb(count: int, start: float, peak: float) -> np.ndarray:
    """The zoo's warm-up of other modes than cosine: the first value is `start` itself."""
    return start + (peak - start) * np.arange(count) / max(count, 1)


CURVES = {
    "cosine": cosine,
    "tutorial_cosine": tutorial_cosine,
    "linear": linear,
    "poly": poly,
    "steps": steps,
    "step": step,
    "thirds": thirds,
}


def is_decayed(name: str, rule: str) -> bool:
    """Whether a parameter, by its name in PyTorch's spelling of modules, has weight decay.

    `norms_and_biases` (MindSpore's tutorial and zoo) spares both; `named_bn` (NVIDIA) spares what
    has `bn` in its name, so that shortcut norms and the classifier's bias are decayed;
    `everything` (torchvision) spares nothing.
    """
    leaf = name.rpartition(".")[2]
    if rule == "norms_and_biases":
        return leaf not in ("gamma", "beta", "bias")
    return rule == "everything" or not re.search("bn", name)


def parameter_groups(parameters: list, train: Any, lr: np.ndarray) -> list[dict]:
    """The optimizer's two groups; `parameters` are the trainable ones in the network's order.

    What is not decayed has no rate of its own with LARS either (`adapted`).
    """
    groups = []
    for decayed in (True, False):
        members = [p for p in parameters if is_decayed(p.name, train.decay) == decayed]
        weight_decay = train.weight_decay if decayed else 0.0
        groups.append(
            {"params": members, "lr": lr, "weight_decay": weight_decay, "adapted": decayed}
        )
    return groups
