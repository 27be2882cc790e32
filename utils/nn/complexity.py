"""What a network does for one clip, layer by layer, in the order of its forward pass.

Counted is the network, not the kernel that runs it: a convolution by the size of its weight, in
whatever form it is computed; attention by its two products, without the further channels in which
relative positions ride along. Norms, activations and additions have no multiply-adds, as is the
custom. Evaluation is counted; a Cell that only training calls comes last, with its parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from utils.nn.layers import GELU

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.HSwish, nn.Softmax, GELU)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Layer:
    """One call of a Cell. One that is called several times has its parameters in the first.

    In the backward pass the first call is the last: only then are its gradients whole.
    """

    name: str  # as in net.cells_and_names(); the network itself has none
    kind: str
    macs: int  # multiply-adds
    inputs: int  # elements of the activations it reads
    outputs: int  # elements it writes
    parameters: int  # trainable elements of the Cell itself, not of Cells inside


def count_layers(net: nn.Cell, clip_shape: tuple) -> list[Layer]:
    """Runs the network once, eagerly, on a blank float32 clip, and lists every Cell that computes.

    A Cell that hands its input on, as dropout does, is left out. Every trainable parameter belongs
    to exactly one layer; what hangs on a Cell with others inside is listed where that Cell begins,
    or, where it multiplies activations with each other, at its first product.
    """
    counter = Counter(net)
    cells = [cell for _, cell in net.cells_and_names()]
    handles = [cell.register_forward_pre_hook(counter.enter) for cell in cells]
    handles += [cell.register_forward_hook(counter.leave) for cell in cells]
    training = net.training
    net.set_train(False)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        with watched_products(counter.multiply):
            net(Tensor(np.zeros((1, *clip_shape), np.float32)))
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
        for handle in handles:
            handle.remove()
        net.set_train(training)
    return counter.layers + counter.never_called()


def multiply_adds(net: nn.Cell, clip_shape: tuple) -> int:
    """Multiply-adds for one float32 clip in evaluation, by an eager run."""
    return sum(layer.macs for layer in count_layers(net, clip_shape))


@dataclass
class Call:
    """A Cell at work."""

    cell: nn.Cell
    place: int  # of its layer in the list: where it began, or had its first product
    products: list[tuple] = field(default_factory=list)  # shapes of both factors and the result


class Counter:
    """Collects layers from the hooks of all Cells."""

    def __init__(self, net: nn.Cell):
        self.names = {id(cell): name for name, cell in net.cells_and_names()}
        self.cells = [cell for _, cell in net.cells_and_names()]
        self.calls: list[Call] = []  # one inside the other
        self.layers: list[Layer] = []
        self.counted: set = set()  # ids of parameters

    def enter(self, cell: nn.Cell, _) -> None:
        self.calls.append(Call(cell, len(self.layers)))

    def multiply(self, *shapes: tuple) -> None:
        """A product of activations, made by the innermost Cell at work."""
        call = self.calls[-1]
        if not call.products:
            call.place = len(self.layers)
        call.products.append(shapes)

    def leave(self, cell: nn.Cell, inputs: tuple, output) -> None:
        call, read, written = self.calls.pop(), tensors(inputs), tensors(output)
        own = self.own_parameters(cell)
        if has_kernel(cell) or (not call.products and not list(cell.cells())):
            handed_on = len(read) == 1 and written and written[0] is read[0]
            if own or not handed_on:
                sizes = (total_size(read), total_size(written))
                macs = kernel_size(cell) * sizes[1]
                self.add(cell, kind_of(cell, read), macs, *sizes, own)
        elif call.products:
            self.add(cell, "attention", *product_sizes(call.products), own, call.place)
        elif own:
            self.add(cell, "other", 0, 0, 0, own, call.place)

    def add(
        self,
        cell: nn.Cell,
        kind: str,
        macs: int,
        inputs: int,
        outputs: int,
        own: int,
        place: Optional[int] = None,
    ) -> None:
        layer = Layer(self.names[id(cell)], kind, macs, inputs, outputs, own)
        self.layers.insert(len(self.layers) if place is None else place, layer)

    def own_parameters(self, cell: nn.Cell) -> int:
        """Trainable elements of the Cell itself, once."""
        own = [p for p in cell.trainable_params(recurse=False) if id(p) not in self.counted]
        self.counted |= {id(p) for p in own}
        return sum(p.size for p in own)

    def never_called(self) -> list[Layer]:
        """Cells with parameters that an evaluation leaves out: they end the training's pass."""
        found = [(cell, self.own_parameters(cell)) for cell in self.cells]
        return [
            Layer(self.names[id(cell)], kind_of(cell, []), 0, 0, 0, own)
            for cell, own in found
            if own
        ]


@contextmanager
def watched_products(watch) -> Iterator[None]:
    """Tells the shapes of every product of two batches of matrices, wherever it is called."""
    original = ops.BatchMatMul.__call__

    def watched(self, x: Tensor, y: Tensor) -> Tensor:
        result = original(self, x, y)
        watch(tuple(x.shape), tuple(y.shape), tuple(result.shape))
        return result

    ops.BatchMatMul.__call__ = watched
    try:
        yield
    finally:
        ops.BatchMatMul.__call__ = original


def product_sizes(products: list[tuple]) -> tuple[int, int, int]:
    """(multiply-adds, elements read, elements written) of the products of one Cell.

    Two are scores and what they blend: as many multiply-adds each. The scores' own channels would
    count the relative positions again, which have a Cell of their own.
    """
    macs = [multiply_adds_of(*shapes) for shapes in products]
    read = sum(int(np.prod(x) + np.prod(y)) for x, y, _ in products)
    written = sum(int(np.prod(result)) for _, _, result in products)
    return 2 * macs[1] if len(macs) == 2 else sum(macs), read, written


def multiply_adds_of(x: tuple, _: tuple, result: tuple) -> int:
    """Of a product; from sizes, which hold whatever is transposed."""
    return int(np.prod(result)) * (int(np.prod(x)) // int(np.prod(result[:-1])))


def has_kernel(cell: nn.Cell) -> bool:
    """Whether it is a convolution or a dense layer, of the framework's or of this zoo's."""
    weight = getattr(cell, "weight", None)
    return isinstance(weight, ms.Parameter) and weight.ndim > 1


def kernel_size(cell: nn.Cell) -> int:
    """Multiply-adds for one element of its output."""
    return int(np.prod(cell.weight.shape[1:])) if has_kernel(cell) else 0


def kind_of(cell: nn.Cell, inputs: list[Tensor]) -> str:
    """The kind of operator; inputs tell a depthwise convolution from one of a single channel."""
    if has_kernel(cell):
        channels = inputs[0].shape[1] if inputs else cell.weight.shape[0]
        return kind_of_kernel(tuple(cell.weight.shape), channels)
    if isinstance(cell, BATCH_NORMS):
        return "batch norm"
    if isinstance(cell, nn.LayerNorm):
        return "layer norm"
    if isinstance(cell, ACTIVATIONS):
        return "activation"
    return "pooling" if "Pool" in type(cell).__name__ else "other"


def kind_of_kernel(weight: tuple, channels: int) -> str:
    """Of a weight (cout, cin / groups, [[kt,] kh, kw])."""
    if len(weight) == 2:
        return "dense"
    if weight[1] == 1 < channels:
        return "depthwise convolution"
    time, space = weight[2:-2], weight[-2:]
    if max(time, default=1) == 1:
        return "1x1 convolution" if space == (1, 1) else "spatial convolution"
    return "temporal convolution" if space == (1, 1) else "3-D convolution"


def tensors(values) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in tensors(value)]
    return []


def total_size(values: list[Tensor]) -> int:
    return sum(value.size for value in values)
