"""Gradients of all weights at once: packing, overflow check, AllReduce, norm, clipping factor.

The gradients are split into segments, runs of neighbouring weights, with one AllReduce each.
`run.all_reduce` gives layer names, last indices, or `none` (one segment).
scripts/analysis/plan_allreduce.py finds the best split. Indices count parameters in the order of
the network, which the optimizers keep. The backward pass completes the last segment first, so it is
sent while the others are computed.
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops.auto_generate import SplitWithSize

from utils.nn import kernels
from utils.nn.kernels.plain import take_element
from utils.runtime import Runtime
from utils.settings import Run

PACKED = 128  # with 400, the sizes of a split alone exceed the compiler's call depth
MOST_SEGMENTS = 8  # the bound of MindSpore's own setting of fusion on HCCL


class FiniteCheck(nn.Cell):
    """Whether the gradients of an update are finite, by themselves or by their norm if it is known.

    An overflow gives gradients that are infinite or not a number.
    """

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.all_finite = kernels.current().all_finite()

    def construct(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        return self.all_finite(grads) if norm is None else ops.isfinite(norm)


def create_counter(name: str, dtype: Any = mstype.int32) -> Parameter:
    return Parameter(Tensor(0, dtype), name=name, requires_grad=False)


class Packing(nn.Cell):
    """Gradients joined to one-dimensional arrays, one for each group, before those in no group.

    One kernel then serves all gradients of a group: an AllReduce, a norm, a product. `groups` are
    ascending indices of weights.
    """

    def __init__(self, weights: tuple, groups: Sequence[Sequence[int]]):
        super().__init__(auto_prefix=False)
        sizes = [weight.size for weight in weights]
        self.groups: tuple = ()
        for group in groups:
            parts = [tuple(group[k : k + PACKED]) for k in range(0, len(group), PACKED)]
            self.groups += (tuple((part, tuple(sizes[i] for i in part)) for part in parts),)
        joined = [i for group in groups for i in group]
        self.others = tuple(i for i in range(len(weights)) if i not in joined)
        order = (*joined, *self.others)
        self.positions = tuple(order.index(i) for i in range(len(weights)))
        self.shapes = tuple(weights[i].shape for i in order)
        # Loops, also those in ops.cat and ops.split, would nest functions too deeply to compile.
        self.map = ops.HyperMap()
        self.concat = ops.Concat(0)
        self.split = SplitWithSize()

    def construct(self, grads: tuple) -> tuple:
        packed = ()
        for group in self.groups:
            parts = ()
            for indices, _ in group:
                parts += (self.concat(self.map(ops.partial(take_flat, grads), indices)),)
            packed += (parts[0] if len(group) == 1 else self.concat(parts),)
        if self.others == ():
            return packed
        return packed + self.map(ops.partial(take_element, grads), self.others)

    def unpack(self, packed: tuple) -> tuple:
        """The gradients in the order of the weights."""
        grads = ()
        for k, group in enumerate(self.groups):
            parts = (packed[k],)
            if len(group) > 1:
                parts = self.split(packed[k], tuple([sum(sizes) for _, sizes in group]), 0)
            for part, (_, sizes) in zip(parts, group):
                grads += tuple(self.split(part, sizes, 0))
        grads = self.map(ops.reshape, grads + packed[len(self.groups) :], self.shapes)
        return self.map(ops.partial(take_element, grads), self.positions)


def choose_packing(weights: tuple, ends: Sequence[int], rt: Runtime) -> Packing:
    """What joins the gradients of an AllReduce segment; on one device, the one-dimensional ones.

    Half of the weights or more are biases and scales of norms. `ends`: last index of each segment.
    """
    if rt.size > 1:
        segments = segments_of(ends)
        return Packing(weights, [range(first, last + 1) for first, last in segments])
    small = [i for i, weight in enumerate(weights) if weight.ndim == 1]
    return Packing(weights, [small[k : k + PACKED] for k in range(0, len(small), PACKED)])


class SegmentSum(nn.Cell):
    """Sums arrays over the ranks, by one AllReduce each.

    The attribute `index` of an AllReduce, from 1 on, names the segment in MindSpore's graphs.
    """

    def __init__(self, segments: int):
        super().__init__(auto_prefix=False)
        self.operators = tuple(ops.AllReduce() for _ in range(segments))
        for index, operator in enumerate(self.operators, 1):
            operator.add_prim_attr("index", index)
        self.map = ops.HyperMap()

    def construct(self, arrays: tuple) -> tuple:
        return self.map(apply, self.operators, arrays)


def apply(operator: Callable, x: Tensor) -> Tensor:
    return operator(x)


def take_flat(values: tuple, index: int) -> Tensor:
    return ops.reshape(values[index], (-1,))


def multiply(factor: Union[float, Tensor], x: Tensor) -> Tensor:
    return x * factor


def split_all_reduce(net: nn.Cell, run: Run, freezes: bool = False) -> list[int]:
    """The last indices of the segments of `run.all_reduce`, which the train step takes.

    `freezes`: with `train.freeze`, `run.all_reduce` counts what that freezes, too; norms that only
    `train.batch_norm` freezes are not counted.

    Raises ValueError for an unknown layer, an index out of range, or too many segments.
    """
    counted = names = [p.name for p in net.trainable_params()]
    if freezes:
        counted = [p.name for p in net.get_parameters() if "moving_" not in p.name]
    # Last index of every segment that has a trained parameter, counted among these.
    trained = np.cumsum(np.isin(counted, names))
    ends = segment_ends(counted, run.all_reduce)
    return sorted({int(trained[end]) - 1 for end in ends if trained[end]})


def segments_of(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) index of the segments that end at `ends`, ascending."""
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends))


def segment_ends(names: Sequence[str], split: Union[str, Sequence[Union[int, str]]]) -> list[int]:
    """Last index of every segment, ascending; the last is always len(names) - 1.

    A layer is named by one or more parts of its dotted path, and means its last parameter.
    """
    ends = []
    for entry in [] if isinstance(split, str) else split:
        if isinstance(entry, int):
            inside = [entry] if 0 <= entry < len(names) else []
        else:  # a whole path is preferred to a part of one
            whole = [i for i, name in enumerate(names) if f"{name}.".startswith(f"{entry}.")]
            inside = whole or [i for i, name in enumerate(names) if f".{entry}." in f".{name}."]
        if not inside:
            raise ValueError(f"run.all_reduce: no trainable parameter is at {entry}")
        ends.append(inside[-1])
    if ends != sorted(set(ends)):
        raise ValueError(f"run.all_reduce: the segments end at {ends}, which is not ascending")
    if not ends or ends[-1] != len(names) - 1:
        ends.append(len(names) - 1)
    if len(ends) > MOST_SEGMENTS:
        raise ValueError(f"run.all_reduce: {len(ends)} segments; at most {MOST_SEGMENTS}")
    return ends
