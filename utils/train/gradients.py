"""Gradients of all weights at once: packing, overflow check, AllReduce, norm, clipping factor."""

from collections.abc import Sequence
from typing import Any, Optional, Union

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype
from mindspore.ops.auto_generate import NPUClearFloatStatusV2, SplitWithSize

from utils.distributed.gradient_fusion import segments_of
from utils.nn import kernels
from utils.nn.kernels.plain import take_element
from utils.runtime import Runtime

PACKED = 128  # with 400, the sizes of a split alone exceed the compiler's call depth


class FiniteCheck(nn.Cell):
    """Whether the gradients of an update are finite, by themselves or by their norm if it is known.

    An overflow gives gradients that are infinite or not a number.
    """

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.all_finite = kernels.current().all_finite()

    def clear(self, clip: Tensor) -> Tensor:
        return clip

    def record(self, grads: tuple) -> tuple:
        return grads

    def construct(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        return self.all_finite(grads) if norm is None else ops.isfinite(norm)

    def reset(self) -> None:
        pass


class StatusFlagCheck(nn.Cell):
    """The same on an Ascend 910A, whose arithmetic saturates and sets flags at an overflow.

    The flags are those of all kernels of this rank's device since they were cleared.
    """

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.overflow_count = create_counter("overflow_count")  # micro-batches of this update

    def clear(self, clip: Tensor) -> Tensor:
        """The clip, after the flags are cleared; an evaluation may have set them."""
        return ops.depend(clip, self.clear_flags())

    def record(self, grads: tuple) -> tuple:
        """Counts a micro-batch that has set flags; its gradients do not wait for that."""
        overflow = 1 - self.are_flags_clear(grads).astype(mstype.int32)
        ops.assign_add(self.overflow_count, overflow)
        return grads

    def construct(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        return self.overflow_count == 0

    def reset(self) -> None:
        ops.assign(self.overflow_count, 0)

    def clear_flags(self) -> Tensor:
        return NPUClearFloatStatusV2()(Tensor(np.zeros(8, np.int32)))

    def are_flags_clear(self, after: tuple) -> Tensor:
        """Whether no kernel before those of `after` overflowed; clears the flags."""
        return amp.all_finite(after)


def choose_finite_check(device: str) -> nn.Cell:
    has_status_flags = device == "Ascend" and amp._ascend_910a_target()
    return StatusFlagCheck() if has_status_flags else FiniteCheck()


def create_counter(name: str, dtype: Any = mstype.int32) -> Parameter:
    return Parameter(Tensor(0, dtype), name=name, requires_grad=False)


class Packing(nn.Cell):
    """Gradients with the one-dimensional ones in arrays of up to PACKED each, which come first.

    Half of the weights or more are biases and scales of norms: one kernel serves all of an array.
    """

    def __init__(self, weights: tuple):
        super().__init__(auto_prefix=False)
        small = [i for i, weight in enumerate(weights) if weight.ndim == 1]
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


def choose_reducer(weights: tuple, accumulates: bool, rt: Runtime) -> nn.Cell:
    """The Cell that sums gradients over the ranks, in the segments that `split_all_reduce` has set.

    MindSpore's own reducer runs an AllReduce for each gradient, and the compiler fuses those of a
    segment. It does not fuse inside an `if`, which accumulation needs. So SegmentReducer joins the
    gradients of a segment itself.
    """
    if accumulates:
        # The index of the last weight of each segment; without segments, one for all weights.
        ends = ms.get_auto_parallel_context("all_reduce_fusion_config")
        return SegmentReducer(weights, ends or [len(weights) - 1])
    reducer = nn.DistributedGradReducer(weights, mean=False)
    return CopyingReducer(reducer) if rt.device == "CPU" else reducer


class CopyingReducer(nn.Cell):
    """Sums copies of the gradients, for ranks on CPUs.

    A CPU kernel of MindSpore 2.10 that writes its gradient into a fused AllReduce fails with
    "Memory isn't enough". The product with a Parameter is a copy that the compiler keeps.
    """

    def __init__(self, reducer: nn.Cell):
        super().__init__(auto_prefix=False)
        self.reducer = reducer
        self.one = Parameter(Tensor(1.0, mstype.float32), name="one", requires_grad=False)
        self.map = ops.HyperMap()

    def construct(self, grads: tuple) -> tuple:
        return self.reducer(self.map(ops.partial(multiply, self.one), grads))


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
            for start, end, sizes in chunks:
                packed += (self.concat(self.map(flatten, grads[start:end])),)
                totals += (sum(sizes),)
            packed = self.split(self.all_reduce(self.concat(packed)), totals, 0)
            for k, (_, _, sizes) in enumerate(chunks):
                sums += tuple(self.split(packed[k], sizes, 0))
        return self.map(reshape_like, sums, grads)


def flatten(x: Tensor) -> Tensor:
    return ops.reshape(x, (-1,))


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return ops.reshape(x, like.shape)


def clip_factor(norm: Tensor, factor: Union[float, Tensor], limit: float) -> Tensor:
    """What limits the total norm, PyTorch's rule: factor * min(1, limit / (norm * factor + 1e-6)).

    `norm` is of the gradients before `factor` is applied to them.
    """
    one = Tensor(1.0, mstype.float32)
    return factor * ops.minimum(one, limit / (norm * factor + 1e-6))


def multiply(factor: Union[float, Tensor], x: Tensor) -> Tensor:
    return x * factor
