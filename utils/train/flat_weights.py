"""Flat weights: weights with the same rate and decay in one array, for fewer kernel launches.

An Ascend or a GPU spends 10 microseconds or more to launch a kernel. With an array for each weight,
a step launches a cast forward, one backward, and the optimizer's kernels for every weight. Here it
launches them for every flat array: float32, up to PACKED weights of one AllReduce segment and of
one group of the optimizer. The array is cast and split once for all layers; gradients are joined,
then cast once. A segment's AllReduce starts as early as without flat arrays.

The weights of the network keep their names and shapes. While a step runs, they only stand for
their gradients; `FlatWeights.distribute` copies the arrays into them for checkpoints and
validations, `collect` copies them back into the arrays. The weights of other layers than OPERATORS
has stay separate.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Zero, initializer
from mindspore.ops.auto_generate import SplitWithSize

from utils.config import Run
from utils.nn import conv3d, layers
from utils.nn.kernels.plain import Operator, take_element
from utils.train.gradients import PACKED, flatten
from utils.train.optimizers import SGD

# The operator that a layer calls with its weights after the first input. A subclass may differ.
OPERATORS: dict[type, tuple[str, tuple[str, ...]]] = {
    nn.Conv2d: ("conv2d", ("weight",)),
    layers.Dense: ("linear", ("weight", "bias")),
    layers.BatchNorm2d: ("bn_train", ("gamma", "beta")),
    layers.BatchNorm3d: ("bn_train", ("gamma", "beta")),
    conv3d.PointwiseConv3d: ("conv", ("weight", "bias")),
    conv3d.DepthwiseConv3d: ("conv", ("weight",)),
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
    """The values of a view, whose gradient becomes that of `weight`."""

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


class FlatWeights(nn.Cell):
    """Makes the weights of a network flat; called with their gradients, joins these.

    `ends` are the last indices of the AllReduce segments among the weights of `optimizer`, which
    holds the state by their names; the attributes `ends` and `optimizer` belong to the arrays.
    """

    def __init__(self, net: nn.Cell, optimizer: SGD, ends: Sequence[int]):
        super().__init__(auto_prefix=False)
        weights = optimizer.parameters
        layers_of_weights = find_layers(net)
        self.positions = group_weights(optimizer, ends, layers_of_weights)
        self.arrays: list[tuple[Parameter, list[Parameter]]] = []
        arrays: list[Parameter] = []
        views_of_weights = {}
        for positions in self.positions:
            members = [weights[i] for i in positions]
            array = members[0]
            if len(members) > 1:
                array = Parameter(Tensor(join_values(members)), name=f"flat.{len(self.arrays)}")
                self.arrays.append((array, members))
                dtype = find_dtype(layers_of_weights[id(members[0])])
                views = Views(array, [weight.size for weight in members], dtype)
                for index, weight in enumerate(members):
                    views_of_weights[id(weight)] = FlatWeight(weight, views, index)
            arrays.append(array)
        for layer in {id(layer): layer for layer in layers_of_weights.values()}.values():
            replace_operator(layer, views_of_weights)
        # What the backward pass differentiates by, in the order of the weights.
        self.leaves = ms.ParameterTuple(
            views_of_weights[id(w)].leaf[0] if id(w) in views_of_weights else w for w in weights
        )
        self.ends = [max(k for k, p in enumerate(self.positions) if p[0] <= end) for end in ends]
        self.optimizer = optimizer.rebuild(arrays, [weights[p[0]] for p in self.positions])
        weight_ids = {id(weight) for weight in weights}
        for state in self.optimizer.get_parameters():
            if id(state) not in weight_ids:
                state.name = f"flat.{state.name}"  # else MindSpore renames the state of `optimizer`
        self.copies = list(self.arrays)
        for array, positions in zip(self.optimizer.buffers, self.positions):
            self.copies.append((array, [optimizer.buffers[i] for i in positions]))
        self.copies.append((self.optimizer.global_step, [optimizer.global_step]))
        self.map = ops.HyperMap()
        self.concat = ops.Concat(0)

    def replace_averages(
        self, sources: Sequence[Parameter], means: Sequence[Parameter]
    ) -> tuple[ms.ParameterTuple, ms.ParameterTuple]:
        """Weights and their averages, with the flat arrays in the place of those that they hold."""
        means_of_others = {id(source): (source, mean) for source, mean in zip(sources, means)}
        pairs = []
        for array, members in self.arrays:
            of_members = [means_of_others.pop(id(weight))[1] for weight in members]
            average = Parameter(Tensor(join_values(of_members)), name=f"ema.{array.name}")
            self.copies.append((average, of_members))
            pairs.append((array, average))
        updated, averages = zip(*pairs, *means_of_others.values())
        return ms.ParameterTuple(updated), ms.ParameterTuple(averages)

    def construct(self, grads: tuple) -> tuple:
        arrays = ()
        for positions in self.positions:
            members = self.map(ops.partial(take_element, grads), positions)
            if len(positions) > 1:
                joined = self.concat(self.map(flatten, members))
                members = (ops.cast(joined, mstype.float32),)
            arrays += members
        return arrays

    def distribute(self) -> None:
        """Copies the arrays into the parameters that checkpoints and validations read."""
        for array, members in self.copies:
            ends = np.cumsum([parameter.size for parameter in members])[:-1]
            for parameter, value in zip(members, np.split(array.asnumpy().reshape(-1), ends)):
                parameter.set_data(Tensor(value.reshape(parameter.shape).copy()))

    def collect(self) -> None:
        """Copies these parameters into the arrays, after a checkpoint has been loaded."""
        for array, members in self.copies:
            array.set_data(Tensor(join_values(members).reshape(array.shape)))


def find_layers(net: nn.Cell) -> dict[int, nn.Cell]:
    """{id of a weight: its layer} of the weights that the operators of layers take."""
    layers_of_weights = {}
    for _, cell in net.cells_and_names():
        for name in OPERATORS.get(type(cell), ("", ()))[1]:
            weight = getattr(cell, name)
            if weight is not None:
                layers_of_weights[id(weight)] = cell
    return layers_of_weights


def replace_operator(layer: nn.Cell, views_of_weights: dict[int, FlatWeight]) -> None:
    attribute, names = OPERATORS[type(layer)]
    views = [views_of_weights.get(id(getattr(layer, name))) for name in names]
    if any(views):
        operator = FlatOperator(getattr(layer, attribute), views)
        # For the weights of an evaluation, which MindSpore casts by the flags.
        flags = layer.get_flags()
        operator.add_flags(**{flag: flags[flag] for flag in (*HALVES, "fp32") if flag in flags})
        setattr(layer, attribute, operator)


def find_dtype(layer: nn.Cell) -> Any:
    """The type in which a layer of OPERATORS takes its weights: see `utils.train.amp`."""
    flags = layer.get_flags()
    return next((dtype for flag, dtype in HALVES.items() if flags.get(flag)), mstype.float32)


def group_weights(
    optimizer: SGD, ends: Sequence[int], layers_of_weights: dict[int, nn.Cell]
) -> tuple[tuple[int, ...], ...]:
    """The positions of the weights of every array, in the order of the first ones.

    Weights of an array share segment, rate, decay and type. A weight alone stays as it is.
    """
    schedule_of = {}
    for group in optimizer.groups:
        schedule = (group["weight_decay"], np.asarray(group["lr"]).tobytes())
        schedule_of.update({id(weight): schedule for weight in group["params"]})
    members: dict[tuple, list[int]] = {}
    for i, weight in enumerate(optimizer.parameters):
        layer = layers_of_weights.get(id(weight))
        segment = next(end for end in ends if i <= end)
        key: tuple = (segment, i)
        if layer is not None:
            key = (segment, schedule_of[id(weight)], str(find_dtype(layer)))
        members.setdefault(key, []).append(i)
    chunks = (m[k : k + PACKED] for m in members.values() for k in range(0, len(m), PACKED))
    return tuple(sorted(map(tuple, chunks)))


def join_values(parameters: Iterable[Parameter]) -> np.ndarray:
    return np.concatenate([parameter.asnumpy().reshape(-1) for parameter in parameters])


def check_flat_weights(run: Run, optimizer: nn.Optimizer) -> None:
    """Raises ValueError if `run.flat_weights` is true, and not possible."""
    if run.flat_weights and not isinstance(optimizer, SGD):
        raise ValueError("run.flat_weights is for SGD only; set it to false")
    if run.flat_weights and run.mode == "eager":
        raise ValueError("run.flat_weights needs run.mode: graph; set one of them")
