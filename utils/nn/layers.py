"""Layers with PyTorch's semantics and defaults; every argument of MindSpore is passed by name.

MindSpore's defaults differ: padding `same`, no bias, momentum as the weight of the old value. If
MindSpore changes the signatures, as it has announced, only this file must change. The operators
are those of `utils.nn.kernels` for the device.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import HeNormal, Initializer, Normal, Uniform

from utils.nn import kernels
from utils.nn.kernels import plain


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
    conv = nn.Conv2d(
        in_channels=cin,
        out_channels=cout,
        kernel_size=kernel,
        stride=stride,
        pad_mode="same" if same else "pad",
        padding=0 if same else (kernel - 1) // 2,
        group=groups,
        has_bias=bias,
        weight_init=HeNormal(mode=fan, nonlinearity="relu"),
        bias_init="zeros",
    )
    conv.conv2d = kernels.current().conv2d(
        cout, kernel=kernel, stride=stride, groups=groups, same=same
    )
    return conv


class Activation(nn.Cell):
    """A function of the elements: `relu`, `silu` or the exact `gelu` of the device's operators."""

    def __init__(self, name: str):
        super().__init__()
        self.compute = getattr(kernels.current(), name)()

    def construct(self, x: Tensor) -> Tensor:
        return self.compute(x)


ReLU = partial(Activation, "relu")
SiLU = partial(Activation, "silu")
GELU = partial(Activation, "gelu")


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
        self.bn_train = kernels.current().batch_norm()
        self.bn_infer = kernels.current().fixed_batch_norm()

    def construct(self, x: Tensor) -> Tensor:
        batch = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        norm = self.bn_train if batch else self.bn_infer
        return norm(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]


class NormReLU(nn.Cell):
    """relu(norm(x)), or relu(norm(x) + shortcut), of a batch norm `norm` of the caller.

    A training on a CPU computes it by one kernel, which reads and writes the map once.
    """

    def __init__(self):
        super().__init__()
        self.relu = ReLU()
        self.kernel, self.kernel_with_shortcut = kernels.current().norm_relu()

    def construct(self, norm: nn.Cell, x: Tensor, shortcut: Optional[Tensor] = None) -> Tensor:
        if self.kernel is None or not self.training or norm.use_batch_statistics is False:
            y = norm(x)
            return self.relu(y if shortcut is None else y + shortcut)
        arrays = (x, norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
        if shortcut is None:
            return self.kernel(*arrays)[0]
        return self.kernel_with_shortcut(*arrays, shortcut)[0]


class ResidualBlock(nn.Cell):
    """The block of ResNet, with torchvision's names: 3x3, 3x3, or a bottleneck: 1x1, 3x3, 1x1.

    `expansion` is 1, or for a bottleneck 4. `fan` and `same` are those of `conv2d`; `last_gamma`
    initialises the scale of the last norm. `wrap` wraps the first convolution, as TSM's shift.
    """

    def __init__(
        self,
        cin: int,
        width: int,
        stride: int,
        expansion: int,
        same: bool,
        fan: str = "fan_out",
        last_gamma: str = "ones",
        wrap: Callable[[nn.Cell], nn.Cell] = lambda cell: cell,
    ):
        super().__init__()
        strided: dict[str, Any] = {"kernel": 3, "stride": stride, "same": same and stride > 1}
        conv1: dict[str, Any] = {"kernel": 1} if expansion > 1 else strided
        conv2 = strided if expansion > 1 else {"kernel": 3}
        self.conv1 = wrap(conv2d(cin, width, fan=fan, **conv1))
        self.bn1 = BatchNorm2d(width)
        self.conv2 = conv2d(width, width, fan=fan, **conv2)
        self.bn2 = BatchNorm2d(width, "ones" if expansion > 1 else last_gamma)
        cout = expansion * width
        self.conv3 = conv2d(width, cout, kernel=1, fan=fan) if expansion > 1 else None
        self.bn3 = BatchNorm2d(cout, last_gamma) if expansion > 1 else None
        self.norm_relu = NormReLU()
        self.downsample = None
        if stride > 1 or cin != cout:  # the block changes the shape
            projection = conv2d(cin, cout=cout, kernel=1, stride=stride, fan=fan)
            self.downsample = nn.SequentialCell(projection, BatchNorm2d(cout))

    def construct(self, x: Tensor) -> Tensor:
        return self.forward_after_conv1(x, self.conv1(x))

    def forward_after_conv1(self, x: Tensor, y: Tensor) -> Tensor:
        """The layers after the first convolution, which mapped x to y; then the residual sum."""
        y = self.conv2(self.norm_relu(self.bn1, y))
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.conv3 is None:
            return self.norm_relu(self.bn2, y, shortcut)
        return self.norm_relu(self.bn3, self.conv3(self.norm_relu(self.bn2, y)), shortcut)


# The expansion of the blocks of each ResNet, and how many of them its four stages have.
RESNETS = {
    "resnet18": (1, (2, 2, 2, 2)),
    "resnet34": (1, (3, 4, 6, 3)),
    "resnet50": (4, (3, 4, 6, 3)),
    "resnet101": (4, (3, 4, 23, 3)),
    "resnet152": (4, (3, 8, 36, 3)),
}


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis, computed in float32; the output has the input's type."""

    def __init__(self, channels: int, eps: float):
        super().__init__((channels,), epsilon=eps)
        self.layer_norm = kernels.current().layer_norm(eps)

    def construct(self, x: Tensor) -> Tensor:
        return self.layer_norm(x, self.gamma, self.beta)


def list_norms(net: nn.Cell) -> list[nn.BatchNorm2d]:
    """The batch norms of a network."""
    return [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]


def freeze_norms(norms: Iterable[nn.BatchNorm2d]) -> None:
    """Fixes the statistics, scale and shift of batch norms; training then uses them too."""
    for cell in norms:
        cell.use_batch_statistics = False
        cell.gamma.requires_grad = cell.beta.requires_grad = False


def synchronize_norms(net: nn.Cell, ranks: int) -> None:
    """Makes the batch norms that are not frozen compute statistics over the batches of all ranks.

    One rank keeps its operators. Raises ValueError if there is no such norm.
    """
    norms = [norm for norm in list_norms(net) if norm.use_batch_statistics is None]
    if not norms:
        raise ValueError("train.sync_batch_norm: no batch norm is trained here; set it to false")
    if ranks == 1:
        return
    sync = plain.SyncBatchNorm(ranks, kernels.current())
    for norm in norms:
        norm.bn_train = plain.BatchNorm3d(sync) if isinstance(norm, BatchNorm3d) else sync
    for _, cell in net.cells_and_names():
        if isinstance(cell, NormReLU):  # the kernel of a CPU joins both
            cell.kernel = None


class BatchNorm3d(BatchNorm2d):
    """Batch norm over (N, C, T, H, W); its parameters have no extra `bn2d` level in their names."""

    def __init__(self, channels: int, gamma: str = "ones"):
        super().__init__(channels, gamma)
        if not kernels.current().takes_clips:
            self.bn_train = plain.BatchNorm3d(self.bn_train)
        self.bn_infer = plain.BatchNorm3d(self.bn_infer)


def has_kernel(cell: nn.Cell) -> bool:
    """Whether it is a convolution or dense layer, of MindSpore or of this zoo."""
    weight = dict(cell.parameters_and_names(expand=False)).get("weight")
    return isinstance(weight, Parameter) and weight.ndim > 1


def max_pool2d(kernel: int, stride: int, same: bool = False) -> nn.Cell:
    """Max pool, padded by (kernel - 1) / 2 with minus infinity; `same` as in conv2d."""
    if same:
        return nn.MaxPool2d(kernel_size=kernel, stride=stride, pad_mode="same")
    return kernels.current().max_pool(kernel, stride)


class Dense(nn.Dense):
    """A fully connected layer over the last axis of (..., cin), with bias.

    Without `weight_init` all is initialised as in PyTorch: uniform in +-1/sqrt(cin). MindSpore's
    own layer checks the number of axes; in a graph with a dynamic batch size that check remains an
    operator.
    """

    def __init__(
        self, cin: int, cout: int, weight_init: Optional[Initializer] = None, bias_init=None
    ):
        if weight_init is None:
            weight_init, bias_init = (Uniform(scale=cin**-0.5) for _ in range(2))
        super().__init__(cin, cout, weight_init=weight_init, bias_init=bias_init, has_bias=True)
        self.linear = kernels.current().linear()

    def construct(self, x: Tensor) -> Tensor:
        return self.linear(x, ops.cast(self.weight, x.dtype), ops.cast(self.bias, x.dtype))


def dense(cin: int, cout: int, std: float = 0.01) -> Dense:
    """A fully connected layer with bias; weights normal(0, std), bias 0."""
    return Dense(cin, cout=cout, weight_init=Normal(sigma=std), bias_init="zeros")


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
        mean, std = (np.resize(np.asarray(v, np.float32), channels) for v in (mean, std))
        shape = [1] * rank
        shape[axis] = channels
        self.scale, self.offset = (
            float(v[0]) if is_scalar else Tensor(v.reshape(shape), mstype.float32)
            for v in (1 / (255 * std), mean / std)
        )

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


SYMMETRIC = "symmetric"
PADDINGS = (SYMMETRIC, "same", "same_pool")


class PaddedNetwork(nn.Cell):
    """How a network pads its strided convolutions and pools; its checkpoints say in which way.

    * `symmetric`: (kernel - 1) / 2 on every side, as in PyTorch.
    * `same`: as MindSpore's pad_mode `same`. If the size of the input is even, a window of odd size
      and stride 2 gets one element less in front than behind, so it reads a grid that is shifted by
      one.
    * `same_pool`: convolutions are symmetric, max pools are padded as by `same`.

    Convolutions with stride 1 are the same in all three.
    """

    def __init__(self, padding: str):
        super().__init__()
        if padding not in PADDINGS:
            raise ValueError(f"model.padding is {padding}; known: {', '.join(PADDINGS)}")
        self.padding = padding


class CamCells(NamedTuple):
    """What `find_cam_cells` of a network returns.

    `layer` returns the features of which `arrange` makes feature maps (T, C, H, W), if the network
    has read one clip. `scores` are the Cells, one for each head, that return the logits
    (..., classes).
    """

    layer: nn.Cell
    scores: Sequence[nn.Cell]
    arrange: Callable[[np.ndarray], np.ndarray]
