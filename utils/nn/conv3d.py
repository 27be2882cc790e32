"""3-D convolutions of clips (N, C, T, H, W) with PyTorch's weights, for devices without groups.

* Pointwise, 1x1x1: a 2-D convolution. Time and height are merged into one axis, (N, C, T*H, W),
  which costs no copy.
* Depthwise, in three forms that compute exactly the same sum:
  `grouped`: one grouped 3-D kernel, if the device has it (Ascend documents group 1 only);
  `taps`: the clip is copied once for each time step (tap) of the kernel and shifted in time, then
  all copies pass one 2-D depthwise convolution and are summed. It needs only operators that every
  device has;
  `frames`: one 2-D convolution in C groups whose channels are the T frames, with a banded T x T
  kernel. It has T / kt times the multiplications, but matrix products instead of loops, and is the
  fastest form on a CPU by a factor of 2 to 4.
"""

from typing import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, Zero, initializer

from utils.nn import kernels


def merge_rows(x: Tensor) -> Tensor:
    """(N, C, T, H, W) to (N, C, T*H, W)."""
    n, c, t, h, w = x.shape
    return ops.reshape(x, (n, c, t * h, w))


class ClipConv(nn.Cell):
    """A convolution of clips by an operator of the device, with a weight of PyTorch's shape.

    Initialised normal with variance 2 / fan_out, which counts all output channels, also with
    groups.
    """

    def __init__(self, shape: tuple[int, ...], conv: Callable):
        super().__init__()
        sigma = float(np.sqrt(2 / (shape[0] * np.prod(shape[2:]))))
        self.weight = Parameter(initializer(Normal(sigma=sigma), shape), name="weight")
        self.conv = conv

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x, ops.cast(self.weight, x.dtype))


class PointwiseConv3d(ClipConv):
    """A 1x1x1 convolution of clips (N, C, T, H, W), computed as a 2-D convolution.

    The stride applies to height and width. Weight (cout, cin, 1, 1, 1). On Ascend a 3-D convolution
    would take float16 only.
    """

    def __init__(self, cin: int, cout: int, bias: bool = False, stride: int = 1):
        operators = kernels.current()
        super().__init__((cout, cin, 1, 1, 1), operators.conv2d(cout, kernel=1, stride=1))
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias") if bias else None
        self.stride = stride
        self.takes_clips = operators.takes_clips and stride == 1 and not bias
        self.strided = self.conv
        if stride > 1:
            self.strided = operators.conv2d(cout, kernel=1, stride=stride)
        self.add = ops.BiasAdd()

    def construct(self, x: Tensor) -> Tensor:
        weight = ops.cast(self.weight, x.dtype)
        if self.takes_clips:
            return self.conv(x, weight)
        kernel = ops.reshape(weight, weight.shape[:4])
        t = x.shape[2]
        # A stride over merged rows would not start at each first row. With a dynamic batch,
        # MindSpore knows no size when it compiles, and the graph gets a branch: only if it has a
        # stride.
        if self.stride > 1 and x.shape[3] % self.stride:
            x = self.conv(merge_rows(x[:, :, :, :: self.stride, :: self.stride]), kernel)
        else:
            x = self.strided(merge_rows(x), kernel)
        if self.bias is not None:
            x = self.add(x, ops.cast(self.bias, x.dtype))
        n, c, th, w = x.shape
        return ops.reshape(x, (n, c, t, th // t, w))


class DepthwiseConv3d(ClipConv):
    """A depthwise 3-D convolution of (N, C, T, H, W): one kernel per channel.

    Zero padding (k - 1) / 2; `stride` applies to height and width. Weight
    (channels, 1, kt, kh, kw), odd sizes. `impl` is one of the three forms.
    """

    def __init__(
        self, channels: int, kernel: tuple[int, int, int], stride: int = 1, impl: str = "taps"
    ):
        conv = kernels.current().depthwise3d(channels, kernel=kernel, stride=stride, impl=impl)
        super().__init__((channels, 1, *kernel), conv)
        self.channels = channels
        self.kernel = kernel
        self.stride = stride


class FrameConv(ClipConv):
    """A 1 x k x k convolution without bias, computed frame by frame.

    Input (N, C, T, H, W). Weight (cout, cin, 1, k, k).
    """

    def __init__(self, cin: int, cout: int, kernel: int, stride: int = 1):
        conv = kernels.current().conv2d(cout, kernel=kernel, stride=stride)
        super().__init__((cout, cin, 1, kernel, kernel), conv)
        self.shape = (cout, cin, kernel, kernel)
        self.stride = stride

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3, 4)), (n * t, c, h, w))
        weight = ops.reshape(ops.cast(self.weight, x.dtype), self.shape)
        x = self.conv(x, weight)
        x = ops.reshape(x, (n, t, *x.shape[1:]))
        return ops.transpose(x, (0, 2, 1, 3, 4))


class Conv3d(ClipConv):
    """A 3-D convolution without groups and bias, zero padding (k - 1) / 2.

    Input (N, C, T, H, W). `stride` applies to height and width. Weight (cout, cin, kt, kh, kw).
    """

    def __init__(self, cin: int, cout: int, kernel: tuple[int, int, int], stride: int = 1):
        super().__init__((cout, cin, *kernel), kernels.current().conv3d(cout, kernel, stride))
