"""Classes of training samples: which part of them a run uses, and how often an epoch has each.

A class is a pair (index of the data set, label); `classes` are those of all samples, int (N, 2).
Each data set keeps its number of samples in an epoch.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np

from utils.log import log
from utils.runtime import Runtime
from utils.settings import NetworkConfig

BALANCE_POWERS = {"none": 1.0, "sqrt": 0.5, "full": 0.0}


def list_classes(records: Sequence[Any]) -> np.ndarray:
    """The classes of records with `dataset_index` and `label`.

    With several labels they count as one class.
    """
    labels = (record.label if isinstance(record.label, int) else 0 for record in records)
    pairs = [(record.dataset_index, label) for record, label in zip(records, labels)]
    return np.array(pairs, np.int64)


def count_labels(labels: Iterable[tuple[int, ...]], classes: int) -> np.ndarray:
    """The samples that have each class, int (classes,), if they have several labels."""
    flat = np.fromiter((label for labels_of_one in labels for label in labels_of_one), np.int64)
    return np.bincount(flat, minlength=classes)


def choose_order(
    cfg: NetworkConfig, rt: Runtime, list_classes: Callable[[], np.ndarray]
) -> dict[str, Any]:
    """The arguments of a `TrainSampler`; logs how often an epoch has a class.

    `list_classes` is called if they are needed.
    """
    balance = cfg.data.balance
    needs_classes = balance != "none" or cfg.train.class_weights == "balanced"
    classes = list_classes() if needs_classes else None
    if balance != "none":
        groups = group_samples(classes)
        draws = compute_draws(groups, balance)
        sizes = [len(samples) for samples in groups.values()]
        log.info(
            "data.balance %s: an epoch has %.4g to %.4g samples of a class; the list has %d to %d",
            *(balance, draws.min(), draws.max(), min(sizes), max(sizes)),
        )
    order = {"rank": rt.rank, "size": rt.size, "seed": rt.seed}
    return {**order, "batch": cfg.data.batch, "classes": classes, "balance": balance}


def group_samples(classes: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """{class: its samples}, both ascending."""
    unique, inverse = np.unique(classes, axis=0, return_inverse=True)
    order = np.argsort(inverse.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(inverse.reshape(-1)))[:-1]
    return {(int(k), int(label)): part for (k, label), part in zip(unique, np.split(order, ends))}


def choose_fraction(classes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """The samples that `data.fraction` keeps, ascending: of each class that part, at least one.

    They depend on the seed only, and those of a smaller fraction are among those of a larger one.
    Logs their number.
    """
    parts = []
    for (k, label), samples in group_samples(classes).items():
        count = max(1, round(fraction * len(samples)))
        rng = np.random.RandomState([seed, k, label])
        parts.append(rng.permutation(samples)[:count])
    chosen = np.sort(np.concatenate(parts))
    log.info("data.fraction %g: %d of %d samples", fraction, len(chosen), len(classes))
    return chosen


def compute_draws(groups: dict[tuple[int, int], np.ndarray], balance: str) -> np.ndarray:
    """The expected samples of each class in an epoch of as many samples as there are."""
    sizes = np.array([len(samples) for samples in groups.values()], np.float64)
    sets = np.array([k for k, _ in groups])
    powers = sizes ** BALANCE_POWERS[balance]
    scale = np.bincount(sets, sizes) / np.maximum(np.bincount(sets, powers), 1e-9)
    return powers * scale[sets]


def draw_balanced(
    groups: dict[tuple[int, int], np.ndarray], balance: str, rng: np.random.RandomState
) -> np.ndarray:
    """A permutation of an epoch in which each class has its `compute_draws`, rounded at random.

    A class with fewer samples repeats all of them equally often, to within one.
    """
    draws = np.cumsum(compute_draws(groups, balance))
    total = sum(map(len, groups.values()))
    draws[-1] = total
    counts = np.diff(np.floor(np.concatenate([[0.0], draws]) + rng.uniform()))
    parts = []
    for samples, count in zip(groups.values(), counts.astype(int)):
        repeats, remainder = divmod(count, len(samples))
        parts += [samples] * repeats + [rng.permutation(samples)[:remainder]]
    return rng.permutation(np.concatenate(parts))
