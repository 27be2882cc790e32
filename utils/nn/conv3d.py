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
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, Zero, initializer
from mindspore.ops import constexpr

from utils.nn.cpu_kernels import operators as cpu
from utils.nn.layers import shift_frames

FORMS = ("taps", "grouped", "frames")


def init_kaiming_normal(shape: tuple[int, ...]) -> Tensor:
    """Normal with variance 2 / fan_out; fan_out counts all output channels, also with groups."""
    return initializer(Normal(sigma=float(np.sqrt(2 / (shape[0] * np.prod(shape[2:]))))), shape)


def merge_time_height(x: Tensor) -> Tensor:
    """(N, C, T, H, W) to (N, C, T*H, W)."""
    n, c, t, h, w = x.shape
    return ops.reshape(x, (n, c, t * h, w))


def split_time_height(x: Tensor, t: int) -> Tensor:
    """(N, C, T*H, W) to (N, C, T, H, W)."""
    n, c, th, w = x.shape
    return ops.reshape(x, (n, c, t, th // t, w))


class PointwiseConv3d(nn.Cell):
    """A 1x1x1 convolution of clips (N, C, T, H, W), computed as a 2-D convolution.

    The stride applies to height and width. Weight (cout, cin, 1, 1, 1). On Ascend a 3-D convolution
    would take float16 only.
    """

    def __init__(self, cin: int, cout: int, bias: bool = False, stride: int = 1):
        super().__init__()
        self.shape = (cout, cin, 1, 1)
        self.stride = stride
        self.weight = Parameter(init_kaiming_normal((cout, cin, 1, 1, 1)), name="weight")
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias") if bias else None
        self.add = ops.BiasAdd()
        self.conv = ops.Conv2D(out_channel=cout, kernel_size=1)
        self.strided = ops.Conv2D(out_channel=cout, kernel_size=1, stride=stride)
        self.cpu = cpu.build_pointwise()
        self.cpu_strided = cpu.build_convolution((stride, stride), (0, 0))

    def construct(self, x: Tensor) -> Tensor:
        t = x.shape[2]
        stride = self.stride
        with_kernel = self.cpu is not None and self.training and x.dtype == mstype.float32
        if with_kernel and stride == 1 and self.bias is None:  # a Reshape would copy gradients
            return self.cpu(self.weight, x)
        if x.shape[3] % stride:  # a stride over merged rows would not start at each frame's first
            x = x[:, :, :, ::stride, ::stride]
            stride = 1
        return split_time_height(self.convolve(merge_time_height(x), stride), t)

    def convolve(self, x: Tensor, stride: int) -> Tensor:
        weight = ops.cast(self.weight, x.dtype)
        with_kernel = self.cpu is not None and self.training and x.dtype == mstype.float32
        if with_kernel and stride == 1:  # the kernel takes weights of any number of axes
            x = self.cpu(weight, x)
        elif with_kernel:
            x = self.cpu_strided[0](x, ops.reshape(weight, self.shape), self.cpu_strided[1])
        else:
            weight = ops.reshape(weight, self.shape)
            x = (self.conv if stride == 1 else self.strided)(x, weight)
        return x if self.bias is None else self.add(x, ops.cast(self.bias, x.dtype))


def build_conv3d(
    cout: int, kernel: tuple[int, int, int], stride: int, group: int = 1
) -> ops.Conv3D:
    """The operator with zero padding (k - 1) / 2; `stride` applies to height and width."""
    pad = tuple(k // 2 for k in kernel for _ in range(2))
    strides = (1, stride, stride)
    return ops.Conv3D(cout, kernel, pad_mode="pad", pad=pad, stride=strides, group=group)


def stack(arrays: tuple, axis: int) -> Tensor:
    """Arrays of one shape along a new axis.

    In float32 by Concat: for an Ascend 910A with several ranks, MindSpore 2.10 finds no kernel of a
    float32 Stack (dry run). In float16 Stack is fewer kernels.
    """
    if arrays[0].dtype != mstype.float32:
        return ops.stack(arrays, axis)
    shape = arrays[0].shape
    parts = ()
    for array in arrays:
        parts += (ops.reshape(array, (*shape[:axis], 1, *shape[axis:])),)
    return ops.Concat(axis)(parts)


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
        self.impl = impl
        self.weight = Parameter(init_kaiming_normal((channels, 1, *kernel)), name="weight")
        self.padding = tuple(k // 2 for k in kernel)
        self.spread = ops.BatchMatMul()
        self.cpu = cpu.build_depthwise(stride) if kernel in cpu.DEPTHWISE_KERNELS else None
        # On Ascend even constructing the operator fails.
        self.grouped = (
            build_conv3d(channels, kernel, stride, channels) if impl == "grouped" else None
        )

    def construct(self, x: Tensor) -> Tensor:
        weight = ops.cast(self.weight, x.dtype)
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            return self.cpu[0](x, weight, self.cpu[1])
        if self.impl == "grouped":
            return self.grouped(x, weight)
        if self.impl == "taps":
            return self.convolve_taps(x, weight)
        n, c, t, h, w = x.shape
        return self.convolve_frames(ops.reshape(x, (n, c * t, h, w)), weight, t)

    def convolve_frames(self, x: Tensor, weight: Tensor, t: int) -> Tensor:
        """Form `frames`, of (N, C*T, H, W).

        Output frame o of a channel multiplies input frame i with the kernel's tap i - o + kt // 2.
        """
        c = self.channels
        (kt, kh, kw) = self.kernel
        bands = ops.cast(make_tap_bands(c, t, kt), weight.dtype)
        weight = self.spread(bands, ops.reshape(weight, (c, kt, kh * kw)))  # (C, T*T, kh*kw)
        x = self.convolve_2d(x, ops.reshape(weight, (c * t, t, kh, kw)), c)
        return ops.reshape(x, (x.shape[0], c, t, *x.shape[2:]))

    def convolve_taps(self, x: Tensor, weight: Tensor) -> Tensor:
        """Form `taps`: a 2-D depthwise convolution of kt copies of the clip, each shifted in time.

        The copies are separate channels, (N, kt*C*T, H, W); the taps are then summed. C is that of
        `weight` (C, 1, kt, kh, kw).
        """
        (n, c, t, h, w), (kt, kh, kw) = x.shape, self.kernel
        taps = [tap for tap in range(kt) if -t < tap - self.padding[0] < t]
        copies = ()
        for tap in taps:  # output frame i reads input frame i + tap - kt // 2
            copies += (shift_frames(x, tap - self.padding[0]),)
        k = len(taps)
        if k < kt:  # the kernel is longer than two clips
            weight = weight[:, :, taps[0] : taps[-1] + 1]
        weight = ops.reshape(weight, (c, k, 1, kh, kw))
        weight = ops.broadcast_to(weight, (c, k, t, kh, kw))
        if kh == 1 and kw == 1 and self.stride == 1:
            y = stack(copies, 2) * ops.reshape(weight, (1, c, k, t, 1, 1))
        else:
            channels = c * k * t
            x = ops.reshape(stack(copies, 2), (n, channels, h, w))
            y = self.convolve_2d(x, ops.reshape(weight, (channels, 1, kh, kw)), channels)
        return ops.reshape(y, (n, c, k, t, *y.shape[-2:])).sum(2)

    def convolve_2d(self, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        (_, half_h, half_w), (_, kh, kw) = self.padding, self.kernel
        conv = ops.Conv2D(
            out_channel=weight.shape[0],
            kernel_size=(kh, kw),
            pad_mode="pad",
            pad=(half_h, half_h, half_w, half_w),
            stride=self.stride,
            group=groups,
        )
        return conv(x, weight)


@constexpr
def make_tap_bands(c: int, t: int, kt: int) -> Tensor:
    """(C, T*T, kt): 1 if output frame o reads input frame i through this tap, i - o + kt // 2."""
    frame = np.arange(t)
    tap = frame[None, :] - frame[:, None] + kt // 2  # (o, i)
    bands = (tap[..., None] == np.arange(kt)).reshape(t * t, kt)
    return Tensor(np.broadcast_to(bands, (c, *bands.shape)).astype(np.float32))


class FrameConv(nn.Cell):
    """A 1 x k x k convolution without bias, computed frame by frame.

    Input (N, C, T, H, W). Weight (cout, cin, 1, k, k).
    """

    def __init__(self, cin: int, cout: int, kernel: int, stride: int = 1):
        super().__init__()
        self.weight = Parameter(init_kaiming_normal((cout, cin, 1, kernel, kernel)), name="weight")
        self.shape = (cout, cin, kernel, kernel)
        self.stride = stride
        self.cpu = cpu.build_convolution((stride,) * 2, (kernel // 2,) * 2)
        self.conv = ops.Conv2D(
            out_channel=cout, kernel_size=kernel, pad_mode="pad", pad=kernel // 2, stride=stride
        )

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3, 4)), (n * t, c, h, w))
        weight = ops.reshape(ops.cast(self.weight, x.dtype), self.shape)
        if self.cpu is not None and self.training and x.dtype == mstype.float32:
            x = self.cpu[0](x, weight, self.cpu[1])
        else:
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
        self.conv = build_conv3d(cout, kernel, stride)

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x, ops.cast(self.weight, x.dtype))


CONVOLUTIONS = (PointwiseConv3d, DepthwiseConv3d, FrameConv, Conv3d)
