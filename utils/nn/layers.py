"""Layers that mean what PyTorch's mean, every argument by name.

MindSpore's defaults differ (padding `same`, no bias, momentum of the old value), and its announced
changes of signature will land in this file and nowhere else.
"""

from collections.abc import Iterable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import HeNormal, Normal, Uniform, initializer
from mindspore.ops import constexpr
from mindspore.ops.auto_generate import BatchNormExt, ConstantPadND, GeluExt, LayerNormExt

LOWEST_HALF = -65504.0


@constexpr
def on_ascend() -> bool:
    """Whether networks are built for an Ascend; also for use inside of `construct`."""
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
    """A 2-D convolution of odd kernel, padded by (kernel - 1) / 2 on every side.

    Initialised as torchvision's ResNet: normal, variance 2 / (cout * kernel^2 / groups), or with
    cin for cout where `fan` is `fan_in`. `same` pads as MindSpore's `same`: where the stride is 2
    and the size even, one less before than after.
    """
    return nn.Conv2d(
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


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's eps 1e-5 and momentum 0.1, which MindSpore writes as 0.9 (weight of the old).

    Its own `construct` leaves out what the framework's decides on, shape by shape, while it is
    compiled: with a hundred norms that is felt.
    """

    def __init__(self, channels: int, gamma: str = "ones"):
        super().__init__(
            num_features=channels, eps=1e-5, momentum=0.9, affine=True, gamma_init=gamma
        )

        # One kernel forward and one backward, which ops.BatchNorm has two of each of on Ascend.
        self.fused = BatchNormExt() if on_ascend() else None

    def construct(self, x: Tensor) -> Tensor:
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        weights = (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        if batch and self.fused is not None:
            return self.fused(x, *weights, True, 0.1, 1e-5)[0]  # training, momentum, eps
        norm = self.bn_train if batch else self.bn_infer
        return norm(x, *weights)[0]


class LayerNorm(nn.LayerNorm):
    """Over the last axis, in float32 also if the input is float16; the output has its type."""

    def __init__(self, channels: int, eps: float):
        super().__init__((channels,), epsilon=eps)
        self.fused = LayerNormExt() if on_ascend() else None  # takes float16 with float32 weights

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, self.normalized_shape, self.gamma, self.beta, self.epsilon)[0]
        return ops.cast(super().construct(ops.cast(x, self.gamma.dtype)), x.dtype)


def freeze(norms: Iterable[nn.BatchNorm2d]) -> None:
    """Batch norms keep their statistics, scale and shift, and use them in training too."""
    for cell in norms:
        cell.use_batch_statistics = False
        cell.gamma.requires_grad = cell.beta.requires_grad = False


class BatchNorm3d(BatchNorm2d):
    """Batch norm over (N, C, T, H, W); its parameters have no extra `bn2d` level in their names."""

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        return ops.reshape(super().construct(ops.reshape(x, (n, c, t * h, w))), (n, c, t, h, w))


def max_pool2d(kernel: int, stride: int, same: bool = False) -> nn.Cell:
    """Max pool padded by (kernel - 1) / 2 on every side with minus infinity; `same` as above."""
    if not same and on_ascend():
        return PaddedMaxPool2d(kernel, stride)
    return nn.MaxPool2d(
        kernel_size=kernel,
        stride=stride,
        pad_mode="same" if same else "pad",
        padding=0 if same else (kernel - 1) // 2,
    )


class PaddedMaxPool2d(nn.Cell):
    """The same in two kernels of the AI core: pad with the lowest float16, then pool.

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
    """(N, C, T, H, W) along T: frame i of the result is frame i + by, zero outside the clip."""
    if by == 0:
        return x
    if on_ascend():  # one kernel that crops and pads
        return ConstantPadND()(x, (0, 0, 0, 0, -by, by), 0.0)
    zeros = ops.zeros((*x.shape[:2], abs(by), *x.shape[3:]), x.dtype)
    if by > 0:
        return ops.cat((x[:, :, by:], zeros), axis=2)
    return ops.cat((zeros, x[:, :, :by]), axis=2)


class Dense(nn.Dense):
    """Over the last axis of (..., cin), with bias.

    The framework's asks for the number of axes, and a graph whose batch is free keeps the question.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.fused = ops.Dense() if on_ascend() else None  # product and bias in one kernel

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, ops.cast(self.weight, x.dtype), ops.cast(self.bias, x.dtype))
        y = self.matmul(ops.reshape(x, (-1, self.in_channels)), self.weight)
        return ops.reshape(self.bias_add(y, self.bias), (*x.shape[:-1], self.out_channels))


def dense(cin: int, cout: int, std: float = 0.01) -> Dense:
    """A fully connected layer with bias; weights normal(0, std), bias 0."""
    return Dense(
        in_channels=cin,
        out_channels=cout,
        has_bias=True,
        weight_init=initializer(Normal(sigma=std), (cout, cin)),
        bias_init="zeros",
    )


def torch_dense(cin: int, cout: int) -> Dense:
    """A fully connected layer as PyTorch starts it: weight and bias uniform in +-1/sqrt(cin)."""
    return Dense(
        in_channels=cin,
        out_channels=cout,
        has_bias=True,
        weight_init=Uniform(scale=cin**-0.5),
        bias_init=Uniform(scale=cin**-0.5),
    )


class GELU(nn.Cell):
    """The exact one, x * Phi(x).

    The framework's divides by a number, and on a CPU a kernel that broadcasts keeps an index of 16
    bytes for every element of its output for as long as the graph lives. Multiplying by a number
    does not; where large maps would broadcast, `ops.broadcast_to` comes first.
    """

    def __init__(self):
        super().__init__()
        self.fused = GeluExt() if on_ascend() else None  # one kernel, exact by default

    def construct(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, "none")
        return x * 0.5 * (1.0 + ops.erf(x * 0.5**0.5))


class Normalize(nn.Cell):
    """uint8 pixels to (x / 255 - mean) / std; float input is taken as already normalised.

    `mean` and `std` are per channel of one image; an axis that stacks several images of `len(mean)`
    channels each (TSM's frames of a segment) is normalised image by image.
    """

    def __init__(self, mean: tuple, std: tuple, channels: int, axis: int, rank: int):
        super().__init__()
        same = len(set(mean)) == len(set(std)) == 1  # then a number does, and broadcasts nothing
        count = 1 if same else channels
        mean, std = (np.resize(np.asarray(v, np.float32), count) for v in (mean, std))
        shape = [1] * rank
        shape[axis] = count
        scale, offset = (1 / (255 * std)).reshape(shape), (mean / std).reshape(shape)
        self.scale = float(scale.reshape(-1)[0]) if same else Tensor(scale, mstype.float32)
        self.offset = float(offset.reshape(-1)[0]) if same else Tensor(offset, mstype.float32)

    def construct(self, x: Tensor) -> Tensor:
        if x.dtype != mstype.uint8:
            return x
        return x.astype(mstype.float32) * self.scale - self.offset


def resize_table(table: np.ndarray, wanted: int) -> np.ndarray:
    """(rows, columns) -> (wanted, columns) float32: linear interpolation, half-pixel centres.

    PyTorch's `interpolate` with mode linear; equal where the lengths are.
    """
    place = np.maximum((np.arange(wanted) + 0.5) * len(table) / wanted - 0.5, 0)
    low = np.floor(place).astype(np.int64)
    high, part = np.minimum(low + 1, len(table) - 1), (place - low)[:, None]
    return (table[low] * (1 - part) + table[high] * part).astype(np.float32)


def resize_rows(length: int, wanted: int) -> np.ndarray:
    """(wanted, length) float32: the matrix that resizes a table of `length` rows."""
    return resize_table(np.eye(length), wanted)
