"""SGD from parameter groups, which updates in the order of the network. Others: `adaptive.py`."""

import math
import re

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import initializer

from utils.nn.kernels.plain import take_element


def scale_head(groups: list[dict], classifier: str, factor: float) -> list[dict]:
    """Moves the weights whose names match `classifier` to groups with `factor` times the rate."""
    if factor == 1:
        return groups
    trunk = []
    head = []
    for group in groups:
        members = [p for p in group["params"] if re.search(classifier, p.name)]
        others = [p for p in group["params"] if not re.search(classifier, p.name)]
        trunk.append({**group, "params": others})
        if members:
            head.append({**group, "params": members, "lr": group["lr"] * factor})
    return [*trunk, *head]


class SGD(nn.Optimizer):
    """PyTorch's SGD with momentum over groups of parameters.

    g = gradient + decay * w; buffer = momentum * buffer + g; w -= rate * buffer, or, with
    Nesterov's momentum, w -= rate * (g + momentum * buffer).

    `groups` have `params`, `lr` (floats, one per update) and `weight_decay`. `parameters` lists all
    of them in the network's order, which the AllReduce splits count in.

    MindSpore's own keeps a third array per parameter, and is compiled in twice the time: it
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
        self.group_of_each = [group_of[id(parameter)] for parameter in self.parameters]
        rates = np.array([group["lr"] for group in groups], np.float32)  # (groups, updates)
        if (rates == rates[0]).all():
            rates = rates[:1]
        self.rate_of_each = tuple(self.group_of_each) if len(rates) > 1 else ()
        self.rates = Tensor(rates)
        self.momentum = Tensor(momentum, mstype.float32)
        self.buffers = self.parameters.clone(prefix="momentum", init="zeros")
        self.nesterov = nesterov
        self.decays = [float(group["weight_decay"]) for group in groups]
        self.kernels = self.build_kernels(1.0)
        # The kernel's `stat`: where it is above 0, the first gradient is stored without dampening,
        # which `fold_scale` uses. So it is 0 always, and one array serves all of a shape.
        stats = {
            p.shape: Parameter(initializer("zeros", p.shape), name=f"met.{k}", requires_grad=False)
            for k, p in enumerate(self.parameters)
        }
        self.stats = tuple(stats[p.shape] for p in self.parameters)

    def build_kernels(self, scale: float) -> tuple:
        """The kernel of every parameter, for gradients multiplied by `scale`.

        The kernel adds weight_decay * w to the gradient and multiplies by 1 - dampening.
        """
        kernels = [ops.SGD(1 - 1 / scale, decay * scale, self.nesterov) for decay in self.decays]
        return tuple(kernels[k] for k in self.group_of_each)

    def fold_scale(self, scale: float) -> bool:
        """Takes gradients multiplied by `scale` from now on; False if that would not be exact.

        Exact only for powers of two. The kernel has no dampening with Nesterov's momentum.
        """
        if self.nesterov or math.frexp(scale)[0] != 0.5 or not 1 <= scale <= 2**24:
            return False
        self.kernels = self.build_kernels(scale)
        return True

    def construct(self, gradients: tuple) -> tuple:
        rates = ops.gather(self.rates, self.global_step, 1)  # (groups, 1)
        ops.assign_add(self.global_step, self.global_step_increase_tensor)
        arrays = (gradients, self.parameters, self.buffers, self.stats, self.kernels)
        if self.rate_of_each == ():
            rate = ops.reshape(rates[0], ())
            return self.hyper_map(ops.partial(update, self.momentum, rate), *arrays)
        of_groups = ()
        for k in range(len(self.decays)):
            of_groups += (ops.reshape(rates[k], ()),)
        rates_by_weight = self.hyper_map(ops.partial(take_element, of_groups), self.rate_of_each)
        return self.hyper_map(ops.partial(update, self.momentum), rates_by_weight, *arrays)


def update(momentum: Tensor, rate: Tensor, gradient: Tensor, weight, buffer, stat, kernel):
    return kernel(weight, gradient, rate, buffer, momentum, stat)
