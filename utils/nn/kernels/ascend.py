"""The operators of the networks for Ascend: fewer kernels, and none on the AI CPU.

The dry runs of `scripts/dry_run` count the kernels. Those marked with Ext are of CANN's aclnn.
"""

from functools import partial
from typing import Callable, Optional

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import (
    BatchNormExt,
    ConstantPadND,
    GeluExt,
    InplaceMul,
    LayerNormExt,
    LinalgVectorNorm,
    MeanExt,
    NPUClearFloatStatusV2,
)

from utils.nn.kernels import plain
from utils.nn.kernels.plain import BATCH_WEIGHT, EPSILON, Factory, Operator, Plain

LOWEST_HALF = -65504.0


class Gelu(Operator):
    """One kernel, exact."""

    def construct(self, x: Tensor) -> Tensor:
        return GeluExt()(x, "none")


class BatchNorm(Operator):
    """One kernel forward and one backward; ops.BatchNorm has two of each.

    With `fixed` statistics ops.BatchNorm, but for bfloat16, which it does not take.
    """

    def __init__(self, fixed: bool = False):
        super().__init__()
        self.trains = not fixed
        self.norm = BatchNormExt()
        self.fixed = ops.BatchNorm(is_training=False, epsilon=EPSILON) if fixed else None

    def construct(self, x, gamma, beta, mean, variance) -> tuple:
        if self.fixed is not None and x.dtype != mstype.bfloat16:
            return self.fixed(x, gamma, beta, mean, variance)
        return self.norm(x, gamma, beta, mean, variance, self.trains, BATCH_WEIGHT, EPSILON)


class LayerNorm(Operator):
    """Takes float16 with float32 weights."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.norm = LayerNormExt()

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return self.norm(x, gamma.shape, gamma, beta, self.eps)[0]


class PaddedMaxPool2d(nn.Cell):
    """Max pool as two kernels of the AI core: pad with the lowest float16, then pool.

    MindSpore's own padded max pool runs on the AI CPU, forward and backward. There is no kernel
    for bfloat16: it pools in float32, which is exact.
    """

    def __init__(self, kernel: int, stride: int):
        super().__init__()
        self.half = (kernel - 1) // 2
        # Not nn.MaxPool2d, a Cell, whose input amp casts.
        self.pool = ops.MaxPool(kernel_size=kernel, strides=stride, pad_mode="valid")

    def construct(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if dtype == mstype.bfloat16:
            x = ops.cast(x, mstype.float32)
        lowest = ops.cast(Tensor(LOWEST_HALF, mstype.float32), x.dtype)
        return ops.cast(self.pool(ops.PadV3()(x, (self.half,) * 4, lowest)), dtype)


def broadcast(x: Tensor, shape: tuple) -> Tensor:
    """As it is: the kernels broadcast."""
    return x


def channel_means(x: Tensor) -> Tensor:
    """One kernel, which sums in float32."""
    axes = (2, 3) if x.ndim == 4 else (2, 3, 4)
    return ops.cast(MeanExt()(x, axes, True, mstype.float32), x.dtype)


def shift_frames(x: Tensor, by: int) -> Tensor:
    """One kernel that crops and pads."""
    return x if by == 0 else ConstantPadND()(x, (0, 0, 0, 0, -by, by), 0.0)


def stack(arrays: tuple, axis: int) -> Tensor:
    """In float16 Stack is fewer kernels than Concat.

    For a 910A with several ranks, MindSpore 2.10 finds no kernel of a float32 Stack (dry run).
    """
    if arrays[0].dtype != mstype.float32:
        return ops.stack(arrays, axis)
    shape = arrays[0].shape
    parts = ()
    for array in arrays:
        parts += (ops.reshape(array, (*shape[:axis], 1, *shape[axis:])),)
    return ops.Concat(axis)(parts)


def project_and_pool(
    x: Tensor, qkv: nn.Cell, pools: tuple, heads: int, grid: tuple, has_token: bool
) -> tuple:
    """One matrix product, and one pooling for keys and values."""
    wide = qkv(x, 0, 1)  # (B, 3*h*d, N)
    width = wide.shape[1] // 3
    size = width // heads
    class_tokens = (None, None, None)
    if has_token:
        class_tokens = ops.split(wide[:, :, :1], width, 1)
        wide = wide[:, :, 1:]
    q, kv = ops.split(wide, (width, 2 * width), 1)
    q = pools[0](ops.reshape(q, (-1, size, *grid)))
    # All heads of the keys use the same kernels, so do all heads of the values.
    kernels = stack((pools[1].weight, pools[2].weight), 0)  # (2, d, 1, 3, 3, 3)
    kernels = ops.expand_dims(ops.cast(kernels, kv.dtype), 1)
    shape = (2, heads, *kernels.shape[2:])
    kernels = ops.reshape(ops.broadcast_to(kernels, shape), (2 * width, *shape[3:]))
    kv = pools[1].conv(ops.reshape(kv, (-1, 2 * width, *grid)), kernels)
    k, v = ops.split(kv, width, 1)
    parts = ()
    for part, class_token in zip((q, k, v), class_tokens):
        parts += (plain.convert_to_tokens(part, class_token=class_token, heads=heads, size=size),)
    return parts


@constexpr
def mark_others(count: int) -> Tensor:
    """(1, 1, count, 1): 0 for the first token, 1 for the others."""
    return Tensor((np.arange(count) > 0).astype(np.float32).reshape(1, 1, count, 1))


def clear_class_token(x: Tensor) -> Tensor:
    """One kernel."""
    return x * ops.cast(mark_others(x.shape[2]), x.dtype)


class VectorNorm(Operator):
    """One kernel an array."""

    def __init__(self):
        super().__init__()
        self.map = ops.HyperMap()

    def construct(self, arrays: tuple) -> Tensor:
        return compute_norm(ops.stack(self.map(compute_norm, arrays)))


def compute_norm(x: Tensor) -> Tensor:
    return LinalgVectorNorm()(x, 2.0, None, False, mstype.float32)


class AdamW(Operator):
    """Decays the weights in place, then moves them by Adam's kernel.

    AdamWeightDecay comes with two more kernels, which subtract constants; these come with none.
    """

    def __init__(self, groups: list[dict], weights: tuple, betas: tuple, factors: np.ndarray):
        super().__init__()
        decayed = [group for group in groups if group["weight_decay"]]
        self.decayed = tuple(ParameterTuple(group["params"]) for group in decayed)
        self.factors = tuple(
            Tensor(1 - np.float64(group["lr"]) * group["weight_decay"], mstype.float32)
            for group in decayed
        )
        self.betas = betas
        self.product = InplaceMul()
        self.adam = ops.Adam()
        self.zero = Tensor(0.0, mstype.float32)
        self.map = ops.HyperMap()

    def construct(self, gradients, weights, moment1, moment2, rates, epsilon, step) -> tuple:
        done = ()
        for i in range(len(self.decayed)):
            factor = ops.reshape(ops.gather(self.factors[i], step, 0), ())
            done += (self.map(ops.partial(shrink, self.product, factor), self.decayed[i]),)
        epsilon = ops.depend(epsilon, done)
        betas = (Tensor(self.betas[0], mstype.float32), Tensor(self.betas[1], mstype.float32))
        move = ops.partial(move_weight, self.adam, self.zero, betas, epsilon)
        return self.map(move, gradients, weights, moment1, moment2, rates)


def shrink(product, factor: Tensor, weight: Tensor) -> Tensor:
    return product(weight, factor)


def move_weight(kernel, zero, betas, epsilon, gradient, weight, mean, variance, rate) -> tuple:
    """Without the kernel's own bias correction: its powers of the betas are 0."""
    return kernel(weight, mean, variance, zero, zero, rate, betas[0], betas[1], epsilon, gradient)


class StatusFlagCheck(nn.Cell):
    """`gradients.FiniteCheck` on a 910A, whose arithmetic saturates and sets flags at an overflow.

    The flags cover all kernels of this rank's device since they were cleared.
    """

    def __init__(self):
        super().__init__(auto_prefix=False)
        zero = Tensor(0, mstype.int32)  # micro-batches of this update with an overflow
        self.overflow_count = Parameter(zero, name="overflow_count", requires_grad=False)

    def clear(self, clip: Tensor) -> Tensor:
        """The clip, after the flags are cleared; an evaluation may have set them."""
        return ops.depend(clip, self.clear_flags())

    def record(self, grads: tuple) -> tuple:
        """Counts a micro-batch that has set flags; its gradients do not wait for that."""
        ops.assign_add(self.overflow_count, 1 - self.are_flags_clear(grads).astype(mstype.int32))
        return grads

    def construct(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        return self.overflow_count == 0

    def reset(self) -> None:
        ops.assign(self.overflow_count, 0)

    def clear_flags(self) -> Tensor:
        return NPUClearFloatStatusV2()(Tensor(np.zeros(8, np.int32)))

    def are_flags_clear(self, after: tuple) -> Tensor:
        """Whether no kernel before `after` overflowed; clears the flags."""
        return amp.all_finite(after)


class Ascend(Plain):
    """The operators of an Ascend."""

    broadcast = staticmethod(broadcast)
    shift_frames = staticmethod(shift_frames)
    stack = staticmethod(stack)
    project_and_pool = staticmethod(project_and_pool)
    clear_class_token = staticmethod(clear_class_token)
    scale_channels = staticmethod(ops.mul)
    channel_means = staticmethod(channel_means)
    batch_norm: Factory = BatchNorm
    fixed_batch_norm: Factory = staticmethod(partial(BatchNorm, fixed=True))
    layer_norm: Factory = LayerNorm
    linear: Factory = ops.Dense  # product and bias in one kernel
    gelu: Factory = Gelu
    select_rows: Factory = staticmethod(partial(plain.SelectRows, half=True))
    vector_norm: Factory = VectorNorm
    adamw: Factory = AdamW
    max_pool: Callable[..., nn.Cell] = PaddedMaxPool2d

    def all_finite(self) -> Callable:
        """MindSpore's check if it is one kernel, which depends on CANN; else it is four an array.

        AllFinite is built for some versions of CANN only.
        """
        return amp.all_finite if amp._enable_all_finite() else super().all_finite()
