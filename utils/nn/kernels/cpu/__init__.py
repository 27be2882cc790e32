"""The operators of a training in float32 on a CPU: kernels of this folder, else MindSpore's.

MindSpore compiles one gradient function for all operators of the same kernel. So a gradient
function must not depend on arguments of the function that builds the operator: settings are inputs,
and variants have kernels of different names.
"""

from functools import partialmethod
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn.kernels.plain import MatMul, Operator, Plain, make_zeros
from utils.nn.kernels.plain import NormReLU as PlainNormReLU

DEPTHWISE_KERNELS = ((3, 3, 3), (5, 1, 1))


class CompiledKernel(ops.Custom):
    """A kernel of a library. If `only_shapes`, an eager run of it returns zeros."""

    only_shapes = False

    def __call__(self, *inputs: Tensor) -> Union[Tensor, tuple]:
        if not self.only_shapes:
            return super().__call__(*inputs)
        shapes = self.out_shape(*(tuple(x.shape) for x in inputs))
        if shapes and isinstance(shapes[0], tuple):
            return tuple(make_zeros(shape) for shape in shapes)
        return make_zeros(shapes)


def copy_first(*values):
    """The shape or type of the first input."""
    return values[0]


class Kernel(Operator):
    """An operator that calls a kernel with its inputs, and then with settings."""

    def __init__(self, kernel: ops.Custom, *settings: list):
        super().__init__()
        self.kernel = kernel
        self.settings = tuple(Tensor(np.array(values, np.int32)) for values in settings)

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.kernel(*inputs, *self.settings)


class Pointwise(Kernel):
    """A kernel whose first input is the weight.

    It takes weights and inputs of any number of axes: a Reshape copies gradients.
    """

    def construct(self, x: Tensor, weight: Tensor, bias: None = None) -> Tensor:
        return self.kernel(weight, x)


class BatchNorm(Kernel):
    """A kernel that returns the new running statistics as its last outputs."""

    def construct(self, x, gamma, beta, mean, variance, *shortcut) -> tuple:
        # Not unpacked: MindSpore would print two warnings for the outputs that nothing reads.
        outputs = self.kernel(x, gamma, beta, mean, variance, *shortcut)
        ops.assign(mean, outputs[3])
        ops.assign(variance, outputs[4])
        return outputs


class NormReLU(PlainNormReLU):
    """In training, kernels of a batch norm and ReLU, without and with a shortcut."""

    def __init__(self, kernel: ops.Custom, kernel_with_shortcut: ops.Custom):
        super().__init__()
        self.kernel = BatchNorm(kernel)
        self.kernel_with_shortcut = BatchNorm(kernel_with_shortcut)

    def construct(self, norm: nn.Cell, relu: nn.Cell, x: Tensor, shortcut: Optional[Tensor]):
        if not self.training or norm.use_batch_statistics is False:
            return self.compute(norm, relu, x, shortcut)
        arrays = (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
        if shortcut is None:
            return self.kernel(x, *arrays)[0]
        return self.kernel_with_shortcut(x, *arrays, shortcut)[0]


class SumArrays(Kernel):
    """A kernel of all arrays of a tuple."""

    def construct(self, arrays: tuple) -> Tensor:
        return self.kernel(*arrays)


class LayerNorm(Kernel):
    """A kernel with epsilon as an input; its first output is the result."""

    def __init__(self, kernel: ops.Custom, eps: float):
        super().__init__(kernel)
        self.eps = Tensor([eps], mstype.float32)

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return self.kernel(x, gamma, beta, self.eps)[0]


class Product(MatMul):
    """A kernel of the products of (N, m, k) and (N, k, n) or (N, n, k)."""

    def __init__(self, kernel: ops.Custom):
        Operator.__init__(self)
        self.kernel = kernel

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        products = self.kernel(
            ops.reshape(x, (-1, *x.shape[-2:])), ops.reshape(y, (-1, *y.shape[-2:]))
        )
        return ops.reshape(products, (*x.shape[:-2], *products.shape[1:]))


class Linear(Operator):
    """Kernels of a product and of adding a bias."""

    def __init__(self, product: ops.Custom, add: ops.Custom):
        super().__init__()
        self.product = product
        self.add = add

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = ops.reshape(x, (1, -1, weight.shape[1]))
        y = self.add(self.product(rows, ops.expand_dims(weight, 0)), bias)
        return ops.reshape(y, (*x.shape[:-1], weight.shape[0]))


class ChannelsFirstLinear(Linear):
    """Kernels of a product whose first factor is one matrix, and of adding a bias."""

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.add(self.product(ops.expand_dims(weight, 0), x), bias)


class Cpu(Plain):
    """The operators of a library that `library.load` has compiled."""

    def __init__(self, library: Path):
        self.library = library

    def bind(self, name: str, shape: Callable, dtype: Callable, bprop: Optional[Callable] = None):
        """The kernel `name`; `shape` and `dtype` give its outputs from those of its inputs."""
        return CompiledKernel(
            f"{self.library}:{name}", out_shape=shape, out_dtype=dtype, func_type="aot", bprop=bprop
        )

    def bind_norm_gradient(self, name: str) -> ops.Custom:
        """(dy, x, gamma[, beta], mean, 1 / deviation) to (dx, dgamma, dbeta)."""
        return self.bind(
            name, lambda dy, x, gamma, *_: (x, gamma, gamma), lambda dy, *_: (dy, dy, dy)
        )

    def bind_map(self, name: str, uses_output: bool = False) -> ops.Custom:
        """`relu`, `silu` or `gelu`: a function of the elements.

        `uses_output`: its gradient is computed from its output, not from its input.
        """
        gradient = self.bind(f"{name}_grad", copy_first, copy_first)

        def bprop(x, out, dout):
            return (gradient(dout, out if uses_output else x),)

        return self.bind(name, shape=copy_first, dtype=copy_first, bprop=bprop)

    relu: Any = partialmethod(bind_map, "relu", uses_output=True)
    silu: Any = partialmethod(bind_map, "silu")
    gelu: Any = partialmethod(bind_map, "gelu")

    def conv2d(
        self,
        cout: int,
        kernel: tuple[int, int],
        stride: int,
        padding: Optional[int],
        groups: int = 1,
    ) -> Callable:
        if padding is None:
            return super().conv2d(cout, kernel, stride, padding, groups)
        if kernel == (1, 1) and stride == groups == 1:
            return Pointwise(self.bind_pointwise())

        def compute_shape(x, w, _):
            sizes = zip(x[2:], w[2:])
            return (x[0], w[0], *((size + 2 * padding - k) // stride + 1 for size, k in sizes))

        def take_third(_, __, third, ____):
            return third

        input_grad = self.bind("convolution_input_grad", take_third, copy_first)
        weight_grad = self.bind("convolution_weight_grad", take_third, copy_first)

        def bprop(x, w, numbers, out, dout):
            dx = input_grad(dout, w, x, numbers)
            return dx, weight_grad(dout, x, w, numbers), ops.zeros_like(numbers)

        operator = self.bind("convolution", shape=compute_shape, dtype=copy_first, bprop=bprop)
        return Kernel(operator, [stride, stride, padding, padding, groups])

    def bind_pointwise(self) -> ops.Custom:
        """A 1x1 convolution: weight (cout, cin, 1, 1), x (N, cin, ...)."""
        input_grad = self.bind(
            "pointwise_input_grad", lambda w, dy: (dy[0], w[1], *dy[2:]), copy_first
        )
        weight_grad = self.bind("pointwise_weight_grad", lambda dy, x, w: w, copy_first)

        def bprop(w, x, out, dout):
            return weight_grad(dout, x, w), input_grad(w, dout)

        return self.bind(
            "pointwise", shape=lambda w, x: (x[0], w[0], *x[2:]), dtype=copy_first, bprop=bprop
        )

    def pointwise3d(self, cout: int, stride: int, has_bias: bool) -> Callable:
        if stride > 1 or has_bias:
            return super().pointwise3d(cout, stride, has_bias)
        return Pointwise(self.bind_pointwise())

    def depthwise3d(
        self, channels: int, kernel: tuple[int, int, int], stride: int, impl: str
    ) -> Callable:
        if kernel not in DEPTHWISE_KERNELS:
            return super().depthwise3d(channels, kernel, stride, impl)

        def infer_gradients(dy, x, w, _):
            return x, w

        gradient = self.bind("depthwise_grad", infer_gradients, infer_gradients)

        def compute_shape(x, w, _):
            return (*x[:3], (x[3] - 1) // stride + 1, (x[4] - 1) // stride + 1)

        def bprop(x, w, settings, out, dout):
            dx, dw = gradient(dout, x, w, settings)
            return dx, dw, ops.zeros_like(settings)

        operator = self.bind("depthwise", shape=compute_shape, dtype=copy_first, bprop=bprop)
        return Kernel(operator, [stride])

    def bind_product(self, transpose: bool, shared: bool = False) -> ops.Custom:
        """Products of (N, m, k) and (N, k, n); with `transpose` the second factor is (N, n, k).

        `shared`, only with `transpose`: the first factor is one matrix for all products, (1, m, k).
        """

        def bind(name: str, rows: int, columns: int, is_sum: bool = False, bprop=None):
            """`rows` and `columns` are the axes of the factors that the result has."""

            def compute_shape(a, b):
                return 1 if is_sum else max(a[0], b[0]), a[rows], b[columns]

            return self.bind(name, shape=compute_shape, dtype=copy_first, bprop=bprop)

        plain = bind("product", 1, 2, is_sum=shared)
        second = bind("product_second_transposed", 1, 1)
        other = bind("product_first_transposed", 2, 2)

        def bprop(a, b, out, dout):
            if transpose:
                return plain(dout, b), other(dout, a)
            return second(dout, b), other(a, dout)

        if not transpose:
            return bind("product", 1, 2, bprop=bprop)
        kind = "shared_" if shared else ""
        return bind(kind + "product_second_transposed", 1, 1, bprop=bprop)

    def bind_bias(self, name: str) -> ops.Custom:
        """x + b: `add_bias` along the last axis of x, `add_channel_bias` along its second."""
        gradient = self.bind(f"{name}_grad", lambda dy, b: b, copy_first)

        def bprop(x, b, out, dout):
            return dout, gradient(dout, b)

        return self.bind(name, shape=copy_first, dtype=copy_first, bprop=bprop)

    def matmul(self, transpose: bool = False) -> Callable:
        return Product(self.bind_product(transpose))

    def linear(self) -> Callable:
        return Linear(self.bind_product(transpose=True), self.bind_bias("add_bias"))

    def channels_first_linear(self) -> Callable:
        product = self.bind_product(transpose=True, shared=True)
        return ChannelsFirstLinear(product, self.bind_bias("add_channel_bias"))

    def max_pool(self, kernel: int, stride: int) -> nn.Cell:
        padding = (kernel - 1) // 2

        def compute_shape(x, _):
            return (*x[:2], *((size + 2 * padding - kernel) // stride + 1 for size in x[2:]))

        gradient = self.bind("max_pool_grad", lambda dy, x, settings: x, copy_first)

        def bprop(x, settings, out, dout):
            return gradient(dout, x, settings), ops.zeros_like(settings)

        operator = self.bind("max_pool", shape=compute_shape, dtype=copy_first, bprop=bprop)
        return Kernel(operator, [kernel, stride, padding])

    def bind_sum(self, name: str) -> Callable:
        return SumArrays(self.bind(name, lambda *_: (), copy_first))

    total: Any = partialmethod(bind_sum, "total")
    square_sum: Any = partialmethod(bind_sum, "sum_of_squares")

    def bind_batch_norm(self, name: str, bprop: Callable) -> ops.Custom:
        """The outputs are y, the batch's mean and 1 / deviation, the new mean and variance."""
        return self.bind(
            name,
            lambda x, gamma, *_: (x, gamma, gamma, gamma, gamma),
            lambda x, *_: (x, x, x, x, x),
            bprop,
        )

    def batch_norm(self) -> Callable:
        gradient = self.bind_norm_gradient("batch_norm_grad")

        def bprop(x, gamma, beta, mean, variance, out, dout):
            dx, dgamma, dbeta = gradient(dout[0], x, gamma, out[1], out[2])
            return dx, dgamma, dbeta, ops.zeros_like(mean), ops.zeros_like(variance)

        return BatchNorm(self.bind_batch_norm("batch_norm", bprop))

    def norm_relu(self) -> Callable:
        gradient = self.bind_norm_gradient("batch_norm_relu_grad")
        gradient_with_shortcut = self.bind(
            "batch_norm_add_relu_grad",
            lambda dy, x, y, gamma, *_: (x, gamma, gamma, x),
            lambda dy, *_: (dy, dy, dy, dy),
        )

        def bprop(x, gamma, beta, mean, variance, out, dout):
            dx, dgamma, dbeta = gradient(dout[0], x, gamma, beta, out[1], out[2])
            return dx, dgamma, dbeta, ops.zeros_like(mean), ops.zeros_like(variance)

        def bprop_with_shortcut(x, gamma, beta, mean, variance, shortcut, out, dout):
            grads = gradient_with_shortcut(dout[0], x, out[0], gamma, out[1], out[2])
            return *grads[:3], ops.zeros_like(mean), ops.zeros_like(variance), grads[3]

        return NormReLU(
            self.bind_batch_norm("batch_norm_relu", bprop),
            self.bind_batch_norm("batch_norm_add_relu", bprop_with_shortcut),
        )

    batch_norm3d: Any = batch_norm

    def layer_norm(self, eps: float) -> Callable:
        """The outputs are y, the mean and 1 / deviation over the last axis."""
        gradient = self.bind_norm_gradient("layer_norm_grad")

        def bprop(x, gamma, beta, epsilon, out, dout):
            dx, dgamma, dbeta = gradient(dout[0], x, gamma, out[1], out[2])
            return dx, dgamma, dbeta, ops.zeros_like(epsilon)

        operator = self.bind(
            "layer_norm", lambda x, *_: (x, x[:-1], x[:-1]), lambda x, *_: (x, x, x), bprop
        )
        return LayerNorm(operator, eps)

    def temporal_shift(self, segments: int, fold: int) -> Callable:
        gradient = self.bind("shift", copy_first, copy_first)

        def bprop(x, settings, reverse, out, dout):
            dx = gradient(dout, reverse, settings)
            return dx, ops.zeros_like(settings), ops.zeros_like(reverse)

        operator = self.bind("shift", shape=copy_first, dtype=copy_first, bprop=bprop)
        # The settings of the shift, and of its gradient
        return Kernel(operator, [segments, fold, 1], [segments, fold, -1])
