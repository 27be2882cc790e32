"""Splits the gradients into segments, runs of neighbouring weights, with one AllReduce each.

`run.all_reduce` gives layer names, last indices, or `none` (one segment).
scripts/analysis/plan_allreduce.py finds the best split. Indices count parameters in the order of
the network, which the optimizers keep. The backward pass completes the last segment first, so it is
sent while the others are computed.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Union

import numpy as np
from mindspore import nn

from utils.settings import Run

MOST_SEGMENTS = 8  # the bound of MindSpore's own setting of fusion on HCCL

Segments = list[tuple[int, int, int]]  # last index, tensors, bytes


def split_all_reduce(
    net: nn.Cell, optimizer: nn.Optimizer, run: Run, freezes: bool = False
) -> Segments:
    """The segments of `run.all_reduce`, whose ends the train step takes.

    `freezes`: with `train.freeze`, `run.all_reduce` counts what that freezes, too; norms that only
    `train.batch_norm` freezes are not counted.

    Raises ValueError for an unknown layer, an index out of range, too many segments, or an
    optimizer whose order of parameters differs from the network's.
    """
    names = [p.name for p in optimizer.parameters]
    trained = [p.name for p in net.trainable_params()]
    if names != trained:
        pairs = enumerate(zip_longest(names, trained))
        i, (own, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        raise ValueError(
            f"run.all_reduce: parameter {i} is {own} for the optimizer and {other} for the "
            "network; a split would be of other gradients"
        )
    sizes = [p.size * p.itemsize for p in optimizer.parameters]
    ends = segment_ends(names, run.all_reduce) if not freezes else find_ends(net, names, run)
    segments = segments_of(ends)
    return [(last, last - first + 1, sum(sizes[first : last + 1])) for first, last in segments]


def find_ends(net: nn.Cell, trained: Sequence[str], run: Run) -> list[int]:
    """Last index of every segment that has a trained parameter, counted among these."""
    names = [p.name for p in net.get_parameters() if "moving_" not in p.name]
    ends = segment_ends(names, run.all_reduce)
    counts = np.cumsum(np.isin(names, trained))
    return sorted({int(counts[end]) - 1 for end in ends if counts[end]})


def segments_of(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) index of the segments that end at `ends`, ascending."""
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends))


def segment_ends(names: Sequence[str], split: Union[str, Sequence[Union[int, str]]]) -> list[int]:
    """Last index of every segment, ascending; the last is always len(names) - 1."""
    entries = [] if isinstance(split, str) else split
    ends = [layer_end(names, entry) if isinstance(entry, str) else entry for entry in entries]
    for end in ends:
        if not 0 <= end < len(names):
            raise ValueError(f"run.all_reduce: {end} is not among the indices 0..{len(names) - 1}")
    if ends != sorted(set(ends)):
        raise ValueError(f"run.all_reduce: the segments end at {ends}, which is not ascending")
    if not ends or ends[-1] != len(names) - 1:
        ends.append(len(names) - 1)
    if len(ends) > MOST_SEGMENTS:
        raise ValueError(f"run.all_reduce: {len(ends)} segments; at most {MOST_SEGMENTS}")
    return ends


def layer_end(names: Sequence[str], layer: str) -> int:
    """Index of the last parameter of a layer, named by one or more parts of its dotted path."""
    # A whole path is preferred to a part of one.
    whole = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{layer}.")]
    inside = whole or [i for i, name in enumerate(names) if f".{layer}." in f".{name}."]
    if not inside:
        raise ValueError(f"run.all_reduce: no trainable parameter lies in a layer named {layer}")
    if inside[-1] - inside[0] != len(inside) - 1:  # others lie between them
        first, last = (names[i].rpartition(".")[0] for i in (inside[0], inside[-1]))
        raise ValueError(
            f"run.all_reduce: {layer} names several layers, from {first} to {last}; "
            "give more of the path"
        )
    return inside[-1]
