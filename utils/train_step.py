"""The one train step of the zoo: a Cell that `mindspore.train.Model` runs batch by batch.

forward -> scaled backward -> [accumulate] -> AllReduce -> finite? -> clip -> update -> [EMA]

* Gradients are reduced before they are judged, so a NaN on one rank is seen, and the update left
  out, on all ranks together.
* Accumulation averages `accumulate` micro-batches per update. The remainder at the end of an epoch
  makes an update of its own, averaged over the micro-batches it has: nothing is lost, and nothing
  leaks into the next epoch. What is accumulated is a rank's own, so a run is saved, and stops, only
  where nothing is.
* Clipping comes after unscaling, by the total L2 norm, before the optimizer adds weight decay.
"""

from typing import Any, Optional

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from utils.amp import loss_scaler
from utils.config import Run
from utils.layers import Dropout
from utils.runtime import Runtime

# What a rank may say to all: that it was asked to stop, that its data is bad.
SIGNALS = "asked_to_stop", "bad_data"


class TrainStep(nn.Cell):
    """(clip, target) -> (loss, top1, loss scale, consecutive overflows, asked to stop, bad data).

    The target is what `loss` takes with the scores: labels int32 (N,), or float32 (N, ...) with the
    label first. `mix`, where there is one, makes the network's input of clip and target.

    loss and top1 are means over all ranks, the two signals shares of the ranks that give them;
    every returned value is the same on every rank.
    `train` gives `accumulate`, `clip_norm` (0: do not clip) and `ema` (decay; 0: no average).
    """

    def __init__(
        self,
        net: nn.Cell,
        loss: nn.Cell,
        optimizer: nn.Optimizer,
        run: Run,
        train: Any,
        rt: Runtime,
        steps_per_epoch: int,
        mix: Optional[nn.Cell] = None,
    ):
        super().__init__(auto_prefix=False)
        self.net, self.loss, self.optimizer, self.mix = net, loss, optimizer, mix
        self.judges = hasattr(loss, "top1")  # where the scores are more than one array
        self.scaler = loss_scaler(run.loss_scale, run.dynamic_loss_scale)
        # Of several ranks also at scale 1: with MindSpore 2.10's CPU back end, a kernel that gives
        # its gradient straight to a fused AllReduce ends in "Memory isn't enough".
        self.is_scaled = run.dynamic_loss_scale or run.loss_scale != 1 or rt.size > 1
        self.all_finite = all_finite if rt.device == "CPU" else amp.all_finite
        self.steps_per_epoch, self.accumulate = steps_per_epoch, train.accumulate
        self.clip_norm, self.ema = train.clip_norm, train.ema
        self.micro_step = counter("micro_step")  # batches seen since the start of the run
        self.overflows = counter("overflows")  # non-finite updates in a row
        self.asked_to_stop, self.bad_data = (signal(name) for name in SIGNALS)
        weights = optimizer.parameters
        self.sums = weights.clone("grad_sum", "zeros") if train.accumulate > 1 else ()
        averaged = ms.ParameterTuple(p for p in net.get_parameters() if is_state(p))
        self.live = averaged if train.ema else ()
        self.averages = averaged.clone("ema", "same") if train.ema else ()
        self.dropout_keys = tuple(
            cell.dropout_key for _, cell in net.cells_and_names() if isinstance(cell, Dropout)
        )
        self.base_key = first_key(rt.seed, rt.rank)
        self.size = rt.size
        self.reducer = nn.DistributedGradReducer(weights) if rt.size > 1 else None
        self.sum_ranks = ops.AllReduce() if rt.size > 1 else None
        self.gradients = ms.value_and_grad(self.scaled_loss, None, weights, has_aux=True)
        self.map = ops.HyperMap()

    def scaled_loss(self, clip: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.net(clip)
        loss = self.loss(scores, target)
        return self.scaler.scale(loss), loss, scores

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        self.set_dropout_keys()
        clip = clip if self.mix is None else self.mix(clip, target)
        (_, loss, scores), grads = self.gradients(clip, target)
        grads = self.scaler.unscale(grads) if self.is_scaled else grads
        if self.accumulate == 1:
            self.update(grads)
        else:
            self.add(grads)
        ops.assign_add(self.micro_step, 1)
        top1 = self.loss.top1(scores, target) if self.judges else top1_share(scores, target)
        loss, top1, asked, bad = self.over_ranks(loss, top1, self.asked_to_stop, self.bad_data)
        return loss, top1, self.scaler.scale_value, self.overflows, asked, bad

    def give(self, name: str) -> None:
        """Gives one of SIGNALS, from the next step on."""
        getattr(self, name).set_data(Tensor(1.0, mstype.float32))

    def set_dropout_keys(self) -> None:
        for i, key in enumerate(self.dropout_keys):
            ops.assign(key, self.micro_step + (self.base_key + 7919 * i))

    def add(self, grads: tuple) -> None:
        """Adds one micro-batch; updates when the group, or the epoch, is full."""
        self.map(ops.assign_add, self.sums, grads)
        place = self.micro_step % self.steps_per_epoch
        count = place % self.accumulate + 1
        if count == self.accumulate or place + 1 == self.steps_per_epoch:
            share = 1.0 / count.astype(mstype.float32)
            self.update(self.map(ops.partial(multiply, share), self.sums))
            self.map(set_zero, self.sums)

    def update(self, grads: tuple) -> None:
        """One optimizer step, left out on all ranks where any gradient is not finite."""
        if self.reducer is not None:
            grads = self.reducer(grads)
        finite = self.all_finite(grads)
        if finite:
            self.apply(grads)
            ops.assign(self.overflows, 0)
        else:
            ops.assign_add(self.overflows, 1)
        self.scaler.adjust(finite)

    def apply(self, grads: tuple) -> None:
        if self.clip_norm > 0:
            grads = clip_by_total_norm(self.map, grads, self.clip_norm)
        self.optimizer(grads)
        if self.ema > 0:
            self.map(ops.partial(move_average, self.ema), self.averages, self.live)

    def over_ranks(self, *values: Tensor) -> tuple:
        """Means over the ranks of scalars; of a signal, more than 0 where any rank gives it."""
        if self.sum_ranks is None:
            return values
        means = self.sum_ranks(ops.stack(values)) / self.size
        return means[0], means[1], means[2], means[3]

    def state(self) -> dict[str, Parameter]:
        """All that a resumed run needs, by name: weights, optimizer, EMA, scale, counters.

        Between updates: gradients that wait for the rest of their group are no part of it.
        """
        own = [self.micro_step, self.overflows, *self.averages]
        if isinstance(self.scaler, amp.DynamicLossScaler):
            own += [self.scaler.scale_value, self.scaler.counter]
        # Learning rates are not state: they follow from the settings.
        weights = {p.name for p in self.optimizer.parameters}
        others = [p for p in self.optimizer.get_parameters() if p.name not in weights]
        own += [p for p in others if not p.name.startswith("learning_rate")]
        network = [p for p in self.net.get_parameters() if is_state(p)]
        return {p.name: p for p in [*network, *own]}

    def averaged(self) -> dict[str, Parameter]:
        """The averaged weights under the network's names; empty without EMA."""
        return {live.name: mean for live, mean in zip(self.live, self.averages)}


def counter(name: str) -> Parameter:
    return Parameter(Tensor(0, mstype.int32), name=name, requires_grad=False)


def signal(name: str) -> Parameter:
    return Parameter(Tensor(0.0, mstype.float32), name=name, requires_grad=False)


def is_state(parameter: Parameter) -> bool:
    """Dropout keys follow from the step and are never saved."""
    return not parameter.name.endswith("dropout_key")


def first_key(seed: int, rank: int) -> int:
    """Where the dropout keys of a rank begin: far from those of other seeds and ranks."""
    return int(np.random.RandomState([seed, rank]).randint(0, 2**30))


def top1_share(scores: Tensor, target: Tensor) -> Tensor:
    label = target if target.ndim == 1 else target[:, 0].astype(mstype.int32)
    return (scores.argmax(axis=-1) == label).astype(mstype.float32).mean()


def multiply(factor: Tensor, x: Tensor) -> Tensor:
    return x * factor


def set_zero(x: Tensor) -> Tensor:
    return ops.assign(x, ops.zeros_like(x))


def move_average(decay: float, mean: Tensor, value: Tensor) -> Tensor:
    return ops.assign(mean, mean * decay + value * (1 - decay))


def all_finite(grads: tuple) -> Tensor:
    """`amp.all_finite` in a third of the operators: a sum is finite only where all its terms are.

    For a CPU, where the framework has no operator of its own for it.
    """
    return ops.isfinite(ops.addn(ops.HyperMap()(total, grads)))


def total(x: Tensor) -> Tensor:
    return ops.ReduceSum()(x, ())


def sum_of_squares(x: Tensor) -> Tensor:
    return ops.square(x.astype(mstype.float32)).sum()


def clip_by_total_norm(hyper_map: ops.HyperMap, grads: tuple, limit: float) -> tuple:
    """All gradients times min(1, limit / (their total L2 norm + 1e-6)), PyTorch's rule."""
    norm = ops.sqrt(ops.addn(hyper_map(sum_of_squares, grads)))
    factor = ops.minimum(Tensor(1.0, mstype.float32), limit / (norm + 1e-6))
    return hyper_map(ops.partial(multiply, factor), grads)
