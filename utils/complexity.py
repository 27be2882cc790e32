"""Complexity of a network for one clip: multiply-adds, activations and parameters of each layer.

Layers are listed in the order of the forward pass. The count describes the network, not the kernel
that runs it: a convolution is counted by the size of its weight, whatever form computes it;
attention by its two matrix products, without the extra channels that carry relative positions. As
is usual, norms, activations and additions have no multiply-adds. Evaluation is counted; Cells that
only training calls come last, with their parameters.
"""

from dataclasses import dataclass, field

import numpy as np
from mindspore import Tensor, nn

from utils.nn.kernels.cpu import CompiledKernel
from utils.nn.kernels.plain import MatMul, Operator, list_layers
from utils.nn.layers import Activation, has_kernel
from utils.runtime import eager_mode

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.Sigmoid, nn.HSwish, nn.Softmax, Activation)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class LayerCost:
    """The cost of one call of a Cell.

    If a Cell is called several times, its first call holds the parameters: in the backward pass
    that call comes last, and only then its gradients are complete.
    """

    name: str  # as in net.cells_and_names(); empty for the network itself
    kind: str
    macs: int  # multiply-adds
    inputs: int  # elements of activations read
    outputs: int  # elements written
    parameters: int  # trainable elements of the Cell itself, not of Cells inside


def count_layers(net: nn.Cell, clip_shape: tuple) -> list[LayerCost]:
    """Runs the network once, eagerly, on a float32 clip of zeros; lists every Cell that computes.

    A Cell that returns its input, such as dropout, is left out. Every trainable parameter belongs
    to exactly one layer. Parameters of a Cell that contains other Cells are listed at the point
    where that Cell begins or, if it multiplies activations with each other, at its first product.
    """
    counter = LayerCounter(net)
    handles = [cell.register_forward_pre_hook(counter.enter) for cell in counter.cells]
    handles += [cell.register_forward_hook(counter.leave) for cell in counter.cells]
    for _, cell in net.cells_and_names():
        if isinstance(cell, MatMul):
            handles.append(cell.register_forward_hook(counter.record_product))
    run_hooks(net, np.zeros((1, *clip_shape), np.float32), handles)
    uncalled = [(cell, counter.claim_parameters(cell)) for cell in counter.cells]
    return counter.layers + [  # training calls them last
        LayerCost(counter.names[id(cell)], classify_cell(cell, []), 0, 0, 0, own)
        for cell, own in uncalled
        if own
    ]


def run_hooks(net: nn.Cell, clips: np.ndarray, handles: list) -> None:
    """Evaluates the network once, eagerly, for shapes only; then removes the hooks."""
    training = net.training
    net.set_train(False)
    # Compiled kernels return zeros: in eager mode, slices and transpositions are views, and they
    # read whole arrays.
    CompiledKernel.only_shapes = True
    try:
        with eager_mode():
            net(Tensor(clips))
    finally:
        CompiledKernel.only_shapes = False
        for handle in handles:
            handle.remove()
        net.set_train(training)


@dataclass
class ActiveCall:
    """A call of a Cell that has not returned yet."""

    cell: nn.Cell
    position: int  # of its layer in the list: where it began, or had its first product
    products: list[tuple] = field(default_factory=list)  # (shape of x, of y, of x @ y)


class LayerCounter:
    """Collects the layers of a network by hooks on all its Cells."""

    def __init__(self, net: nn.Cell):
        layers = [pair for pair in net.cells_and_names() if not isinstance(pair[1], Operator)]
        self.names = {id(cell): name for name, cell in layers}
        self.cells = [cell for _, cell in layers]
        self.calls: list[ActiveCall] = []  # nested, the innermost last
        self.layers: list[LayerCost] = []
        self.counted: set = set()  # ids of parameters that a layer has

    def enter(self, cell: nn.Cell, _) -> None:
        self.calls.append(ActiveCall(cell, len(self.layers)))

    def record_product(self, _, inputs: tuple, output: Tensor) -> None:
        """Adds a product of activations to the innermost active call."""
        shapes = tuple(tuple(array.shape) for array in (*inputs, output))
        call = self.calls[-1]
        if not call.products:
            call.position = len(self.layers)
        call.products.append(shapes)

    def leave(self, cell: nn.Cell, inputs: tuple, output) -> None:
        call = self.calls.pop()
        read = list_tensors(inputs)
        written = list_tensors(output)
        own = self.claim_parameters(cell)
        if has_kernel(cell) or (not call.products and not list_layers(cell)):
            is_identity = len(read) == 1 and written and written[0] is read[0]
            if own or not is_identity:
                sizes = (sum(x.size for x in read), sum(x.size for x in written))
                each = int(np.prod(cell.weight.shape[1:])) if has_kernel(cell) else 0
                kind = classify_cell(cell, read)
                self.add(len(self.layers), cell, kind, each * sizes[1], *sizes, own)
        elif call.products:
            # Two products are an attention: scores (query x key), then scores x values. Both have
            # the same number of multiply-adds, so the second is counted twice: the channels of the
            # first also carry the relative positions, which have a Cell of their own.
            macs = [  # from the sizes alone: factors may be transposed
                int(np.prod(result)) * (int(np.prod(x)) // int(np.prod(result[:-1])))
                for x, _, result in call.products
            ]
            inputs_read = sum(int(np.prod(x) + np.prod(y)) for x, y, _ in call.products)
            outputs = sum(int(np.prod(result)) for _, _, result in call.products)
            total = 2 * macs[1] if len(macs) == 2 else sum(macs)
            self.add(call.position, cell, "attention", total, inputs_read, outputs, own)
        elif own:
            self.add(call.position, cell, "other", 0, 0, 0, own)

    def add(self, position: int, cell: nn.Cell, kind: str, *counts: int) -> None:
        """Inserts a layer; `counts` are its `macs`, `inputs`, `outputs` and `parameters`."""
        self.layers.insert(position, LayerCost(self.names[id(cell)], kind, *counts))

    def claim_parameters(self, cell: nn.Cell) -> int:
        """Trainable elements of the Cell itself that no earlier call has counted."""
        own = [p for p in cell.trainable_params(recurse=False) if id(p) not in self.counted]
        self.counted |= {id(p) for p in own}
        return sum(p.size for p in own)


def classify_cell(cell: nn.Cell, inputs: list[Tensor]) -> str:
    """The kind of operator.

    `inputs` distinguish a depthwise convolution from one with a single input channel.
    """
    if isinstance(cell, BATCH_NORMS):
        return "batch norm"
    if isinstance(cell, nn.LayerNorm):
        return "layer norm"
    if isinstance(cell, ACTIVATIONS):
        return "activation"
    if not has_kernel(cell):
        return "pooling" if "Pool" in type(cell).__name__ else "other"
    weight = tuple(cell.weight.shape)  # (cout, cin / groups, [[kt,] kh, kw])
    if len(weight) == 2:
        return "dense"
    if weight[1] == 1 < (inputs[0].shape[1] if inputs else weight[0]):
        return "depthwise convolution"
    is_temporal = max(weight[2:-2], default=1) > 1
    if weight[-2:] == (1, 1):
        return "temporal convolution" if is_temporal else "1x1 convolution"
    return "3-D convolution" if is_temporal else "spatial convolution"


def list_tensors(values) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in list_tensors(value)]
    return []
