"""The operators of a training in float32 on a CPU: kernels of this folder, else MindSpore's.

MindSpore compiles one gradient function for all operators of the same kernel. So a gradient
function must not depend on arguments of the function that builds the operator: settings are inputs,
and variants have kernels of different names.
"""

from functools import partial, partialmethod
from pathlib import Path
from typing import Any, Callable, Optional, Union

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn.kernels import plain
from utils.nn.kernels.plain import MatMul, Operator, Plain, make_zeros

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


class Kernel(Operator):
    """An operator that calls a kernel with its inputs, and then with settings.

    `construct` unpacks no tuple: a profile would not name the Cell of the kernel then.
    """

    def __init__(self, kernel: ops.Custom, *settings: list, dtype: mstype = mstype.int32):
        super().__init__()
        self.kernel = kernel
        self.settings = tuple(Tensor(values, dtype) for values in settings)


class MaxPool(Kernel):
    def construct(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.settings[0])


class Shift(Kernel):
    def construct(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.settings[0], self.settings[1])


class Convolution(Kernel):
    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.kernel(x, weight, self.settings[0])


class Pointwise(Kernel):
    """A kernel whose first input is the weight.

    It takes weights and inputs of any number of axes: a Reshape copies gradients.
    """

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.kernel(weight, x)


class BatchNorm(Kernel):
    """A kernel that returns the new running statistics as its last outputs."""

    def construct(self, x, gamma, beta, mean, variance, *shortcut) -> tuple:
        # Not unpacked: MindSpore would print two warnings for the outputs that nothing reads.
        outputs = self.kernel(x, gamma, beta, mean, variance, *shortcut)
        ops.assign(mean, outputs[3])
        ops.assign(variance, outputs[4])
        return outputs


class LayerNorm(Kernel):
    """A kernel whose first output is the result."""

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return self.kernel(x, gamma, beta, self.settings[0])[0]


class SumArrays(plain.SumArrays):
    """A kernel of all arrays of a tuple."""

    def construct(self, arrays: tuple) -> Tensor:
        return self.finish(self.compute(*arrays))


class Product(MatMul):
    """A kernel of the products of (N, m, k) and (N, k, n) or (N, n, k)."""

    def __init__(self, kernel: ops.Custom):
        Operator.__init__(self)
        self.kernel = kernel

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        x3, y3 = ops.reshape(x, (-1, *x.shape[-2:])), ops.reshape(y, (-1, *y.shape[-2:]))
        products = self.kernel(x3, y3)
        return ops.reshape(products, (*x.shape[:-2], *products.shape[1:]))


class Linear(Operator):
    """Kernels of a product and of adding a bias.

    If `channels_first`, the product's first factor is the weight, one matrix for all clips.
    """

    def __init__(self, product: ops.Custom, add: ops.Custom, channels_first: bool):
        super().__init__()
        self.product = product
        self.add = add
        self.channels_first = channels_first

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.channels_first:
            return self.add(self.product(ops.expand_dims(weight, 0), x), bias)
        rows = ops.reshape(x, (1, -1, weight.shape[1]))
        y = self.add(self.product(rows, ops.expand_dims(weight, 0)), bias)
        return ops.reshape(y, (*x.shape[:-1], weight.shape[0]))


def convolve_shape(stride: int, x: tuple, w: tuple, *_) -> tuple:
    """The output of a convolution of (N, C, [T,] H, W), padded by (kernel - 1) / 2."""
    sizes = zip(x[-2:], w[-2:])
    sides = ((size + (k - 1) // 2 * 2 - k) // stride + 1 for size, k in sizes)
    return (x[0], w[0], *x[2:-2], *sides)


def multiply_shapes(row: int, column: int, a: tuple, b: tuple) -> tuple:
    """The shape of products that have these axes of the factors; one factor may be shared."""
    return max(a[0], b[0]), a[row], b[column]


class Cpu(Plain):
    """The operators of a library that `library.load` has compiled."""

    takes_clips = True

    def __init__(self, library: Path):
        self.library = library

    def bind(
        self,
        name: str,
        outputs: Union[int, tuple, Callable] = 0,
        bprop: Optional[Callable] = None,
        count: int = 1,
    ) -> ops.Custom:
        """The kernel `name`.

        Its output has the shape of input number `outputs`; a tuple has such a number for each of
        several outputs; a function computes all `count` shapes from those of the inputs. The type
        is that of the first input.
        """
        if isinstance(outputs, tuple):
            count = len(outputs)

        def infer_shape(*shapes):
            if callable(outputs):
                return outputs(*shapes)
            return shapes[outputs] if count == 1 else tuple(shapes[k] for k in outputs)

        def infer_type(first, *_):
            return first if count == 1 else (first,) * count

        return CompiledKernel(
            f"{self.library}:{name}",
            out_shape=infer_shape,
            out_dtype=infer_type,
            func_type="aot",
            bprop=bprop,
        )

    def bind_map(self, name: str, uses_output: bool = False) -> ops.Custom:
        """`relu`, `silu` or `gelu`: a function of the elements.

        `uses_output`: its gradient is computed from its output, not from its input.
        """
        gradient = self.bind(f"{name}_grad")

        def bprop(x, out, dout):
            return (gradient(dout, out if uses_output else x),)

        return self.bind(name, bprop=bprop)

    relu: Any = partialmethod(bind_map, "relu", uses_output=True)
    silu: Any = partialmethod(bind_map, "silu")
    gelu: Any = partialmethod(bind_map, "gelu")

    def conv2d(
        self, cout: int, kernel: int, stride: int, groups: int = 1, same: bool = False
    ) -> Callable:
        if same:
            return super().conv2d(cout, kernel, stride, groups, same)
        if kernel == stride == groups == 1:
            return self.pointwise()
        padding = (kernel - 1) // 2
        input_grad = self.bind("convolution_input_grad", 2)
        weight_grad = self.bind("convolution_weight_grad", 2)

        def bprop(x, w, numbers, out, dout):
            dx = input_grad(dout, w, x, numbers)
            return dx, weight_grad(dout, x, w, numbers), ops.zeros_like(numbers)

        operator = self.bind("convolution", partial(convolve_shape, stride), bprop)
        return Convolution(operator, [stride, stride, padding, padding, groups])

    def pointwise(self) -> Callable:
        """A 1x1 convolution: weight (cout, cin, 1, 1), x (N, cin, ...)."""
        input_grad = self.bind("pointwise_input_grad", lambda w, dy: (dy[0], w[1], *dy[2:]))
        weight_grad = self.bind("pointwise_weight_grad", 2)

        def bprop(w, x, out, dout):
            return weight_grad(dout, x, w), input_grad(w, dout)

        return Pointwise(self.bind("pointwise", lambda w, x: (x[0], w[0], *x[2:]), bprop))

    def depthwise3d(
        self, channels: int, kernel: tuple[int, int, int], stride: int, impl: str
    ) -> Callable:
        if kernel not in DEPTHWISE_KERNELS:
            return super().depthwise3d(channels, kernel, stride, impl)
        gradient = self.bind("depthwise_grad", (1, 2))

        def bprop(x, w, settings, out, dout):
            dx, dw = gradient(dout, x, w, settings)
            return dx, dw, ops.zeros_like(settings)

        operator = self.bind("depthwise", partial(convolve_shape, stride), bprop)
        return Convolution(operator, [stride])

    def bind_product(self, transpose: bool, shared: bool = False) -> ops.Custom:
        """Products of (N, m, k) and (N, k, n); with `transpose` the second factor is (N, n, k).

        `shared`, only with `transpose`: the first factor is one matrix for all products, (1, m, k).
        """
        product = partial(multiply_shapes, 1, 2)
        # The gradient of a shared factor is the sum over all products.
        plain = self.bind("product", (lambda a, b: (1, a[1], b[2])) if shared else product)
        second = self.bind("product_second_transposed", partial(multiply_shapes, 1, 1))
        first = self.bind("product_first_transposed", partial(multiply_shapes, 2, 2))

        def bprop(a, b, out, dout):
            if transpose:
                return plain(dout, b), first(dout, a)
            return second(dout, b), first(a, dout)

        if not transpose:
            return self.bind("product", product, bprop)
        name = "shared_product_second_transposed" if shared else "product_second_transposed"
        return self.bind(name, partial(multiply_shapes, 1, 1), bprop)

    def matmul(self, transpose: bool = False) -> Callable:
        return Product(self.bind_product(transpose))

    def linear(self, channels_first: bool = False) -> Callable:
        name = "add_channel_bias" if channels_first else "add_bias"  # of the second or last axis
        gradient = self.bind(f"{name}_grad", 1)

        def bprop(x, b, out, dout):
            return dout, gradient(dout, b)

        product = self.bind_product(transpose=True, shared=channels_first)
        return Linear(product, self.bind(name, bprop=bprop), channels_first)

    channels_first_linear: Any = partialmethod(linear, channels_first=True)

    def max_pool(self, kernel: int, stride: int) -> nn.Cell:
        gradient = self.bind("max_pool_grad", 1)

        def bprop(x, settings, out, dout):
            return gradient(dout, x, settings), ops.zeros_like(settings)

        operator = self.bind(
            "max_pool", lambda x, _: convolve_shape(stride, x, (x[1], kernel, kernel)), bprop
        )
        return MaxPool(operator, [kernel, stride, (kernel - 1) // 2])

    def sum_arrays(self, name: str, finish: Callable) -> Callable:
        return SumArrays(self.bind(name, lambda *_: ()), finish)

    all_finite: Any = partialmethod(sum_arrays, "total", ops.isfinite)
    vector_norm: Any = partialmethod(sum_arrays, "sum_of_squares", ops.sqrt)

    def batch_norm(self, name: str = "batch_norm", needs_beta: bool = False) -> Callable:
        """The outputs are y, the batch's mean and 1 / deviation, the new mean and variance.

        `needs_beta`: as a ReLU follows, the gradient depends on beta.
        """
        gradient = self.bind(f"{name}_grad", (1, 2, 2))

        def bprop(x, gamma, beta, mean, variance, out, dout):
            arrays = (x, gamma, beta) if needs_beta else (x, gamma)
            grads = gradient(dout[0], *arrays, out[1], out[2])
            return *grads, ops.zeros_like(mean), ops.zeros_like(variance)

        return BatchNorm(self.bind(name, (0, 1, 1, 1, 1), bprop))

    def norm_relu(self) -> tuple:
        gradient = self.bind("batch_norm_add_relu_grad", (1, 3, 3, 1))

        def bprop(x, gamma, beta, mean, variance, shortcut, out, dout):
            grads = gradient(dout[0], x, out[0], gamma, out[1], out[2])
            return *grads[:3], ops.zeros_like(mean), ops.zeros_like(variance), grads[3]

        with_shortcut = self.bind("batch_norm_add_relu", (0, 1, 1, 1, 1), bprop)
        return self.batch_norm("batch_norm_relu", needs_beta=True), BatchNorm(with_shortcut)

    def layer_norm(self, eps: float) -> Callable:
        """The outputs are y, the mean and 1 / deviation over the last axis."""
        gradient = self.bind("layer_norm_grad", (1, 2, 2))

        def bprop(x, gamma, beta, epsilon, out, dout):
            return *gradient(dout[0], x, gamma, out[1], out[2]), ops.zeros_like(epsilon)

        operator = self.bind("layer_norm", lambda x, *_: (x, x[:-1], x[:-1]), bprop, count=3)
        return LayerNorm(operator, [eps], dtype=mstype.float32)

    def temporal_shift(self, segments: int, fold: int) -> Callable:
        gradient = self.bind("shift")

        def bprop(x, settings, reverse, out, dout):
            dx = gradient(dout, reverse, settings)
            return dx, ops.zeros_like(settings), ops.zeros_like(reverse)

        # The settings of the shift, and of its gradient
        operator = self.bind("shift", bprop=bprop)
        return Shift(operator, [segments, fold, 1], [segments, fold, -1])
