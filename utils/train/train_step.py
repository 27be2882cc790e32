"""The one train step of the zoo: a Cell that `mindspore.train.Model` runs batch by batch.

forward -> scaled backward -> [accumulate] -> AllReduce -> finite? -> clip -> update -> [EMA]

* Gradients are reduced as they come out of the backward pass, so AllReduce overlaps it. The loss
  scale, the number of ranks, the micro-batches and the clipping are one factor, applied once, or,
  if it is a constant, by the optimizer itself.
* Whether the gradients are finite is decided on all ranks together: the flag is reduced too, so all
  ranks leave an update out, or none does.
* Accumulation averages `accumulate` micro-batches per update. The remainder at the end of an epoch
  makes an update of its own, averaged over the micro-batches it has: nothing is lost, and nothing
  leaks into the next epoch. What is accumulated is a rank's own, so a run is saved, and stops,
  only between updates.
* Clipping is by the total L2 norm of the averaged gradients, before weight decay is added.
* The host reads one small array per step: OUTPUTS.
"""

from typing import Any, Optional

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from utils.config import Run
from utils.nn.dropout import DropoutFactors
from utils.runtime import Runtime
from utils.train.amp import loss_scaler
from utils.train.gradients import (
    OverflowStatus,
    Packing,
    SegmentReducer,
    VectorNorm,
    choose_all_finite,
    clip_factor,
    has_status_flags,
)
from utils.weights.checkpoint import is_state

# The elements of what a step returns; the last two are requests of a rank, as means over the ranks.
OUTPUTS = ("loss", "top1", "loss_scale", "overflows", "stop", "bad_data")
REQUESTS = OUTPUTS[-2:]


class TrainStep(nn.Cell):
    """(clip, target[, dropout factors]) -> float32 (6,), the values of OUTPUTS.

    The target is what `loss` takes with the scores: labels int32 (N,), or float32 (N, ...) with the
    label first. `mix`, if there is one, makes the network's input of clip and target. A network
    with dropout takes the factors of `self.dropout`, float32 (N, K) or (N, copies, K).

    loss and top1 are means over all ranks, `overflows` the updates in a row that were not finite;
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
        samples: int = 0,
    ):
        """`samples`: clips of one batch of this rank, copies included; dropout needs it."""
        super().__init__(auto_prefix=False)
        self.net, self.loss, self.optimizer, self.mix = net, loss, optimizer, mix
        self.has_top1 = hasattr(loss, "top1")  # if the scores are more than one array
        self.scaler = loss_scaler(run.loss_scale, run.dynamic_loss_scale)
        self.steps_per_epoch, self.accumulate = steps_per_epoch, train.accumulate
        self.clip_norm, self.ema = train.clip_norm, train.ema
        self.micro_step = counter("micro_step")  # batches seen since the start of the run
        self.overflows = counter("overflows")  # non-finite updates in a row
        self.stop, self.bad_data = (request(name) for name in REQUESTS)
        weights = optimizer.parameters
        self.sums = weights.clone("grad_sum", "zeros") if train.accumulate > 1 else ()
        averaged = ms.ParameterTuple(p for p in net.get_parameters() if is_state(p))
        self.live = averaged if train.ema else ()
        self.averages = averaged.clone("ema", "same") if train.ema else ()
        self.dropout = DropoutFactors(net, rt.seed)
        self.factors = self.dropout.connect(samples) if self.dropout.size else None
        self.size = rt.size
        self.reducer = choose_reducer(weights, train.accumulate) if rt.size > 1 else None
        self.sum_ranks = ops.AllReduce() if rt.size > 1 else None
        self.norm = VectorNorm(rt.device)
        self.status = OverflowStatus() if has_status_flags(rt.device) else None
        self.all_finite = choose_all_finite(rt.device)
        # With MindSpore 2.10's CPU back end, a kernel that gives its gradient straight to a fused
        # AllReduce ends in "Memory isn't enough": there the factor comes before the AllReduce.
        self.scale_first = train.accumulate > 1 or (rt.device == "CPU" and rt.size > 1)
        self.scale = None if run.dynamic_loss_scale else run.loss_scale * rt.size
        foldable = self.scale is not None and not (self.scale_first or train.clip_norm > 0)
        self.is_folded = foldable and fold_scale(optimizer, self.scale)
        # Packing pays if gradients are multiplied or summed one by one.
        self.pack = Packing(weights, active=not self.is_folded or rt.device == "CPU")
        self.gradients = ms.value_and_grad(self.scaled_loss, None, weights, has_aux=True)
        self.map = ops.HyperMap()

    def scaled_loss(self, clip: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.net(clip)
        loss = self.loss(scores, target)
        return self.scaler.scale(loss), loss, scores

    def construct(self, clip: Tensor, target: Tensor, factors: Optional[Tensor] = None) -> Tensor:
        if self.factors is not None:
            self.set_factors(factors)
        if self.status is not None:  # of an evaluation, for example
            clip = ops.depend(clip, self.status.clear())
        clip = clip if self.mix is None else self.mix(clip, target)
        (_, loss, scores), grads = self.gradients(clip, target)
        top1 = self.loss.top1(scores, target) if self.has_top1 else top1_mean(scores, target)
        if self.accumulate == 1:
            factor = self.factor(1.0)
            if self.scale_first:
                grads, factor = self.map(ops.partial(multiply, factor), grads), None
            grads, norm = self.reduce(grads)
            finite, means = self.agree(grads, norm, loss, top1, self.stop, self.bad_data)
            self.update(grads, factor, norm, finite)
        else:
            means = self.over_ranks(loss, top1, self.stop, self.bad_data)
            self.add(grads)
        ops.assign_add(self.micro_step, 1)
        overflows = self.overflows.astype(mstype.float32)
        return ops.stack((means[0], means[1], self.scale_value(), overflows, means[2], means[3]))

    def set_factors(self, factors: Tensor) -> None:
        """Gives the dropout layers the factors of a batch."""
        ops.assign(self.factors, ops.reshape(factors, self.factors.shape))

    def draw_factors(self, first: int = 0) -> tuple[Tensor, ...]:
        """The step's third input for samples from position `first` on; empty without dropout."""
        if self.factors is None:
            return ()
        return (Tensor(self.dropout.draw_samples(first, len(self.factors))),)

    def scale_value(self) -> Tensor:
        return self.scaler.scale_value

    def request(self, name: str) -> None:
        """Makes one of REQUESTS of all ranks, from the next step on."""
        getattr(self, name).set_data(Tensor(1.0, mstype.float32))

    def add(self, grads: tuple) -> None:
        """Adds one micro-batch; updates when the group, or the epoch, is full."""
        self.map(ops.assign_add, self.sums, grads)
        position = self.micro_step % self.steps_per_epoch
        count = position % self.accumulate + 1
        if count == self.accumulate or position + 1 == self.steps_per_epoch:
            # A copy: the sums themselves would be zero when the optimizer reads them.
            factor = self.factor(1.0 / count.astype(mstype.float32))
            means = self.map(ops.partial(multiply, factor), self.sums)
            means, norm = self.reduce(means)
            finite, _ = self.agree(means, norm)
            self.update(means, None, norm, finite)
            self.map(set_zero, self.sums)
        return count  # without a result MindSpore would run the branch in Python

    def reduce(self, grads: tuple) -> tuple[tuple, Optional[Tensor]]:
        """Sums over the ranks, packed, and their L2 norm if it is needed."""
        if self.reducer is not None:
            grads = self.reducer(grads)
        grads = self.pack(grads)
        return grads, self.norm(grads) if self.clip_norm > 0 else None

    def agree(self, grads: tuple, norm: Optional[Tensor], *values: Tensor) -> tuple[Tensor, tuple]:
        """Whether all ranks find the gradients finite; the means of `values` over the ranks."""
        finite = self.check(grads, norm)
        if self.sum_ranks is None:
            return finite, values
        means = self.over_ranks(*values, 1.0 - finite.astype(mstype.float32))
        return means[-1] == 0, means[:-1]

    def update(
        self, grads: tuple, factor: Optional[Tensor], norm: Optional[Tensor], finite: Tensor
    ) -> Tensor:
        """One optimizer step with `factor` times the gradients, if they are finite."""
        if finite:
            self.apply(grads, factor, norm)
            ops.assign(self.overflows, 0)
        else:
            ops.assign_add(self.overflows, 1)
        self.scaler.adjust(finite)
        return finite  # see `add`

    def factor(self, part: Tensor) -> Optional[Tensor]:
        """What makes gradients of scaled ones, and means of sums over the ranks.

        `part` is 1 / (micro-batches in a sum). None if the optimizer does it.
        """
        if self.is_folded:
            return None
        if self.scale is not None:
            return part * (1 / self.scale)
        return part / (self.scaler.scale_value * self.size)

    def check(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        """Whether this rank finds all gradients finite."""
        if self.status is not None:
            return self.status.is_clear(grads)
        if norm is not None:
            return ops.isfinite(norm)
        return self.all_finite(grads)

    def apply(self, grads: tuple, factor: Optional[Tensor], norm: Optional[Tensor]) -> None:
        if norm is not None:
            factor = clip_factor(norm, factor, self.clip_norm)
        if factor is not None:
            grads = self.map(ops.partial(multiply, factor), grads)
        self.optimizer(self.pack.unpack(grads))
        if self.ema > 0:
            self.map(ops.partial(move_average, self.ema), self.averages, self.live)

    def over_ranks(self, *values: Tensor) -> tuple:
        """Means over the ranks of scalars; of a request, more than 0 if any rank makes it."""
        if self.sum_ranks is None:
            return values
        return ops.unbind(self.sum_ranks(ops.stack(values)) / self.size)

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


def choose_reducer(weights: ms.ParameterTuple, accumulate: int) -> nn.Cell:
    """Sums gradients over the ranks in the segments of
    `utils.distributed.gradient_fusion.split_all_reduce`.
    """
    if accumulate == 1:
        return nn.DistributedGradReducer(weights, mean=False)
    ends = ms.get_auto_parallel_context("all_reduce_fusion_config")
    return SegmentReducer(weights, ends or [len(weights) - 1])


def counter(name: str) -> Parameter:
    return Parameter(Tensor(0, mstype.int32), name=name, requires_grad=False)


def request(name: str) -> Parameter:
    return Parameter(Tensor(0.0, mstype.float32), name=name, requires_grad=False)


def fold_scale(optimizer: nn.Optimizer, scale: float) -> bool:
    """Lets the optimizer divide gradients by `scale`; False if it cannot do that exactly."""
    return scale == 1 or (hasattr(optimizer, "fold_scale") and optimizer.fold_scale(scale))


def top1_mean(scores: Tensor, target: Tensor) -> Tensor:
    label = target if target.ndim == 1 else target[:, 0].astype(mstype.int32)
    return (scores.argmax(axis=-1) == label).astype(mstype.float32).mean()


def multiply(factor: Tensor, x: Tensor) -> Tensor:
    return x * factor


def set_zero(x: Tensor) -> Tensor:
    return ops.assign(x, ops.zeros_like(x))


def move_average(decay: float, mean: Tensor, value: Tensor) -> Tensor:
    return ops.assign(mean, mean * decay + value * (1 - decay))
