"""Layers that take their weights from flat arrays: see `utils.train.flat_weights`.

A layer takes them in one of two ways: its operator is replaced (OPERATORS), or it reads them
itself (`utils.nn.weight_reader`).
"""

from collections.abc import Sequence
from typing import Any

from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Zero, initializer
from mindspore.ops.auto_generate import SplitWithSize

from utils.nn import conv3d, layers
from utils.nn.kernels.plain import Operator
from utils.nn.weight_reader import WeightReader

# The operator that a layer calls with its weights after the first input. A subclass may differ.
OPERATORS: dict[type, tuple[str, tuple[str, ...]]] = {
    nn.Conv2d: ("conv2d", ("weight",)),
    layers.Dense: ("linear", ("weight", "bias")),
    layers.ChannelsFirstDense: ("linear", ("weight", "bias")),
    layers.LayerNorm: ("layer_norm", ("gamma", "beta")),
    layers.BatchNorm2d: ("bn_train", ("gamma", "beta")),
    layers.BatchNorm3d: ("bn_train", ("gamma", "beta")),
    conv3d.PointwiseConv3d: ("conv", ("weight", "bias")),
    conv3d.FrameConv: ("conv", ("weight",)),
    conv3d.Conv3d: ("conv", ("weight",)),
}
HALVES = {"fp16": mstype.float16, "bf16": mstype.bfloat16}  # by the flags of mixed precision


class Views(Operator):
    """All weights of a flat array, one-dimensional, of a type; compiled once for all layers."""

    def __init__(self, array: Parameter, sizes: Sequence[int], dtype: Any):
        super().__init__(auto_prefix=False)
        self.array = (array,)  # in a tuple, it is no parameter of the network
        self.sizes = tuple(sizes)
        self.dtype = dtype
        self.split = SplitWithSize()

    def construct(self) -> tuple:
        return self.split(ops.cast(self.array[0], self.dtype), self.sizes, 0)


class Standin(Operator):
    """The values of a view; its gradient becomes the gradient of `weight`."""

    def construct(self, weight: Tensor, view: Tensor) -> Tensor:
        return ops.stop_gradient(view)

    def bprop(self, weight: Tensor, view: Tensor, out: Tensor, dout: Tensor) -> tuple:
        return ops.reshape(dout, weight.shape), ops.zeros_like(view)


class FlatWeight(Operator):
    """A weight that is element `index` of a flat array.

    Its gradient is the gradient of `leaf`, which has the shape of the weight and the type of the
    views: the compiler takes the type of a gradient from the Parameter. No kernel reads its values.
    """

    def __init__(self, weight: Parameter, views: Views, index: int):
        super().__init__(auto_prefix=False)
        leaf = Parameter(initializer(Zero(), weight.shape, views.dtype))
        leaf.name = f"gradient.{weight.name}"
        self.leaf = (leaf,)
        self.views = views
        self.index = index
        self.standin = Standin()

    def construct(self, shape: tuple[int, ...]) -> Tensor:
        return self.standin(self.leaf[0], ops.reshape(self.views()[self.index], shape))


class FlatOperator(Operator):
    """A layer's operator, which in training takes flat weights for those that it is called with."""

    def __init__(self, operator: Any, weights: Sequence[Any]):
        super().__init__(auto_prefix=False)
        self.operator = operator
        self.weights = tuple(weights)  # FlatWeight, or None for a weight that is not flat

    def construct(self, x: Tensor, *inputs):
        if not self.training:
            return self.operator(x, *inputs)
        values = ()
        for i in range(len(inputs)):
            weight = self.weights[i] if i < len(self.weights) else None
            values += (inputs[i] if weight is None else weight(inputs[i].shape),)
        return self.operator(x, *values)


def find_layers(net: nn.Cell) -> dict[int, nn.Cell]:
    """{id of a weight: its layer} of the weights that can be flat."""
    layers_of_weights = {}
    for _, cell in net.cells_and_names():
        for name in list_names(cell):
            weight = getattr(cell, name)
            if weight is not None:
                layers_of_weights[id(weight)] = cell
    return layers_of_weights


def list_names(layer: nn.Cell) -> tuple[str, ...]:
    """The attributes of a layer whose weights can be flat."""
    if isinstance(layer, WeightReader):
        return layer.weight_names
    return OPERATORS.get(type(layer), ("", ()))[1]


def connect(layer: nn.Cell, views_of_weights: dict[int, FlatWeight]) -> None:
    """Gives a layer the flat weights among its weights."""
    weights = (getattr(layer, name) for name in list_names(layer))
    views = tuple(views_of_weights.get(id(weight)) for weight in weights)
    if not any(views):
        return
    if isinstance(layer, WeightReader):
        layer.is_flat = True
        layer.views = views
    else:
        attribute = OPERATORS[type(layer)][0]
        operator = FlatOperator(getattr(layer, attribute), views)
        # For the weights of an evaluation, which MindSpore casts by the flags.
        flags = layer.get_flags()
        operator.add_flags(**{flag: flags[flag] for flag in (*HALVES, "fp32") if flag in flags})
        setattr(layer, attribute, operator)
        layer.joins_relu = False  # of a batch norm: NormReLU would read its own weights


def find_dtype(layer: nn.Cell) -> Any:
    """The type in which a layer takes its weights: see `utils.train.amp`."""
    flags = layer.get_flags()
    return next((dtype for flag, dtype in HALVES.items() if flags.get(flag)), mstype.float32)
