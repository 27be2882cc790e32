"""AllReduce in segments: which gradients travel together.

`run.all_reduce` gives layer names, last indices, `auto` (planned for `run.cluster`) or `none` (one
segment). Segments count in the network's order of parameters, which the optimizers keep; the
backward pass finishes the last segment first, so it travels while the others are computed.
"""

from collections.abc import Sequence
from typing import Union

import mindspore as ms
from mindspore import nn

from utils.config import Run
from utils.distributed.fusion_planner import MOST_SEGMENTS, plan, segments_of
from utils.distributed.gradient_timing import Backward, count_backward, read_backward
from utils.nn.complexity import count_layers
from utils.runtime import Runtime

Segments = list[tuple[int, int, int]]  # last index, tensors, bytes


def split_all_reduce(
    net: nn.Cell, optimizer: nn.Optimizer, run: Run, rt: Runtime, clips: tuple[int, ...]
) -> Segments:
    """Tells MindSpore where the segments end; has to come before the train step is built.

    `clips` is the shape of a batch of clips as the network takes them. Raises ValueError for an
    unknown layer, an index out of range, too many segments, or an optimizer in another order than
    the network.
    """
    names = [p.name for p in optimizer.parameters]
    check_order(names, [p.name for p in net.trainable_params()])
    sizes = [p.size * p.itemsize for p in optimizer.parameters]
    if run.all_reduce == "auto" and rt.size > 1:
        ends = plan(backward_of(net, names, sizes, run, clips), run.cluster, rt.size).ends
    else:
        ends = segment_ends(names, run.all_reduce)
    if rt.size > 1:
        ms.set_auto_parallel_context(all_reduce_fusion_config=ends)
    return [
        (last, last - first + 1, sum(sizes[first : last + 1])) for first, last in segments_of(ends)
    ]


def reduce_separately(weights: ms.ParameterTuple) -> nn.Cell:
    """A reducer with one AllReduce for every gradient, in place of the train step's own.

    For dry runs: HCCL takes no more than MOST_SEGMENTS. Has to come before the step is compiled.
    """
    ms.set_auto_parallel_context(all_reduce_fusion_config=list(range(len(weights))))
    return nn.DistributedGradReducer(weights, mean=False)


def backward_of(
    net: nn.Cell, names: Sequence[str], sizes: Sequence[int], run: Run, clips: tuple[int, ...]
) -> Backward:
    """When gradients are complete: as measured, or else as counted from the operations."""
    if run.gradient_profile:
        return read_backward(run.gradient_profile, names, sizes)
    batch, *clip = clips
    return count_backward(names, sizes, count_layers(net, tuple(clip)), batch, run.cluster)


def check_order(given: Sequence[str], network: Sequence[str]) -> None:
    """A split means other gradients where the optimizer has another order than the network."""
    for i, (mine, theirs) in enumerate(zip(given, network)):
        if mine != theirs:
            raise ValueError(
                f"run.all_reduce: parameter {i} is {mine} for the optimizer and {theirs} for the "
                "network; a split would be of other gradients"
            )
    if len(given) != len(network):
        raise ValueError(
            f"run.all_reduce: the optimizer has {len(given)} parameters, the network "
            f"{len(network)} that are trained"
        )


def segment_ends(names: Sequence[str], asked: Union[str, Sequence[Union[int, str]]]) -> list[int]:
    """Last index of every segment, ascending; the last is always len(names) - 1.

    `auto`, which only many devices need, is one segment here, like `none`.
    """
    asked = [] if isinstance(asked, str) else asked
    ends = [layer_end(names, entry) if isinstance(entry, str) else entry for entry in asked]
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
    inside = indices_inside(names, layer)
    if not inside:
        raise ValueError(f"run.all_reduce: no trainable parameter lies in a layer named {layer}")
    if not is_run(inside):
        first, last = (names[i].rpartition(".")[0] for i in (inside[0], inside[-1]))
        raise ValueError(
            f"run.all_reduce: {layer} names several layers, from {first} to {last}; "
            "give more of the path"
        )
    return inside[-1]


def indices_inside(names: Sequence[str], layer: str) -> list[int]:
    """Of the parameters of a layer. A whole path goes before a part of one."""
    whole = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{layer}.")]
    return whole or [i for i, name in enumerate(names) if f".{layer}." in f".{name}."]


def is_run(indices: list[int]) -> bool:
    return indices[-1] - indices[0] == len(indices) - 1


def layer_names(names: Sequence[str], ends: Sequence[int]) -> list[str]:
    """The shortest names that `segment_ends` reads as `ends`, one for each but the last."""
    return [layer_name(names, end) for end in ends[:-1]]


def layer_name(names: Sequence[str], end: int) -> str:
    parts = names[end].split(".")[:-1]
    for length in range(1, len(parts) + 1):
        for first in range(len(parts) - length + 1):
            candidate = ".".join(parts[first : first + length])
            inside = indices_inside(names, candidate)
            if not candidate[0].isdigit() and is_run(inside) and inside[-1] == end:
                return candidate
    return names[end]
