"""Flat weights: weights with the same rate and decay in one array, for fewer kernel launches.

An Ascend or a GPU spends 10 microseconds or more to launch a kernel. With an array for each weight,
a step launches a cast forward, one backward, and the optimizer's kernels for every weight. Here it
launches them for every flat array: float32, up to PACKED weights of one AllReduce segment and of
one group of the optimizer. The array is cast and split once for all layers; gradients are joined,
then cast once. A segment's AllReduce starts as early as without flat arrays.

The weights of the network keep their names and shapes. While a step runs, they only stand for
their gradients; `FlatWeights.distribute` copies the arrays into them for checkpoints and
validations, `collect` copies them back into the arrays. The weights of other layers than
`flat_layers` has stay separate.

MindSpore 2.10 allocates the inputs of a fused AllReduce together, when the first kernel writes one.
If a view, such as a reshape, is an input that exists before, the step ends with "Memory isn't
enough". Kernels write the gradients of most layers; the gradients of pools of an MViT are views.
"""

from collections.abc import Iterable, Sequence
from typing import Union

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from utils.config import Run
from utils.nn.kernels.plain import take_element
from utils.train.flat_layers import FlatWeight, Views, connect, find_dtype, find_layers
from utils.train.gradients import PACKED, flatten
from utils.train.optimizers import SGD, AdamW


class FlatWeights(nn.Cell):
    """Makes the weights of a network flat; called with their gradients, joins these.

    `ends` are the last indices of the AllReduce segments among the weights of `optimizer`, which
    holds the state by their names; the attributes `ends` and `optimizer` belong to the arrays.
    """

    def __init__(self, net: nn.Cell, optimizer: Union[SGD, AdamW], ends: Sequence[int]):
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
            connect(layer, views_of_weights)
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
        for arrays_of_kind, states in zip(self.optimizer.states, optimizer.states):
            for array, positions in zip(arrays_of_kind, self.positions):
                self.copies.append((array, [states[i] for i in positions]))
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


def group_weights(
    optimizer: Union[SGD, AdamW], ends: Sequence[int], layers_of_weights: dict[int, nn.Cell]
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
    if run.flat_weights and not isinstance(optimizer, (SGD, AdamW)):
        raise ValueError("run.flat_weights is for sgd and adamw only; set it to false")
    if run.flat_weights and run.mode == "eager":
        raise ValueError("run.flat_weights needs run.mode: graph; set one of them")
