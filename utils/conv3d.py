"""Convolutions of clips (N, C, T, H, W) with PyTorch's weights, in forms that every device has.

* 1x1x1: a 2-D convolution over (N, C, T*H, W), which costs no copy.
* depthwise: one grouped 3-D kernel, or a sum over the kernel's frames of 2-D depthwise convolutions
  over (N, C*T, H, W). Ascend documents only group 1 for the 3-D kernel; the second form keeps the
  network what it is there. Both are exact.
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, Zero, initializer

FORMS = ("taps", "grouped")


def kaiming(shape: tuple[int, ...]) -> Tensor:
    """Normal, variance 2 / fan_out; fan_out counts all output channels, groups or not."""
    return initializer(Normal(sigma=float(np.sqrt(2 / (shape[0] * np.prod(shape[2:]))))), shape)


class PointwiseConv3d(nn.Cell):
    """1x1x1; `stride` is of height and width. Weight (cout, cin, 1, 1, 1)."""

    def __init__(self, cin: int, cout: int, stride: int = 1, bias: bool = False):
        super().__init__()
        self.cin, self.cout = cin, cout
        self.weight = Parameter(kaiming((cout, cin, 1, 1, 1)), name="weight")
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias") if bias else None
        # A pool of one pixel picks every second one, and has a gradient everywhere.
        self.thin = nn.MaxPool2d(1, stride, "valid") if stride > 1 else None
        self.conv = ops.Conv2D(out_channel=cout, kernel_size=1)

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        if self.thin is not None:
            x = self.thin(x.reshape(n, c * t, h, w))
            h, w = x.shape[2:]
        weight = self.weight.astype(x.dtype).reshape(self.cout, self.cin, 1, 1)
        y = self.conv(x.reshape(n, c, t * h, w), weight).reshape(n, self.cout, t, h, w)
        return y if self.bias is None else y + self.bias.astype(y.dtype).reshape(1, -1, 1, 1, 1)


class DepthwiseConv3d(nn.Cell):
    """One kernel a channel, zero padding (k - 1) / 2; `stride` is of height and width.

    Weight (channels, 1, kt, kh, kw), odd sizes. `form` is one of FORMS.
    """

    def __init__(
        self, channels: int, kernel: tuple[int, int, int], stride: int = 1, form: str = "taps"
    ):
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form}")
        kt, kh, kw = kernel
        self.channels, self.kernel, self.stride, self.form = channels, kernel, stride, form
        self.weight = Parameter(kaiming((channels, 1, kt, kh, kw)), name="weight")
        half_t, half_h, half_w = (k // 2 for k in kernel)
        self.half = half_t
        self.grouped = ops.Conv3D(
            out_channel=channels,
            kernel_size=kernel,
            pad_mode="pad",
            pad=(half_t, half_t, half_h, half_h, half_w, half_w),
            stride=(1, stride, stride),
            group=channels,
        )
        self.padding = (half_h, half_w)

    def construct(self, x: Tensor) -> Tensor:
        if self.form == "grouped":
            return self.grouped(x, self.weight.astype(x.dtype))
        n, c, t, h, w = x.shape
        kt, kh, kw = self.kernel
        flat, total = x.reshape(n, c * t, h, w), None
        for tap in range(kt):
            shift = tap - self.half  # output frame i takes input frame i + shift
            if -t < shift < t:
                y = self.frames(flat, self.weight[:, :, tap].astype(x.dtype), t)
                y = moved(y.reshape(n, c, t, *y.shape[2:]), shift)
                total = y if total is None else total + y
        return total

    def frames(self, x: Tensor, weight: Tensor, t: int) -> Tensor:
        """One tap: (N, C*T, H, W), every frame of a channel with the same (kh, kw) kernel."""
        c, (_, kh, kw) = self.channels, self.kernel
        if kh == 1 and kw == 1 and self.stride == 1:
            return x * repeat_frames(weight, c, t).reshape(1, c * t, 1, 1)
        weight = repeat_frames(weight, c, t).reshape(c * t, 1, kh, kw)
        return ops.conv2d(x, weight, None, self.stride, "pad", self.padding, groups=c * t)


class FrameConv(nn.Cell):
    """1 x k x k: a 2-D convolution of every frame, without bias. Weight (cout, cin, 1, k, k)."""

    def __init__(self, cin: int, cout: int, kernel: int, stride: int = 1):
        super().__init__()
        self.weight = Parameter(kaiming((cout, cin, 1, kernel, kernel)), name="weight")
        self.stride, self.padding = stride, kernel // 2

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = x.transpose(0, 2, 1, 3, 4).reshape(n * t, c, h, w)
        weight = self.weight[:, :, 0].astype(x.dtype)
        x = ops.conv2d(x, weight, None, self.stride, "pad", self.padding)
        return x.reshape(n, t, *x.shape[1:]).transpose(0, 2, 1, 3, 4)


class Conv3d(nn.Cell):
    """A dense one without bias, padded by (k - 1) / 2; `stride` is of height and width."""

    def __init__(self, cin: int, cout: int, kernel: tuple[int, int, int], stride: int = 1):
        super().__init__()
        self.weight = Parameter(kaiming((cout, cin, *kernel)), name="weight")
        self.conv = ops.Conv3D(
            out_channel=cout,
            kernel_size=kernel,
            pad_mode="pad",
            pad=tuple(k // 2 for k in kernel for _ in range(2)),
            stride=(1, stride, stride),
        )

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x, self.weight.astype(x.dtype))


def repeat_frames(weight: Tensor, channels: int, t: int) -> Tensor:
    """(C, 1, kh, kw) to (C, T, kh, kw)."""
    return ops.broadcast_to(weight, (channels, t, *weight.shape[2:]))


def moved(x: Tensor, shift: int) -> Tensor:
    """Frame i of the result is frame i + shift, blank outside the clip; (N, C, T, H, W)."""
    if shift == 0:
        return x
    blank = ops.zeros((*x.shape[:2], abs(shift), *x.shape[3:]), x.dtype)
    if shift > 0:
        return ops.cat((x[:, :, shift:], blank), axis=2)
    return ops.cat((blank, x[:, :, :shift]), axis=2)
