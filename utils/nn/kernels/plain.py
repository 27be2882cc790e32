"""The operators of the networks, computed by MindSpore on any device: the definition of each.

An attribute of `Plain` is a function of arrays, or it gives one: a primitive, a function or a Cell
without weights. A layer calls it in `construct`. The other back ends are subclasses: they replace
operators, and keep signatures.
"""

from functools import partial
from typing import Callable, Optional, Union

import numpy as np
from mindspore import Tensor, amp, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import SiLU

EPSILON = 1e-5  # of batch norms
BATCH_WEIGHT = 0.1  # of a batch in the running statistics of batch norms
Factory = Callable[..., Callable]  # a class, called with the arguments of its operator


class Operator(nn.Cell):
    """A Cell without weights: a part of the layer that holds it."""


def make_zeros(shape: Union[int, tuple]) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))


def list_layers(cell: nn.Cell) -> list[nn.Cell]:
    """The Cells inside that are not operators."""
    return [inner for inner in cell.cells() if not isinstance(inner, Operator)]


class BatchNorm3d(Operator):
    """A batch norm of clips, computed by a 2-D one."""

    def __init__(self, norm: Callable):
        super().__init__()
        self.norm = norm

    def construct(self, x, gamma, beta, mean, variance) -> tuple:
        n, c, t, h, w = x.shape
        y = self.norm(ops.reshape(x, (n, c, t * h, w)), gamma, beta, mean, variance)[0]
        return (ops.reshape(y, x.shape),)


class NormalizeOverRanks(Operator):
    """A batch norm of (N, C, H, W), computed in float32 from the batches of all ranks together.

    All ranks have the same N, H and W. Each pass has one collective, of two numbers a channel. The
    gradient is that of the sum of all ranks' losses; those of gamma and beta are this rank's part.
    """

    def __init__(self, ranks: int, kernels: "Plain"):
        super().__init__()
        self.ranks = ranks
        self.broadcast = kernels.broadcast
        self.means = kernels.channel_means
        self.normalize = kernels.fixed_batch_norm()
        self.gather = ops.AllGather()
        self.all_reduce = ops.AllReduce()

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> tuple:
        """The output in the type of x, and the mean and biased variance of the batch, (C,)."""
        own_mean = self.average(ops.cast(x, mstype.float32))
        centred = ops.cast(x, mstype.float32) - self.spread(own_mean, x.shape)
        own = ops.stack((own_mean, self.average(centred * centred)))
        every = ops.reshape(self.gather(own), (self.ranks, 2, -1))
        means = every[:, 0]
        mean = means.mean(0)
        # No difference of large numbers: a mean may be many times the deviation.
        variance = (every[:, 1] + ops.square(means - mean)).mean(0)
        return self.normalize(x, gamma, beta, mean, variance)[0], mean, variance

    def bprop(self, x: Tensor, gamma: Tensor, beta: Tensor, out: tuple, dout: tuple) -> tuple:
        scale = ops.rsqrt(out[2] + EPSILON)
        centred = ops.cast(x, mstype.float32) - self.spread(out[1], x.shape)
        y = centred * self.spread(scale, x.shape)  # before gamma and beta
        dy = ops.cast(dout[0], mstype.float32)
        own = ops.stack((self.average(dy), self.average(dy * y)))
        means = self.all_reduce(own) / self.ranks
        dx = dy - self.spread(means[0], x.shape) - y * self.spread(means[1], x.shape)
        dx = dx * self.spread(gamma * scale, x.shape)
        sums = own * (x.size // x.shape[1])
        return ops.cast(dx, x.dtype), sums[1], sums[0]

    def average(self, x: Tensor) -> Tensor:
        """The means (C,) of this rank."""
        return ops.reshape(self.means(x).mean(0), (-1,))

    def spread(self, values: Tensor, shape: tuple) -> Tensor:
        """A number of every channel, for its map."""
        return self.broadcast(ops.reshape(values, (1, -1, 1, 1)), shape)


class SyncBatchNorm(Operator):
    """NormalizeOverRanks, which also moves the running statistics."""

    def __init__(self, ranks: int, kernels: "Plain"):
        super().__init__()
        self.ranks = ranks
        self.norm = NormalizeOverRanks(ranks, kernels)

    def construct(self, x, gamma, beta, mean, variance) -> tuple:
        y, batch_mean, batch_variance = self.norm(x, gamma, beta)
        count = self.ranks * x.size // x.shape[1]
        unbiased = batch_variance * (count / (count - 1))
        ops.assign(mean, mean * (1 - BATCH_WEIGHT) + batch_mean * BATCH_WEIGHT)
        ops.assign(variance, variance * (1 - BATCH_WEIGHT) + unbiased * BATCH_WEIGHT)
        return (y,)


class MatMul(Operator):
    """Products of (..., m, k) and (..., k, n); with `transpose`, the second is (..., n, k)."""

    def __init__(self, transpose: bool = False):
        super().__init__()
        self.product = ops.BatchMatMul(transpose_b=transpose)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.product(x, y)


class Linear(Operator):
    """(..., cin) to (..., cout); weight (cout, cin), bias (cout,)."""

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = ops.MatMul(transpose_b=True)(ops.reshape(x, (-1, weight.shape[1])), weight)
        return ops.reshape(ops.BiasAdd()(y, bias), (*x.shape[:-1], weight.shape[0]))


class ChannelsFirstLinear(Operator):
    """(B, N, cin) to (B, cout, N); weight (cout, cin), bias (cout,)."""

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = ops.broadcast_to(weight, (x.shape[0], *weight.shape))
        return ops.BiasAdd()(ops.BatchMatMul(transpose_b=True)(weight, x), bias)


class LayerNorm(Operator):
    """Over the last axis, computed in the type of `gamma`; the output has the input's type."""

    def __init__(self, eps: float):
        super().__init__()
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return ops.cast(self.norm(ops.cast(x, gamma.dtype), gamma, beta)[0], x.dtype)


class GELU(Operator):
    """x * Phi(x).

    MindSpore's own divides by a number. On a CPU, a kernel that broadcasts keeps an index of 16
    bytes for every element of its output as long as the graph lives. Multiplication by a number
    does not. If large maps must be broadcast, `ops.broadcast_to` is called first.
    """

    def construct(self, x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + ops.erf(x * 0.5**0.5))


def scale_channels(x: Tensor, factors: Tensor) -> Tensor:
    """(N, C, ...) times factors (N, C, 1, ...), which are broadcast along rows (see GELU)."""
    n, c = x.shape[:2]
    rows = ops.reshape(x, (n * c, -1))
    factors = ops.broadcast_to(ops.reshape(factors, (n * c, 1)), rows.shape)
    return ops.reshape(rows * factors, x.shape)


def channel_means(x: Tensor) -> Tensor:
    """The means (N, C, 1, ...) of (N, C, ...). The sums are float32: large ones exceed 65504.

    On a CPU sums along rows are ten times faster than sums along several axes.
    """
    n, c = x.shape[:2]
    rows = ops.reshape(x, (n * c, -1))
    means = ops.ReduceSum()(ops.cast(rows, mstype.float32), 1) * (1 / rows.shape[1])
    return ops.reshape(ops.cast(means, x.dtype), (n, c, *[1] * (x.ndim - 2)))


class SelectRows(Operator):
    """matrix @ table: rows of a table (length, d), or mixtures of two rows.

    In float32, or with `half` in float16 if the table is; a selection of rows does not round.
    """

    def __init__(self, matrix: np.ndarray, half: bool = False):
        super().__init__()
        self.matrix = (Tensor(matrix.astype(np.float32)),)  # amp does not cast a tensor in a tuple
        self.half = (Tensor(matrix.astype(np.float16)),) if half else None
        self.product = ops.MatMul()

    def construct(self, table: Tensor) -> Tensor:
        if self.half is not None and table.dtype == mstype.float16:
            return self.product(self.half[0], table)
        return self.product(self.matrix[0], ops.cast(table, mstype.float32))


class TemporalShift(Operator):
    """Moves channels of (N*T, C, H, W), T segments, one frame along the time axis.

    The first `fold` channels come from the next frame, as many from the previous one. Outside the
    clip there are zeros.
    """

    def __init__(self, segments: int, fold: int):
        super().__init__()
        self.segments = segments
        self.fold = fold

    def construct(self, x: Tensor) -> Tensor:
        fold = self.fold
        if fold == 0:
            return x
        nt, c, h, w = x.shape
        x = x.reshape(-1, self.segments, c, h, w)  # (N, T, C, H, W)
        zeros = ops.zeros_like(x[:, :1, :fold])
        from_next = ops.cat((x[:, 1:, :fold], zeros), axis=1)
        from_previous = ops.cat((zeros, x[:, :-1, fold : 2 * fold]), axis=1)
        x = ops.cat((from_next, from_previous, x[:, :, 2 * fold :]), axis=2)
        return x.reshape(nt, c, h, w)


def shift_frames(x: Tensor, by: int) -> Tensor:
    """Shifts (N, C, T, H, W) along T: frame i of the result is frame i + by, or zero outside."""
    if by == 0:
        return x
    zeros = ops.zeros((*x.shape[:2], abs(by), *x.shape[3:]), x.dtype)
    if by > 0:
        return ops.cat((x[:, :, by:], zeros), axis=2)
    return ops.cat((zeros, x[:, :, :by]), axis=2)


def convolve_channels(x: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """A 2-D convolution in groups, with padding (k - 1) / 2."""
    channels, _, kh, kw = weight.shape
    pad = (kh // 2, kh // 2, kw // 2, kw // 2)
    conv = ops.Conv2D(channels, (kh, kw), pad_mode="pad", pad=pad, stride=stride, group=groups)
    return conv(x, weight)


class Depthwise(Operator):
    """Forms `taps` and `frames` of a depthwise 3-D convolution: see `utils/nn/conv3d.py`."""

    def __init__(self, stride: int, form: str, kernels: "Plain"):
        super().__init__()
        self.stride = stride
        self.form = form
        self.shift_frames = kernels.shift_frames
        self.stack = kernels.stack

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        _, _, kt, kh, kw = weight.shape
        if self.form == "frames":
            # Output frame o of a channel multiplies input frame i with tap i - o + kt // 2.
            bands = ops.cast(make_tap_bands(c, t, kt), weight.dtype)
            weight = ops.BatchMatMul()(bands, ops.reshape(weight, (c, kt, kh * kw)))
            weight = ops.reshape(weight, (c * t, t, kh, kw))  # from (C, T*T, kh*kw)
            x = convolve_channels(ops.reshape(x, (n, c * t, h, w)), weight, self.stride, c)
            return ops.reshape(x, (x.shape[0], c, t, *x.shape[2:]))
        # The shifted copies of the clip are separate channels, (N, C*kt*T, H, W).
        taps = [tap for tap in range(kt) if -t < tap - kt // 2 < t]
        copies = ()
        for tap in taps:  # output frame i reads input frame i + tap - kt // 2
            copies += (self.shift_frames(x, tap - kt // 2),)
        k = len(taps)
        if k < kt:  # the kernel is longer than two clips
            weight = weight[:, :, taps[0] : taps[-1] + 1]
        weight = ops.broadcast_to(ops.reshape(weight, (c, k, 1, kh, kw)), (c, k, t, kh, kw))
        copies = self.stack(copies, 2)
        if kh == 1 and kw == 1 and self.stride == 1:
            y = copies * ops.reshape(weight, (1, c, k, t, 1, 1))
        else:
            channels = c * k * t
            weight = ops.reshape(weight, (channels, 1, kh, kw))
            x = ops.reshape(copies, (n, channels, h, w))
            y = convolve_channels(x, weight, self.stride, channels)
        return ops.reshape(y, (n, c, k, t, *y.shape[-2:])).sum(2)


@constexpr
def make_tap_bands(c: int, t: int, kt: int) -> Tensor:
    """(C, T*T, kt): 1 if output frame o reads input frame i through this tap, i - o + kt // 2."""
    frame = np.arange(t)
    tap = frame[None, :] - frame[:, None] + kt // 2  # (o, i)
    bands = (tap[..., None] == np.arange(kt)).reshape(t * t, kt)
    return Tensor(np.broadcast_to(bands, (c, *bands.shape)).astype(np.float32))


def project_and_pool(
    x: Tensor, qkv: nn.Cell, pools: tuple, heads: int, grid: tuple, has_token: bool
) -> tuple:
    """Pooled queries, keys and values (B, h, N', d) of tokens (B, N, C).

    `qkv(x, i, 3)` projects to the queries (i = 0), keys or values (B, h*d, N) of all heads; `pools`
    are the poolings of their maps (B*h, d, *grid). A class token, the first one, is not pooled.
    """
    parts = ()
    for i in range(3):
        part = qkv(x, i, 3)
        class_token = part[:, :, :1] if has_token else None
        part = part[:, :, 1:] if has_token else part
        maps = ops.reshape(part, (-1, part.shape[1] // heads, *grid))
        parts += (convert_to_tokens(pools[i](maps), class_token, heads, maps.shape[1]),)
    return parts


def convert_to_tokens(x: Tensor, class_token: Optional[Tensor], heads: int, size: int) -> Tensor:
    """Pooled maps (..., T, H, W) of all heads to tokens (B, h, N', d), class token first."""
    x = ops.reshape(x, (-1, size, x.shape[2] * x.shape[3] * x.shape[4]))
    if class_token is not None:
        x = ops.cat((ops.reshape(class_token, (-1, size, 1)), x), 2)
    x = ops.transpose(x, (0, 2, 1))
    return ops.reshape(x, (-1, heads, x.shape[1], size))


def clear_class_token(x: Tensor) -> Tensor:
    """Tokens (B, h, N, d) with zeros for the first token."""
    return ops.cat((ops.zeros_like(x[:, :, :1]), x[:, :, 1:]), 2)


def compute_total(x: Tensor) -> Tensor:
    return ops.ReduceSum()(x, ())


def compute_square_sum(x: Tensor) -> Tensor:
    return ops.square(x.astype(mstype.float32)).sum()


class SumArrays(Operator):
    """`finish` of the sum of `compute(array)`, a scalar, over a tuple of arrays."""

    def __init__(self, compute: Callable, finish: Callable):
        super().__init__()
        self.compute = compute
        self.finish = finish
        self.map = ops.HyperMap()

    def construct(self, arrays: tuple) -> Tensor:
        return self.finish(ops.addn(self.map(self.compute, arrays)))


class AdamW(Operator):
    """Moves weights as AdamW, and writes both moments.

    `groups` are those of `utils.train.adaptive.AdamW`; their rates decay the weights. `factors`
    (updates,) are the corrections of the bias, which `rates` (one a weight) and `epsilon` of an
    update contain.
    """

    def __init__(self, groups: list[dict], weights: tuple, betas: tuple, factors: np.ndarray):
        super().__init__()
        # The kernel multiplies the decay by its rate: rate * factor * (decay / factor).
        decays = [group["weight_decay"] / factors for group in groups]
        self.decays = tuple(Tensor(decay, mstype.float32) for decay in decays)
        group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
        self.positions = tuple(group_of[id(weight)] for weight in weights)
        self.betas = betas
        self.kernel = ops.AdamWeightDecay()
        self.map = ops.HyperMap()

    def construct(self, gradients, weights, moment1, moment2, rates, epsilon, step) -> tuple:
        of_groups = ()
        for decay in self.decays:
            of_groups += (ops.reshape(ops.gather(decay, step, 0), ()),)
        decays = self.map(ops.partial(take_element, of_groups), self.positions)
        move = ops.partial(move_weight, self.kernel, self.betas, epsilon)
        return self.map(move, gradients, weights, moment1, moment2, decays, rates)


def take_element(values: tuple, index: int) -> Tensor:
    return values[index]


def move_weight(kernel, betas, epsilon, gradient, weight, mean, variance, decay, rate) -> tuple:
    return kernel(weight, mean, variance, rate, betas[0], betas[1], epsilon, decay, gradient)


class Plain:
    """MindSpore's operators."""

    # Whether `batch_norm`, and `conv2d` of kernel 1 and stride 1, also take clips (N, C, T, H, W)
    takes_clips = False
    broadcast = staticmethod(ops.broadcast_to)
    shift_frames = staticmethod(shift_frames)
    stack = staticmethod(ops.stack)
    project_and_pool = staticmethod(project_and_pool)
    clear_class_token = staticmethod(clear_class_token)
    scale_channels = staticmethod(scale_channels)
    channel_means = staticmethod(channel_means)
    layer_norm: Factory = LayerNorm
    linear: Factory = Linear
    channels_first_linear: Factory = ChannelsFirstLinear
    matmul: Factory = MatMul
    relu: Factory = ops.ReLU
    silu: Factory = SiLU
    gelu: Factory = GELU
    temporal_shift: Factory = TemporalShift
    select_rows: Factory = SelectRows
    adamw: Factory = AdamW
    # Called in training with x, gamma, beta, running mean and variance, which it updates. Returns a
    # tuple that begins with the output.
    batch_norm: Factory = staticmethod(
        partial(ops.BatchNorm, is_training=True, epsilon=EPSILON, momentum=BATCH_WEIGHT)
    )
    # The same with the running statistics, which it does not change
    fixed_batch_norm: Factory = staticmethod(
        partial(ops.BatchNorm, is_training=False, epsilon=EPSILON)
    )
    # Called with a tuple of arrays: whether all are finite, as their sum is finite only if all
    # terms are; their L2 norm in float32
    all_finite: Factory = staticmethod(partial(SumArrays, compute_total, ops.isfinite))
    vector_norm: Factory = staticmethod(partial(SumArrays, compute_square_sum, ops.sqrt))

    def norm_relu(self) -> tuple:
        """(None, None), or kernels of a batch norm in training and ReLU, and with a shortcut."""
        return None, None

    def conv2d(
        self, cout: int, kernel: int, stride: int, groups: int = 1, same: bool = False
    ) -> Callable:
        """Called with (N, cin, H, W) and the weight (cout, cin / groups, kernel, kernel).

        Padded by (kernel - 1) / 2 on every side; `same` pads as MindSpore's `same`.
        """
        mode, pad = ("same", 0) if same else ("pad", (kernel - 1) // 2)
        return ops.Conv2D(cout, kernel, pad_mode=mode, pad=pad, stride=stride, group=groups)

    def conv3d(
        self, cout: int, kernel: tuple[int, int, int], stride: int, groups: int = 1
    ) -> Callable:
        """Called with clips and weight; padding (k - 1) / 2; stride of height and width."""
        pad = tuple(k // 2 for k in kernel for _ in range(2))
        strides = (1, stride, stride)
        return ops.Conv3D(cout, kernel, pad_mode="pad", pad=pad, stride=strides, group=groups)

    def depthwise3d(
        self, channels: int, kernel: tuple[int, int, int], stride: int, impl: str
    ) -> Callable:
        """Called with clips and the weight (C, 1, *kernel): see `conv3d.DepthwiseConv3d`."""
        if impl == "grouped":
            return self.conv3d(channels, kernel=kernel, stride=stride, groups=channels)
        return Depthwise(stride, impl, self)

    def max_pool(self, kernel: int, stride: int) -> nn.Cell:
        """A max pool of (N, C, H, W), padded by (kernel - 1) / 2 with minus infinity."""
        return nn.MaxPool2d(kernel, stride, pad_mode="pad", padding=(kernel - 1) // 2)


class Gpu(Plain):
    """MindSpore's operators on a GPU, which has a kernel that checks for overflow."""

    def all_finite(self) -> Callable:
        return amp.all_finite
