"""The kernels of this folder as operators with gradients, for training graphs in float32 on a CPU.

Each function returns an operator, or None if the kernels are not enabled (`library.enable`).

MindSpore compiles one gradient function for all operators of the same kernel. So a gradient
function must not depend on arguments of the function that builds the operator: settings are inputs,
and variants have kernels of different names.
"""

from typing import Callable, Optional

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.cpu_kernels.library import find_library

DEPTHWISE_KERNELS = ((3, 3, 3), (5, 1, 1))


def bind(name: str, shape: Callable, dtype: Callable, bprop: Optional[Callable] = None):
    """The kernel `name`; `shape` and `dtype` give its outputs from those of its inputs."""
    return ops.Custom(f"{find_library()}:{name}", shape, dtype, "aot", bprop)


def first(*values):
    return values[0]


def bind_norm_gradient(name: str):
    """(dy, x, gamma, mean, 1 / deviation) to (dx, dgamma, dbeta)."""
    return bind(name, lambda dy, x, gamma, *_: (x, gamma, gamma), lambda dy, *_: (dy, dy, dy))


def build_map(name: str, uses_output: bool = False) -> Optional[ops.Custom]:
    """`relu`, `silu` or `gelu`: a function of the elements.

    `uses_output`: its gradient is computed from its output, not from its input.
    """
    if find_library() is None:
        return None
    gradient = bind(f"{name}_grad", first, first)

    def bprop(x, out, dout):
        return (gradient(dout, out if uses_output else x),)

    return bind(name, first, first, bprop)


def build_convolution(
    stride: tuple, padding: tuple, groups: int = 1
) -> Optional[tuple[ops.Custom, Tensor]]:
    """A convolution of (N, C, ...) without bias, and its third input: call it as (x, w, settings).

    `padding` is that before and after each axis.
    """
    if find_library() is None:
        return None
    settings = Tensor(np.array([*stride, *padding, groups], np.int32))

    def compute_shape(x, w, _):
        sizes = zip(x[2:], w[2:], stride, padding)
        return (x[0], w[0], *((size + 2 * pad - k) // step + 1 for size, k, step, pad in sizes))

    def take_third(_, __, third, ____):
        return third

    input_grad = bind("convolution_input_grad", take_third, first)
    weight_grad = bind("convolution_weight_grad", take_third, first)

    def bprop(x, w, numbers, out, dout):
        dx = input_grad(dout, w, x, numbers)
        return dx, weight_grad(dout, x, w, numbers), ops.zeros_like(numbers)

    return bind("convolution", compute_shape, first, bprop), settings


def build_pointwise() -> Optional[ops.Custom]:
    """A 1x1 convolution with stride 1 and no bias: weight (cout, cin, 1, ...), x (N, cin, ...)."""
    if find_library() is None:
        return None
    input_grad = bind("pointwise_input_grad", lambda w, dy: (dy[0], w[1], *dy[2:]), first)
    weight_grad = bind("pointwise_weight_grad", lambda dy, x, w: w, first)

    def bprop(w, x, out, dout):
        return weight_grad(dout, x, w), input_grad(w, dout)

    return bind("pointwise", lambda w, x: (x[0], w[0], *x[2:]), first, bprop)


def build_product(transpose: bool = False, shared: bool = False) -> Optional[ops.Custom]:
    """Products of (N, m, k) and (N, k, n); with `transpose` the second factor is (N, n, k).

    `shared`, only with `transpose`: the first factor is one matrix for all products, (1, m, k).
    """
    if find_library() is None:
        return None

    def bind_product(name: str, rows: int, columns: int, is_sum: bool = False, bprop=None):
        """`rows` and `columns` are the axes of the factors that the result has."""

        def compute_shape(a, b):
            return 1 if is_sum else max(a[0], b[0]), a[rows], b[columns]

        return bind(name, compute_shape, first, bprop)

    plain = bind_product("product", 1, 2, is_sum=shared)
    second = bind_product("product_second_transposed", 1, 1)
    other = bind_product("product_first_transposed", 2, 2)

    def bprop(a, b, out, dout):
        if transpose:
            return plain(dout, b), other(dout, a)
        return second(dout, b), other(a, dout)

    if not transpose:
        return bind_product("product", 1, 2, bprop=bprop)
    kind = "shared_" if shared else ""
    return bind_product(kind + "product_second_transposed", 1, 1, bprop=bprop)


def build_max_pool(kernel: int, stride: int, padding: int) -> Optional[tuple[ops.Custom, Tensor]]:
    """A max pool of (N, C, H, W), and its second input: call it as (x, settings)."""
    if find_library() is None:
        return None

    def compute_shape(x, _):
        return (*x[:2], *((size + 2 * padding - kernel) // stride + 1 for size in x[2:]))

    gradient = bind("max_pool_grad", lambda dy, x, settings: x, first)

    def bprop(x, settings, out, dout):
        return gradient(dout, x, settings), ops.zeros_like(settings)

    settings = Tensor(np.array([kernel, stride, padding], np.int32))
    return bind("max_pool", compute_shape, first, bprop), settings


def build_bias(name: str) -> Optional[ops.Custom]:
    """x + b: `add_bias` along the last axis of x, `add_channel_bias` along its second."""
    if find_library() is None:
        return None
    gradient = bind(f"{name}_grad", lambda dy, b: b, first)

    def bprop(x, b, out, dout):
        return dout, gradient(dout, b)

    return bind(name, first, first, bprop)


def build_sum(name: str) -> Optional[ops.Custom]:
    """`total` or `sum_of_squares` of all elements, shape (), without a gradient."""
    return None if find_library() is None else bind(name, lambda x: (), first)


def build_depthwise(stride: int) -> Optional[tuple[ops.Custom, Tensor]]:
    """A depthwise 3-D convolution of (N, C, T, H, W), and its third input.

    Kernels (C, 1, 3, 3, 3) or (C, 1, 5, 1, 1), zero padding (k - 1) / 2; `stride` applies to height
    and width.
    """
    if find_library() is None:
        return None
    gradient = bind("depthwise_grad", lambda dy, x, w, _: (x, w), lambda dy, x, w, _: (x, w))

    def compute_shape(x, w, _):
        return (*x[:3], (x[3] - 1) // stride + 1, (x[4] - 1) // stride + 1)

    def bprop(x, w, settings, out, dout):
        dx, dw = gradient(dout, x, w, settings)
        return dx, dw, ops.zeros_like(settings)

    settings = Tensor(np.array([stride], np.int32))
    return bind("depthwise", compute_shape, first, bprop), settings


def build_batch_norm() -> Optional[ops.Custom]:
    """(x, gamma, beta, moving mean, moving variance) to (y, ..., new mean, new variance).

    The five outputs are y, the batch's mean and 1 / deviation, the new moving mean and variance.
    Epsilon is 1e-5, the batch has weight 0.1.
    """
    if find_library() is None:
        return None

    def compute_shape(x, gamma, *_):
        return x, gamma, gamma, gamma, gamma

    gradient = bind_norm_gradient("batch_norm_grad")

    def bprop(x, gamma, beta, mean, variance, out, dout):
        dx, dgamma, dbeta = gradient(dout[0], x, gamma, out[1], out[2])
        return dx, dgamma, dbeta, ops.zeros_like(mean), ops.zeros_like(variance)

    return bind("batch_norm", compute_shape, lambda x, *_: (x, x, x, x, x), bprop)


def build_layer_norm(eps: float) -> Optional[tuple[ops.Custom, Tensor]]:
    """(x, gamma, beta, eps) to (y, mean, 1 / deviation) over the last axis, and the eps."""
    if find_library() is None:
        return None
    gradient = bind_norm_gradient("layer_norm_grad")

    def bprop(x, gamma, beta, epsilon, out, dout):
        dx, dgamma, dbeta = gradient(dout[0], x, gamma, out[1], out[2])
        return dx, dgamma, dbeta, ops.zeros_like(epsilon)

    def infer_shapes(x, *_):
        return x, x[:-1], x[:-1]

    def infer_types(x, *_):
        return x, x, x

    kernel = bind("layer_norm", infer_shapes, infer_types, bprop)
    return kernel, Tensor([eps], mstype.float32)


def build_shift(segments: int, fold: int) -> Optional[tuple[ops.Custom, Tensor, Tensor]]:
    """The temporal shift of (N*T, C, H, W), and its second and third input."""
    if find_library() is None:
        return None
    gradient = bind("shift", first, first)

    def bprop(x, settings, reverse, out, dout):
        dx = gradient(dout, reverse, settings)
        return dx, ops.zeros_like(settings), ops.zeros_like(reverse)

    settings = (Tensor(np.array([segments, fold, step], np.int32)) for step in (1, -1))
    return bind("shift", first, first, bprop), *settings
