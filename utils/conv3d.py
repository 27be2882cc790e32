"""Convolutions of clips (N, C, T, H, W) with PyTorch's weights, in forms that every device has.

* 1x1x1: a 2-D convolution of all frames below one another, (N, C, T*H, W), which costs no copy.
* depthwise: three exact forms of the same sum.
  `grouped`: one grouped 3-D kernel, where the device has it (Ascend documents group 1 only);
  `taps`: for every frame of the kernel a 2-D depthwise convolution over (N, C*T, H, W), then a
  shift in time: only operators that every device has;
  `frames`: one 2-D convolution in C groups whose channels are the T frames, with a banded T x T
  kernel: T / kt times the multiplications, but matrix products instead of loops. The fastest on a
  CPU by a factor of 2 to 4.
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, Zero, initializer
from mindspore.ops import constexpr

FORMS = ("taps", "grouped", "frames")


def kaiming(shape: tuple[int, ...]) -> Tensor:
    """Normal, variance 2 / fan_out; fan_out counts all output channels, groups or not."""
    return initializer(Normal(sigma=float(np.sqrt(2 / (shape[0] * np.prod(shape[2:]))))), shape)


def stacked(x: Tensor) -> Tensor:
    """(N, C, T, H, W) to (N, C, T*H, W): a clip as one tall image."""
    n, c, t, h, w = x.shape
    return ops.reshape(x, (n, c, t * h, w))


def unstacked(x: Tensor, t: int) -> Tensor:
    """(N, C, T*H, W) to (N, C, T, H, W)."""
    n, c, th, w = x.shape
    return ops.reshape(x, (n, c, t, th // t, w))


class PointwiseConv3d(nn.Cell):
    """1x1x1 over stacked clips (N, C, T*H, W). Weight (cout, cin, 1, 1, 1)."""

    def __init__(self, cin: int, cout: int, bias: bool = False):
        super().__init__()
        self.shape = (cout, cin, 1, 1)
        self.weight = Parameter(kaiming((cout, cin, 1, 1, 1)), name="weight")
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias") if bias else None
        self.conv, self.add = ops.Conv2D(out_channel=cout, kernel_size=1), ops.BiasAdd()

    def construct(self, x: Tensor) -> Tensor:
        x = self.conv(x, ops.reshape(ops.cast(self.weight, x.dtype), self.shape))
        return x if self.bias is None else self.add(x, ops.cast(self.bias, x.dtype))


class DepthwiseConv3d(nn.Cell):
    """One kernel a channel, zero padding (k - 1) / 2; `stride` is of height and width.

    Takes (N, C, T, H, W). Weight (channels, 1, kt, kh, kw), odd sizes. `form` is one of FORMS.
    """

    def __init__(
        self, channels: int, kernel: tuple[int, int, int], stride: int = 1, form: str = "taps"
    ):
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form}")
        self.channels, self.kernel, self.stride, self.form = channels, kernel, stride, form
        self.weight = Parameter(kaiming((channels, 1, *kernel)), name="weight")
        self.padding = tuple(k // 2 for k in kernel)
        self.spread = ops.BatchMatMul()
        self.grouped = ops.Conv3D(
            out_channel=channels,
            kernel_size=kernel,
            pad_mode="pad",
            pad=tuple(k // 2 for k in kernel for _ in range(2)),
            stride=(1, stride, stride),
            group=channels,
        )

    def construct(self, x: Tensor) -> Tensor:
        weight = ops.cast(self.weight, x.dtype)
        if self.form == "grouped":
            return self.grouped(x, weight)
        n, c, t, h, w = x.shape
        flat = ops.reshape(x, (n, c * t, h, w))
        return self.taps(flat, weight, t) if self.form == "taps" else self.frames(flat, weight, t)

    def frames(self, x: Tensor, weight: Tensor, t: int) -> Tensor:
        """Output frame o of a channel takes input frame i with the kernel's tap i - o + kt // 2."""
        c, (kt, kh, kw) = self.channels, self.kernel
        bands = ops.cast(tap_bands(c, t, kt), weight.dtype)
        weight = self.spread(bands, ops.reshape(weight, (c, kt, kh * kw)))  # (C, T*T, kh*kw)
        x = self.conv(x, ops.reshape(weight, (c * t, t, kh, kw)), c)
        return ops.reshape(x, (x.shape[0], c, t, *x.shape[2:]))

    def taps(self, x: Tensor, weight: Tensor, t: int) -> Tensor:
        c, (kt, kh, kw), total = self.channels, self.kernel, None
        for tap in range(kt):
            shift = tap - self.padding[0]  # output frame i takes input frame i + shift
            if -t < shift < t:
                kernel = ops.broadcast_to(weight[:, :, tap], (c, t, kh, kw))
                if kh == 1 and kw == 1 and self.stride == 1:
                    y = x * ops.reshape(kernel, (1, c * t, 1, 1))
                else:
                    y = self.conv(x, ops.reshape(kernel, (c * t, 1, kh, kw)), c * t)
                y = moved(ops.reshape(y, (y.shape[0], c, t, *y.shape[2:])), shift)
                total = y if total is None else total + y
        return total

    def conv(self, x: Tensor, weight: Tensor, groups: int) -> Tensor:
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
def tap_bands(c: int, t: int, kt: int) -> Tensor:
    """(C, T*T, kt): 1 where input frame i meets output frame o through the tap i - o + kt // 2."""
    frame = np.arange(t)
    tap = frame[None, :] - frame[:, None] + kt // 2  # (o, i)
    bands = (tap[..., None] == np.arange(kt)).reshape(t * t, kt)
    return Tensor(np.broadcast_to(bands, (c, *bands.shape)).astype(np.float32))


class FrameConv(nn.Cell):
    """1 x k x k: a 2-D convolution of every frame, without bias. Weight (cout, cin, 1, k, k)."""

    def __init__(self, cin: int, cout: int, kernel: int, stride: int = 1):
        super().__init__()
        self.weight = Parameter(kaiming((cout, cin, 1, kernel, kernel)), name="weight")
        self.shape = (cout, cin, kernel, kernel)
        self.conv = ops.Conv2D(
            out_channel=cout, kernel_size=kernel, pad_mode="pad", pad=kernel // 2, stride=stride
        )

    def construct(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3, 4)), (n * t, c, h, w))
        x = self.conv(x, ops.reshape(ops.cast(self.weight, x.dtype), self.shape))
        x = ops.reshape(x, (n, t, *x.shape[1:]))
        return ops.transpose(x, (0, 2, 1, 3, 4))


class Conv3d(nn.Cell):
    """A dense one without bias, padded by (k - 1) / 2; `stride` is of height and width.

    Takes (N, C, T, H, W). Weight (cout, cin, kt, kh, kw).
    """

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
        return self.conv(x, ops.cast(self.weight, x.dtype))


def moved(x: Tensor, shift: int) -> Tensor:
    """Frame i of the result is frame i + shift, blank outside the clip; (N, C, T, H, W)."""
    if shift == 0:
        return x
    blank = ops.zeros((*x.shape[:2], abs(shift), *x.shape[3:]), x.dtype)
    if shift > 0:
        return ops.cat((x[:, :, shift:], blank), axis=2)
    return ops.cat((blank, x[:, :, :shift]), axis=2)
