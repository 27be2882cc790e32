"""Layers that mean what PyTorch's mean, every argument by name.

MindSpore's defaults differ (padding `same`, no bias, momentum of the old value), and its announced
changes of signature will land in this file and nowhere else.
"""

from collections.abc import Iterable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import HeNormal, Normal, Uniform, initializer


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


def conv3d_1x1x1(cin: int, cout: int, bias: bool = True) -> nn.Conv3d:
    """A 3-D convolution that mixes channels only."""
    return nn.Conv3d(
        in_channels=cin,
        out_channels=cout,
        kernel_size=1,
        stride=1,
        pad_mode="valid",
        padding=0,
        dilation=1,
        group=1,
        has_bias=bias,
        weight_init=HeNormal(mode="fan_out", nonlinearity="relu"),
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

    def construct(self, x: Tensor) -> Tensor:
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        norm = self.bn_train if batch else self.bn_infer
        return norm(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]


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


def max_pool2d(kernel: int, stride: int, same: bool = False) -> nn.MaxPool2d:
    """Max pool padded by (kernel - 1) / 2 on every side with minus infinity; `same` as above."""
    return nn.MaxPool2d(
        kernel_size=kernel,
        stride=stride,
        pad_mode="same" if same else "pad",
        padding=0 if same else (kernel - 1) // 2,
    )


class Dense(nn.Dense):
    """Over the last axis of (..., cin), with bias.

    The framework's asks for the number of axes, and a graph whose batch is free keeps the question.
    """

    def construct(self, x: Tensor) -> Tensor:
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

    def construct(self, x: Tensor) -> Tensor:
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


class Dropout(nn.Cell):
    """Drops with probability p; the mask is a pure function of `dropout_key` and the position.

    A generator inside the kernel could not be saved, so a resumed run would draw other masks. The
    train step sets `dropout_key` before every forward pass from seed, rank and step.
    """

    setting = "model.dropout"

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"{self.setting} must lie in [0, 1), not {p}")
        self.p = p
        self.dropout_key = Parameter(
            Tensor(0, mstype.int32), name="dropout_key", requires_grad=False
        )

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = uniform_bits(x.size, self.dropout_key) >= int(self.p * 2**24)
        return x * keep.reshape(x.shape).astype(x.dtype) * (1 / (1 - self.p))


class DropPath(Dropout):
    """Drops a branch (N, ...) whole, sample by sample."""

    setting = "model.drop_path"

    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        n = x.shape[0]
        keep = uniform_bits(n, self.dropout_key) >= int(self.p * 2**24)
        factor = keep.reshape((n,) + (1,) * (x.ndim - 1)).astype(x.dtype) * (1 / (1 - self.p))
        return x * ops.broadcast_to(factor, x.shape)


def uniform_bits(size: int, key: Tensor) -> Tensor:
    """`size` integers uniform in [0, 2^24), a hash of key and position (int32 arithmetic wraps).

    The mixing steps are those of C. Wellons' lowbias32; shifts are arithmetic here, which the
    test of uniformity shows to do no harm.
    """
    position = ops.arange(0, size, 1, dtype=mstype.int32)
    h = ops.bitwise_xor(position * -1640531527 + key * 668265263, key)
    h = ops.bitwise_xor(h, ops.bitwise_right_shift(h, Tensor(16, mstype.int32))) * 2146121005
    h = ops.bitwise_xor(h, ops.bitwise_right_shift(h, Tensor(15, mstype.int32))) * -2073254261
    h = ops.bitwise_xor(h, ops.bitwise_right_shift(h, Tensor(16, mstype.int32)))
    return ops.bitwise_and(h, Tensor(0xFFFFFF, mstype.int32))
