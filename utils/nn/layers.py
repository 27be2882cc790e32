"""Layers with PyTorch's semantics and defaults; every argument of MindSpore is passed by name.

MindSpore's defaults differ: padding `same`, no bias, momentum as the weight of the old value. If
MindSpore changes the signatures, as it has announced, only this file must change.

In training in float32 on a CPU, the kernels of `utils.nn.cpu_kernels` replace MindSpore's if they
are enabled when a Cell is built.
"""

from collections.abc import Iterable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import HeNormal, Initializer, Normal, Uniform
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import BatchNormExt, ConstantPadND, GeluExt, LayerNormExt

from utils.nn.cpu_kernels import operators as cpu

LOWEST_HALF = -65504.0


@constexpr
def on_ascend() -> bool:
    """Whether networks are built for an Ascend; can be called inside `construct`."""
    return ms.get_context("device_target") == "Ascend"


def conv2d(
    cin: int,
    cout: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
    fan: str = "fan_out",
    same: bool = False,
) -> nn.Conv2d:
    """A 2-D convolution with an odd kernel, padded by (kernel - 1) / 2 on every side.

    Initialised as in torchvision's ResNet: normal with variance 2 / (cout * kernel^2 / groups), or
    with cin instead of cout if `fan` is `fan_in`. `same` pads as MindSpore's `same`: with stride 2
    and an even size, one less before than after.
    """
    return Conv2d(
        in_channels=cin,
        out_channels=cout,
        kernel_size=kernel,
        stride=stride,
        pad_mode="same" if same else "pad",
        padding=0 if same else (kernel - 1) // 2,
        dilation=1,
        group=groups,
        has_bias=bias,
        weight_init=HeNormal(mode=fan, nonlinearity="relu"),
        bias_init="zeros",
    )


class Conv2d(nn.Conv2d):
    """MindSpore's, with a kernel for training on a CPU."""

    def __init__(self, **options):
        super().__init__(**options)
        self.cpu = self.pointwise = None
        if options["pad_mode"] == "pad" and not options["has_bias"]:
            stride = options["stride"]
            padding = options["padding"]
            self.cpu = cpu.build_convolution((stride,) * 2, (padding,) * 2, options["group"])
            if options["kernel_size"] == stride == options["group"] == 1:
                self.pointwise = cpu.build_pointwise()

    def construct(self, x: Tensor) -> Tensor:
        if self.cpu is None or not self.training or x.dtype != mstype.float32:
            return super().construct(x)
        if self.pointwise is not None:
            return self.pointwise(self.weight, x)
        return self.cpu[0](x, self.weight, self.cpu[1])


class ReLU(nn.ReLU):
    """MindSpore's, with a kernel for training on a CPU."""

    def __init__(self):
        super().__init__()
        self.cpu = cpu.build_map("relu", uses_output=True)

    def construct(self, x: Tensor) -> Tensor:
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu(x)
        return super().construct(x)


class SiLU(nn.SiLU):
    """MindSpore's, with a kernel for training on a CPU."""

    def __init__(self):
        super().__init__()
        self.cpu = cpu.build_map("silu")

    def construct(self, x: Tensor) -> Tensor:
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu(x)
        return super().construct(x)


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm with PyTorch's eps 1e-5 and momentum 0.1.

    MindSpore writes that momentum as 0.9, the weight of the old value. `construct` is replaced to
    save compile time: MindSpore's own checks each shape during compilation, which is noticeable
    with a hundred norms.
    """

    def __init__(self, channels: int, gamma: str = "ones"):
        super().__init__(
            num_features=channels, eps=1e-5, momentum=0.9, affine=True, gamma_init=gamma
        )

        # One kernel forward and one backward; on Ascend ops.BatchNorm has two of each.
        self.fused = BatchNormExt() if on_ascend() else None
        self.cpu = cpu.build_batch_norm()

    def construct(self, x: Tensor) -> Tensor:
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        weights = (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        if batch and self.fused is not None:
            return self.fused(x, *weights, True, 0.1, 1e-5)[0]  # training, momentum, eps
        if batch and self.cpu is not None and x.dtype == mstype.float32:
            # Not unpacked: MindSpore would print two warnings for the outputs that nothing reads.
            outputs = self.cpu(x, *weights)
            ops.assign(self.moving_mean, outputs[3])
            ops.assign(self.moving_variance, outputs[4])
            return outputs[0]
        norm = self.bn_train if batch else self.bn_infer
        return self.normalize(norm, x, weights)

    def normalize(self, norm, x: Tensor, weights: tuple) -> Tensor:
        return norm(x, *weights)[0]


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis, computed in float32; the output has the input's type."""

    def __init__(self, channels: int, eps: float):
        super().__init__((channels,), epsilon=eps)
        self.fused = LayerNormExt() if on_ascend() else None  # takes float16 with float32 weights
        self.cpu = cpu.build_layer_norm(eps)

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, self.normalized_shape, self.gamma, self.beta, self.epsilon)[0]
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu[0](x, self.gamma, self.beta, self.cpu[1])[0]
        return ops.cast(super().construct(ops.cast(x, self.gamma.dtype)), x.dtype)


def freeze_norms(norms: Iterable[nn.BatchNorm2d]) -> None:
    """Fixes the statistics, scale and shift of batch norms; training then uses them too."""
    for cell in norms:
        cell.use_batch_statistics = False
        cell.gamma.requires_grad = cell.beta.requires_grad = False


class BatchNorm3d(BatchNorm2d):
    """Batch norm over (N, C, T, H, W); its parameters have no extra `bn2d` level in their names."""

    def normalize(self, norm, x: Tensor, weights: tuple) -> Tensor:
        n, c, t, h, w = x.shape
        y = norm(ops.reshape(x, (n, c, t * h, w)), *weights)[0]
        return ops.reshape(y, x.shape)


def max_pool2d(kernel: int, stride: int, same: bool = False) -> nn.Cell:
    """Max pool, padded by (kernel - 1) / 2 with minus infinity; `same` as in conv2d."""
    if not same and on_ascend():
        return PaddedMaxPool2d(kernel, stride)
    mode, padding = ("same", 0) if same else ("pad", (kernel - 1) // 2)
    return MaxPool2d(kernel, stride, mode, padding)


class MaxPool2d(nn.MaxPool2d):
    """MindSpore's, with a kernel for training on a CPU."""

    def __init__(self, kernel_size: int, stride: int, pad_mode: str, padding: int):
        super().__init__(kernel_size, stride, pad_mode=pad_mode, padding=padding)
        is_padded = pad_mode == "pad"
        self.cpu = cpu.build_max_pool(kernel_size, stride, padding) if is_padded else None

    def construct(self, x: Tensor) -> Tensor:
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu[0](x, self.cpu[1])
        return super().construct(x)


class PaddedMaxPool2d(nn.Cell):
    """Max pool as two kernels of the AI core: pad with the lowest float16, then pool.

    On Ascend, MindSpore's own padded max pool runs on the AI CPU, forward and backward.
    """

    def __init__(self, kernel: int, stride: int):
        super().__init__()
        self.half = (kernel - 1) // 2
        self.pool = nn.MaxPool2d(kernel_size=kernel, stride=stride, pad_mode="valid")

    def construct(self, x: Tensor) -> Tensor:
        lowest = ops.cast(Tensor(LOWEST_HALF, mstype.float32), x.dtype)
        return self.pool(ops.PadV3()(x, (self.half,) * 4, lowest))


def shift_frames(x: Tensor, by: int) -> Tensor:
    """Shifts (N, C, T, H, W) along T: frame i of the result is frame i + by, or zero outside."""
    if by == 0:
        return x
    if on_ascend():  # one kernel that crops and pads
        return ConstantPadND()(x, (0, 0, 0, 0, -by, by), 0.0)
    zeros = ops.zeros((*x.shape[:2], abs(by), *x.shape[3:]), x.dtype)
    if by > 0:
        return ops.cat((x[:, :, by:], zeros), axis=2)
    return ops.cat((zeros, x[:, :, :by]), axis=2)


class Dense(nn.Dense):
    """A fully connected layer over the last axis of (..., cin), with bias.

    MindSpore's own checks the number of axes; in a graph with a dynamic batch size that check
    remains an operator.
    """

    def __init__(self, cin: int, cout: int, weight_init: Initializer, bias_init=None):
        init = {"weight_init": weight_init, "bias_init": bias_init}
        super().__init__(in_channels=cin, out_channels=cout, has_bias=True, **init)
        self.fused = ops.Dense() if on_ascend() else None  # product and bias in one kernel
        self.cpu = cpu.build_product(transpose=True)
        self.cpu_bias = cpu.build_bias("add_bias")

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, ops.cast(self.weight, x.dtype), ops.cast(self.bias, x.dtype))
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            weight = ops.expand_dims(self.weight, 0)
            y = self.cpu(ops.reshape(x, (1, -1, self.in_channels)), weight)
            y = self.cpu_bias(y, self.bias)
        else:
            y = self.matmul(ops.reshape(x, (-1, self.in_channels)), self.weight)
            y = self.bias_add(y, self.bias)
        return ops.reshape(y, (*x.shape[:-1], self.out_channels))


def dense(cin: int, cout: int, std: float = 0.01) -> Dense:
    """A fully connected layer with bias; weights normal(0, std), bias 0."""
    return Dense(cin, cout, Normal(sigma=std), "zeros")


def torch_dense(cin: int, cout: int) -> Dense:
    """A fully connected layer initialised as in PyTorch: all uniform in +-1/sqrt(cin)."""
    return Dense(cin, cout, Uniform(scale=cin**-0.5), Uniform(scale=cin**-0.5))


class GELU(nn.Cell):
    """The exact GELU, x * Phi(x).

    MindSpore's own divides by a number. On a CPU, a kernel that broadcasts keeps an index of 16
    bytes for every element of its output as long as the graph lives. Multiplication by a number
    does not. If large maps must be broadcast, `ops.broadcast_to` is called first.
    """

    def __init__(self):
        super().__init__()
        self.fused = GeluExt() if on_ascend() else None  # one kernel, exact by default
        self.cpu = cpu.build_map("gelu")

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, "none")
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu(x)
        return x * 0.5 * (1.0 + ops.erf(x * 0.5**0.5))


class Normalize(nn.Cell):
    """uint8 pixels to (x / 255 - mean) / std; float input counts as already normalised.

    `mean` and `std` are per channel of one image. If the channel axis holds several images of
    `len(mean)` channels each (TSM's frames of a segment), each is normalised in the same way.

    Args:
        channels: size of the channel axis.
        axis: index of the channel axis.
        rank: number of axes of the input.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], channels: int, axis: int, rank: int
    ):
        super().__init__()
        is_scalar = len(set(mean)) == len(set(std)) == 1  # then no tensor is broadcast
        count = 1 if is_scalar else channels
        mean, std = (np.resize(np.asarray(v, np.float32), count) for v in (mean, std))
        shape = [1] * rank
        shape[axis] = count
        scale = (1 / (255 * std)).reshape(shape)
        offset = (mean / std).reshape(shape)
        self.scale = float(scale.reshape(-1)[0]) if is_scalar else Tensor(scale, mstype.float32)
        self.offset = float(offset.reshape(-1)[0]) if is_scalar else Tensor(offset, mstype.float32)

    def construct(self, x: Tensor) -> Tensor:
        if x.dtype != mstype.uint8:
            return x
        return x.astype(mstype.float32) * self.scale - self.offset


def resize_table(table: np.ndarray, rows: int) -> np.ndarray:
    """Resizes a table to (rows, columns) float32: linear interpolation, half-pixel centres.

    As PyTorch's `interpolate` with mode linear. A table of that length is not changed.
    """
    position = np.maximum((np.arange(rows) + 0.5) * len(table) / rows - 0.5, 0)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, len(table) - 1)
    weight = (position - low)[:, None]
    return (table[low] * (1 - weight) + table[high] * weight).astype(np.float32)


def make_resize_matrix(length: int, rows: int) -> np.ndarray:
    """(rows, length) float32: the matrix that resizes a table of `length` rows to `rows`."""
    return resize_table(np.eye(length), rows)
