"""AllReduce in segments: which gradients travel together, by layer names or by last indices.

Segments count in the optimizer's order of parameters, which here is the network's (`order_params`).
Backpropagation finishes the last segment first, so it travels while the others are computed.
"""

from collections.abc import Sequence
from typing import Union

import mindspore as ms
from mindspore import nn

from utils.runtime import Runtime

MOST_SEGMENTS = 8  # HCCL's limit


def split_all_reduce(
    optimizer: nn.Optimizer, asked: Sequence[Union[int, str]], rt: Runtime
) -> list[tuple[int, int, int]]:
    """Tells MindSpore where the segments end; has to come before the train step is built.

    Returns (last index, tensors, bytes) per segment. Raises ValueError for an unknown layer, an
    index out of range, or too many segments.
    """
    names = [p.name for p in optimizer.parameters]
    sizes = [p.size * p.itemsize for p in optimizer.parameters]
    ends = segment_ends(names, asked)
    if rt.size > 1 and len(ends) > 1:
        ms.set_auto_parallel_context(all_reduce_fusion_config=ends)
    starts = [0] + [end + 1 for end in ends[:-1]]
    return [(end, end - start + 1, sum(sizes[start : end + 1])) for start, end in zip(starts, ends)]


def segment_ends(names: Sequence[str], asked: Sequence[Union[int, str]]) -> list[int]:
    """Last index of every segment, ascending; the last is always len(names) - 1."""
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
    inside = [i for i, name in enumerate(names) if f".{layer}." in f".{name}."]
    if not inside:
        raise ValueError(f"run.all_reduce: no trainable parameter lies in a layer named {layer}")
    return inside[-1]
