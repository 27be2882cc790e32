"""Optimizers from parameter groups, always updating in the order of the network."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Zero, initializer


class SGD(nn.Optimizer):
    """PyTorch's SGD with momentum over groups of parameters.

    g = gradient + decay * w; buffer = momentum * buffer + g; w -= rate * buffer, or, with
    Nesterov's momentum, w -= rate * (g + momentum * buffer).

    `groups` have `params`, `lr` (floats, one per update) and `weight_decay`. `parameters` lists all
    of them in the network's order, which the AllReduce splits count in.

    The framework's own keeps a third array per parameter, and is compiled in twice the time: it
    goes over all parameters four times, with a schedule for each where the groups' rates differ.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        groups: list[dict],
        momentum: float,
        nesterov: bool = False,
    ):
        super().__init__(0.1, parameters)  # the rate given here is never looked at
        groups = [group for group in groups if group["params"]]
        group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
        places = [group_of[id(parameter)] for parameter in self._parameters]
        rates = np.array([group["lr"] for group in groups], np.float32)  # (groups, updates)
        if (rates == rates[0]).all():
            rates = rates[:1]
        self.places = tuple(places) if len(rates) > 1 else ()
        self.rates = Tensor(rates)
        self.momentum = Tensor(momentum, mstype.float32)
        self.buffers = self._parameters.clone(prefix="momentum", init="zeros")
        kernels = [ops.SGD(0.0, float(group["weight_decay"]), nesterov) for group in groups]
        self.kernels = tuple(kernels[k] for k in places)
        # 1 where the kernel meets a parameter for the first time: with buffers from zero, and no
        # dampening, that makes no difference, so that one array serves all of a shape.
        shapes = {p.shape: zeros(f"met.{k}", p.shape) for k, p in enumerate(self._parameters)}
        self.met = tuple(shapes[p.shape] for p in self._parameters)

    def construct(self, gradients: tuple) -> tuple:
        rates = ops.gather(self.rates, self.global_step, 1)  # (groups, 1)
        ops.assign_add(self.global_step, self.global_step_increase_tensor)
        arrays = (gradients, self._parameters, self.buffers, self.met, self.kernels)
        if self.places == ():
            rate = ops.reshape(rates[0], ())
            return self.hyper_map(ops.partial(update, self.momentum, rate), *arrays)
        each = ()
        for k in self.places:
            each += (ops.reshape(rates[k], ()),)
        return self.hyper_map(ops.partial(update, self.momentum), each, *arrays)


def update(momentum: Tensor, rate: Tensor, gradient: Tensor, weight, buffer, met, kernel):
    return kernel(weight, gradient, rate, buffer, momentum, met)


def zeros(name: str, shape: tuple[int, ...]) -> Parameter:
    return Parameter(initializer(Zero(), shape), name=name, requires_grad=False)
