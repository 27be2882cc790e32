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

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, Zero, initializer

from utils.nn import kernels

FORMS = ("taps", "grouped", "frames")


def init_kaiming_normal(shape: tuple[int, ...]) -> Tensor:
    """Normal with variance 2 / fan_out; fan_out counts all output channels, also with groups."""
    return initializer(Normal(sigma=float(np.sqrt(2 / (shape[0] * np.prod(shape[2:]))))), shape)


class PointwiseConv3d(nn.Cell):
    """A 1x1x1 convolution of clips (N, C, T, H, W), computed as a 2-D convolution.

    The stride applies to height and width. Weight (cout, cin, 1, 1, 1). On Ascend a 3-D convolution
    would take float16 only.
    """

    def __init__(self, cin: int, cout: int, bias: bool = False, stride: int = 1):
        super().__init__()
        self.stride = stride
        self.weight = Parameter(init_kaiming_normal((cout, cin, 1, 1, 1)), name="weight")
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias") if bias else None
        self.conv = kernels.current().pointwise3d(cout, stride, bias)

    def construct(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else ops.cast(self.bias, x.dtype)
        return self.conv(x, ops.cast(self.weight, x.dtype), bias)


class DepthwiseConv3d(nn.Cell):
    """A depthwise 3-D convolution of (N, C, T, H, W): one kernel per channel.

    Zero padding (k - 1) / 2; `stride` applies to height and width. Weight
    (channels, 1, kt, kh, kw), odd sizes. `impl` is one of FORMS; all give the same result.
    """

    def __init__(
        self, channels: int, kernel: tuple[int, int, int], stride: int = 1, impl: str = "taps"
    ):
        super().__init__()
        if impl not in FORMS:
            raise ValueError(f"impl must be one of {', '.join(FORMS)}, not {impl}")
        self.channels = channels
        self.kernel = kernel
        self.stride = stride
        self.weight = Parameter(init_kaiming_normal((channels, 1, *kernel)), name="weight")
        self.conv = kernels.current().depthwise3d(channels, kernel=kernel, stride=stride, impl=impl)

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x, ops.cast(self.weight, x.dtype))


class FrameConv(nn.Cell):
    """A 1 x k x k convolution without bias, computed frame by frame.

    Input (N, C, T, H, W). Weight (cout, cin, 1, k, k).
    """

    def __init__(self, cin: int, cout: int, kernel: int, stride: int = 1):
        super().__init__()
        self.weight = Parameter(init_kaiming_normal((cout, cin, 1, kernel, kernel)), name="weight")
        self.shape = (cout, cin, kernel, kernel)
        self.conv = kernels.current().conv2d(
            cout, kernel=(kernel, kernel), stride=stride, padding=kernel // 2
        )
        self.stride = stride

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3, 4)), (n * t, c, h, w))
        weight = ops.reshape(ops.cast(self.weight, x.dtype), self.shape)
        x = self.conv(x, weight)
        x = ops.reshape(x, (n, t, *x.shape[1:]))
        return ops.transpose(x, (0, 2, 1, 3, 4))


class Conv3d(nn.Cell):
    """A 3-D convolution without groups and bias, zero padding (k - 1) / 2.

    Input (N, C, T, H, W). `stride` applies to height and width. Weight (cout, cin, kt, kh, kw).
    """

    def __init__(self, cin: int, cout: int, kernel: tuple[int, int, int], stride: int = 1):
        super().__init__()
        self.weight = Parameter(init_kaiming_normal((cout, cin, *kernel)), name="weight")
        self.conv = kernels.current().conv3d(cout, kernel, stride)

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x, ops.cast(self.weight, x.dtype))


CONVOLUTIONS = (PointwiseConv3d, DepthwiseConv3d, FrameConv, Conv3d)
