"""LARS and AdamW: their rates depend on weights and gradients. Groups are those of `SGD`."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn import kernels
from utils.nn.kernels.plain import take_element


class LARS(nn.Optimizer):
    """SGD with a rate of its own for every layer (You, Gitman, Ginsburg, arXiv:1708.03888).

    local = trust * |w| / (|g| + decay * |w| + eps), of a tensor's own L2 norms, in float32;
    v = momentum * v + rate * local * (g + decay * w); w -= v.

    Groups as `SGD` has them, and `adapted`: if it is false, local is 1, as the usual rule has it
    for batch norms and biases. Local is also 1 if either norm is 0, which the article does not
    define (TensorFlow's rule). The article has no eps, and no Nesterov's momentum.

    Unlike in `SGD` the rate is inside of v, so that a change of it acts on later gradients only.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        groups: list[dict],
        momentum: float,
        trust: float = 0.001,
        eps: float = 0.0,
    ):
        super().__init__(0.1, parameters)  # the rate given here is never looked at
        group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
        group_of_each = [group_of[id(parameter)] for parameter in self.parameters]
        self.decays = tuple(float(groups[k]["weight_decay"]) for k in group_of_each)
        self.decay = Tensor(self.decays, mstype.float32)  # (P,), P parameters
        self.adapted = Tensor([bool(groups[k]["adapted"]) for k in group_of_each])  # (P,)
        self.group_of_each = Tensor(group_of_each, mstype.int32)  # (P,)
        self.rates = Tensor(np.array([group["lr"] for group in groups], np.float32))
        self.momentum = Tensor(momentum, mstype.float32)
        self.trust = trust
        self.eps = eps
        self.buffers = self.parameters.clone(prefix="momentum", init="zeros")

    def construct(self, gradients: tuple) -> tuple:
        of_group = ops.gather(self.rates, self.global_step, 1)  # (groups, 1)
        # All tensors' factors in one go, (P,): as scalars they compile twice as long.
        # `ops.SquareSumAll` would give a tensor's two sums at once, but is wrong on a CPU
        # (MindSpore 2.10), and `ops.L2Loss` off by a thousandth there.
        sizes = ops.stack(self.hyper_map(norm, self.parameters))
        slopes = ops.stack(self.hyper_map(norm, gradients))
        local = self.trust * sizes / (slopes + self.decay * sizes + self.eps)
        asked = ops.logical_and(self.adapted, ops.minimum(sizes, slopes) > 0)
        local = ops.where(asked, local, ops.ones_like(local))
        rates = ops.gather(of_group.reshape(-1), self.group_of_each, 0) * local
        ops.assign_add(self.global_step, self.global_step_increase_tensor)
        arrays = (gradients, self.parameters, self.buffers, self.decays)
        return self.hyper_map(ops.partial(lars, self.momentum), ops.unbind(rates), *arrays)


def norm(x: Tensor) -> Tensor:
    return ops.sqrt(ops.ReduceSum()(ops.square(x.astype(mstype.float32)), ()))


def lars(momentum: Tensor, rate: Tensor, gradient: Tensor, weight, buffer, decay: float) -> Tensor:
    v = momentum * buffer + rate * gradient
    if decay > 0:
        v = v + (rate * decay) * weight
    return ops.assign_sub(weight, ops.assign(buffer, v))


class AdamW(nn.Optimizer):
    """PyTorch's AdamW over groups of parameters: decoupled weight decay, bias correction.

    w -= rate * decay * w; w -= rate * m' / (sqrt(v') + eps), where m' and v' are the moving means
    of g and g * g, corrected for their start from zero. Groups as `SGD` has them.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        groups: list[dict],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(0.1, parameters)  # the rate given here is never used
        groups = [group for group in groups if group["params"]]
        rates = np.array([group["lr"] for group in groups], np.float64)  # (groups, updates)
        if (rates == rates[0]).all():
            rates = rates[:1]
        updates = np.arange(1, rates.shape[1] + 1)
        corrected = np.sqrt(1 - betas[1] ** updates)
        # m' / (sqrt(v') + eps) = m / (sqrt(v) + eps * corrected) * corrected / (1 - beta1^t)
        factors = corrected / (1 - betas[0] ** updates)
        self.rates = Tensor(rates * factors, mstype.float32)
        self.epsilons = Tensor(eps * corrected, mstype.float32)
        self.moment1 = self.parameters.clone(prefix="moment1", init="zeros")
        self.moment2 = self.parameters.clone(prefix="moment2", init="zeros")
        self.move = kernels.current().adamw(
            groups=groups, weights=self.parameters, betas=betas, factors=factors
        )
        group_of = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
        group_of_each = tuple(group_of[id(parameter)] for parameter in self.parameters)
        self.rate_of_each = group_of_each if len(rates) > 1 else (0,) * len(group_of_each)

    def construct(self, gradients: tuple) -> tuple:
        step = self.global_step
        rates = ops.gather(self.rates, step, 1)  # (groups, 1)
        if rates.shape[0] == 1:
            of_groups = (ops.reshape(rates, ()),)  # without a kernel
        else:
            of_groups = ()
            for k in range(rates.shape[0]):
                of_groups += (ops.reshape(rates[k], ()),)
        rates_by_weight = self.hyper_map(ops.partial(take_element, of_groups), self.rate_of_each)
        epsilon = ops.reshape(ops.gather(self.epsilons, step, 0), ())
        arrays = (gradients, self.parameters, self.moment1, self.moment2)
        moved = self.move(*arrays, rates_by_weight, epsilon, step)
        ops.assign_add(self.global_step, self.global_step_increase_tensor)
        return moved
