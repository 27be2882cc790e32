"""Gradients of all weights at once: packing, flags of overflow, reduction, clipping factor."""

from collections.abc import Sequence
from typing import Optional

import numpy as np
from mindspore import Tensor, amp, nn, ops
from mindspore.ops.auto_generate import NPUClearFloatStatusV2, SplitWithSize

from utils.distributed.fusion_planner import segments_of
from utils.nn.kernels.plain import take_element

PACKED = 128  # with 400, the sizes of a split alone exceed the compiler's call depth


def has_status_flags(device: str) -> bool:
    """Whether this is an Ascend 910A, whose arithmetic saturates and sets flags at an overflow."""
    return device == "Ascend" and bool(amp._ascend_910a_target())


class OverflowStatus(nn.Cell):
    """The overflow flags of an Ascend 910A: of all kernels since they were last cleared."""

    def clear(self) -> Tensor:
        return NPUClearFloatStatusV2()(Tensor(np.zeros(8, np.int32)))

    def is_clear(self, after: tuple) -> Tensor:
        """Whether no kernel before those of `after` overflowed; clears the flags."""
        return amp.all_finite(after)


class Packing(nn.Cell):
    """Gradients with the one-dimensional ones in arrays of up to PACKED each, which come first.

    Half of the weights or more are biases and scales of norms: one kernel serves all of an array.
    """

    def __init__(self, weights: tuple, active: bool):
        super().__init__(auto_prefix=False)
        small = [i for i, weight in enumerate(weights) if weight.ndim == 1] if active else []
        self.groups = tuple(tuple(small[k : k + PACKED]) for k in range(0, len(small), PACKED))
        self.sizes = tuple(tuple(weights[i].size for i in group) for group in self.groups)
        self.large = tuple(i for i in range(len(weights)) if i not in small)
        packed = (*small, *self.large)
        self.positions = tuple(packed.index(i) for i in range(len(weights)))
        # Loops, also those in ops.cat and ops.split, would nest functions too deeply to compile.
        self.map = ops.HyperMap()
        self.concat = ops.Concat(0)
        self.split = SplitWithSize()

    def construct(self, grads: tuple) -> tuple:
        if self.groups == ():
            return grads
        packed = ()
        for group in self.groups:
            packed += (self.concat(self.map(ops.partial(take_element, grads), group)),)
        if self.large == ():
            return packed
        return packed + self.map(ops.partial(take_element, grads), self.large)

    def unpack(self, packed: tuple) -> tuple:
        """The gradients in the order of the weights."""
        if self.groups == ():
            return packed
        grads = ()
        for k, sizes in enumerate(self.sizes):
            grads += tuple(self.split(packed[k], sizes, 0))
        grads += packed[len(self.groups) :]
        return self.map(ops.partial(take_element, grads), self.positions)


class SegmentReducer(nn.Cell):
    """Sums gradients over the ranks by one AllReduce for each segment.

    For gradients that are reduced in a branch: MindSpore fuses only AllReduces outside of branches.
    `ends` are the last indices of the segments.
    """

    def __init__(self, weights: tuple, ends: Sequence[int]):
        super().__init__(auto_prefix=False)
        sizes = [weight.size for weight in weights]
        self.segments: tuple = ()
        for first, last in segments_of(ends):
            starts = range(first, last + 1, PACKED)
            chunks = tuple((start, min(start + PACKED, last + 1)) for start in starts)
            self.segments += (tuple((*chunk, tuple(sizes[slice(*chunk)])) for chunk in chunks),)
        self.map = ops.HyperMap()
        self.concat = ops.Concat(0)
        self.split = SplitWithSize()
        self.all_reduce = ops.AllReduce()

    def construct(self, grads: tuple) -> tuple:
        sums = ()
        for chunks in self.segments:
            packed = ()
            totals = ()
            for first, end, sizes in chunks:
                packed += (self.concat(self.map(flatten, grads[first:end])),)
                totals += (sum(sizes),)
            packed = self.split(self.all_reduce(self.concat(packed)), totals, 0)
            for k, (_, _, sizes) in enumerate(chunks):
                sums += tuple(self.split(packed[k], sizes, 0))
        return self.map(reshape_like, sums, grads)


def flatten(x: Tensor) -> Tensor:
    return ops.reshape(x, (-1,))


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return ops.reshape(x, like.shape)


def clip_factor(norm: Tensor, factor: Optional[Tensor], limit: float) -> Tensor:
    """What limits the total norm, PyTorch's rule: factor * min(1, limit / (norm * factor + 1e-6)).

    `norm` is of the gradients before `factor` is applied to them.
    """
    one = Tensor(np.float32(1))
    if factor is None:
        return ops.minimum(one, limit / (norm + 1e-6))
    return factor * ops.minimum(one, limit / (norm * factor + 1e-6))
