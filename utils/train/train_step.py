"""The train step of all networks: a Cell that `mindspore.train.Model` runs batch by batch.

forward -> scaled backward -> [accumulate] -> AllReduce -> finite? -> clip norm -> update -> [EMA]

A step is one call with one micro-batch, a batch of the data set. An update changes the weights; it
follows `accumulation_steps` steps.

* AllReduce overlaps the backward pass: MindSpore fuses the AllReduces of a segment of weights
  (`run.all_reduce`), and a fused AllReduce starts as soon as its gradients exist. With accumulation
  nothing overlaps: AllReduce runs once, after the last micro-batch of an update.
* One factor removes the loss scale and turns sums over ranks and micro-batches into means. It is
  applied once, with the factor that clips the norm. Exceptions: the optimizer applies it
  (`fold_scale`) if it is a constant power of two and nothing is clipped; with accumulation, and on
  several CPU ranks, it is applied before AllReduce.
* Overflow check: an overflow flag is reduced over all ranks, so all ranks change their weights or
  none does. On an Ascend 910A arithmetic saturates at the largest number, and the device sets
  status flags; elsewhere an overflow gives gradients that are infinite or not a number. Statistics
  of batch norms change in the forward pass, also if the update is skipped.
* Accumulation averages `accumulation_steps` micro-batches per update. The remaining micro-batches
  at the end of an epoch make a separate update, averaged over their number. Accumulated gradients
  are local to a rank and are not saved. So the trainer saves and stops only between updates.
* Gradients are clipped by the total L2 norm of the averaged gradients, before the optimizer adds
  weight decay.
* The host reads one small array per step: OUTPUTS.
"""

from typing import Any, Optional, Union

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from utils.config import Run
from utils.nn import kernels
from utils.nn.dropout import DropoutFactors
from utils.runtime import Runtime
from utils.train.amp import loss_scaler
from utils.train.gradients import (
    OverflowStatus,
    Packing,
    SegmentReducer,
    clip_factor,
    has_status_flags,
)
from utils.weights.checkpoint import Weights, weights_of

# The values that a step returns. The last two are requests to stop, by a signal or because too many
# videos are unreadable: above 0 from the step on in which any rank has made them.
OUTPUTS = ("loss", "top1", "loss_scale", "overflows", "stop", "bad_data")
REQUESTS = OUTPUTS[-2:]


class TrainStep(nn.Cell):
    """(clip, target[, dropout factors]) -> float32 (6,), the values of OUTPUTS.

    `clip`: a batch as the network takes it, uint8; the axes are in each `model.py`. `target` is
    what `loss` takes together with the scores: labels int32 (N,), or float32 (N, columns) whose
    first column is the label; with mixup for example (N, 3): label, the other clip's label, weight.
    `mix` (optional) computes the network's input from clip and target. A network with dropout also
    takes the factors of `self.dropout`: float32 (N, K), or (B, copies, K) with repeated
    augmentation: `copies` clips of each of B videos. K is the number of factors of a clip in all
    dropout layers.

    loss and top1 are means over all ranks; `overflows` counts the consecutive updates that were not
    finite. Every returned value is the same on every rank. `train` has `accumulation_steps`,
    `clip_norm` (0: do not clip) and `ema_decay` (0: no EMA).
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
        """`samples`: clips in a batch of this rank, copies included; only dropout needs it."""
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = loss
        self.optimizer = optimizer
        self.mix = mix
        self.has_own_top1 = hasattr(loss, "top1")  # a loss of several score arrays
        self.scaler = loss_scaler(run.loss_scale, run.dynamic_loss_scale)
        self.steps_per_epoch = steps_per_epoch
        self.accumulation_steps = train.accumulation_steps
        self.clip_norm = train.clip_norm
        self.ema_decay = train.ema_decay
        self.micro_step = create_counter("micro_step")  # steps since the start of the run
        self.overflows = create_counter("overflows")  # consecutive non-finite updates
        self.stop, self.bad_data = (create_counter(name, mstype.float32) for name in REQUESTS)
        weights = optimizer.parameters
        self.sums = weights.clone("grad_sum", "zeros") if train.accumulation_steps > 1 else ()
        # micro-batches of this update that set status flags
        self.saturated = create_counter("saturated")
        averaged = ms.ParameterTuple(weights_of(net).values())
        self.ema_sources = averaged if train.ema_decay else ()
        self.ema_weights = averaged.clone("ema", "same") if train.ema_decay else ()
        self.dropout = DropoutFactors(net, rt.seed)
        self.dropout_factors = self.dropout.connect(samples) if self.dropout.size else None
        self.size = rt.size
        self.reducer = choose_reducer(weights, train.accumulation_steps) if rt.size > 1 else None
        self.sum_ranks = ops.AllReduce() if rt.size > 1 else None
        self.norm = kernels.current().vector_norm()
        self.status = OverflowStatus() if has_status_flags(rt.device) else None
        self.all_finite = kernels.current().all_finite()
        # Whether the factor is applied before AllReduce. With accumulation that costs nothing: the
        # sums must be copied there. On several CPU ranks the copy is needed: a kernel of MindSpore
        # 2.10 that writes its gradient into a fused AllReduce fails with "Memory isn't enough".
        self.scale_before_reduce = train.accumulation_steps > 1 or (
            rt.device == "CPU" and rt.size > 1
        )
        # loss scale x ranks; None if the loss scale is dynamic
        self.scale = None if run.dynamic_loss_scale else run.loss_scale * rt.size
        foldable = self.scale is not None and not (self.scale_before_reduce or train.clip_norm > 0)
        self.is_folded = foldable and fold_scale(optimizer, self.scale)
        # One array of many small gradients saves kernels if each gradient is multiplied (by the
        # factor) or summed (by the CPU's overflow check).
        self.pack = Packing(weights, active=not self.is_folded or rt.device == "CPU")
        self.gradients = ms.value_and_grad(self.scaled_loss, None, weights, has_aux=True)
        self.map = ops.HyperMap()

    def scaled_loss(self, clip: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.net(clip)
        loss = self.loss(scores, target)
        return self.scaler.scale(loss), loss, scores

    def construct(self, clip: Tensor, target: Tensor, factors: Optional[Tensor] = None) -> Tensor:
        if self.dropout_factors is not None:
            self.set_dropout_factors(factors)
        if self.status is not None:  # flags may be set by an evaluation, for example
            clip = ops.depend(clip, self.status.clear())
        clip = clip if self.mix is None else self.mix(clip, target)
        (_, loss, scores), grads = self.gradients(clip, target)
        top1 = self.loss.top1(scores, target) if self.has_own_top1 else top1_mean(scores, target)
        if self.accumulation_steps == 1:
            factor = self.compute_gradient_factor(1.0)
            if self.scale_before_reduce:
                grads = self.map(ops.partial(multiply, factor), grads)
                factor = None
            grads, norm = self.reduce_gradients(grads)
            finite, means = self.agree_on_finite(grads, norm, loss, top1, self.stop, self.bad_data)
            self.update_weights(grads, factor, norm, finite)
        else:
            means = self.average_over_ranks(loss, top1, self.stop, self.bad_data)
            self.accumulate_gradients(grads)
        ops.assign_add(self.micro_step, 1)
        counts = self.scaler.scale_value, self.overflows.astype(mstype.float32)
        return ops.stack((*means[:2], *counts, *means[2:]))

    def set_dropout_factors(self, factors: Tensor) -> None:
        """Copies the factors of a batch into the dropout layers."""
        ops.assign(self.dropout_factors, ops.reshape(factors, self.dropout_factors.shape))

    def make_dropout_factors(self, start: int = 0) -> tuple[Tensor, ...]:
        """The step's third input for samples from position `start` on; empty without dropout."""
        if self.dropout_factors is None:
            return ()
        return (Tensor(self.dropout.draw_samples(start, len(self.dropout_factors))),)

    def make_request(self, name: str) -> None:
        """Makes one of REQUESTS: all ranks return it from the next step on."""
        getattr(self, name).set_data(Tensor(1.0, mstype.float32))

    def accumulate_gradients(self, grads: tuple) -> Tensor:
        """Adds a micro-batch; after the last one of an update or of the epoch, updates the weights.

        Returns a value that nobody uses: in graph mode, MindSpore 2.10 runs a function that has an
        `if` on a Tensor and returns nothing in Python.
        """
        self.map(ops.assign_add, self.sums, grads)
        if self.status is not None:  # the flags are those of one micro-batch
            overflow = 1 - self.status.is_clear(grads).astype(mstype.int32)
            ops.assign_add(self.saturated, overflow)
        position = self.micro_step % self.steps_per_epoch
        count = position % self.accumulation_steps + 1
        if count == self.accumulation_steps or position + 1 == self.steps_per_epoch:
            factor = self.compute_gradient_factor(1.0 / count.astype(mstype.float32))
            # The product is a copy. The graph may set the sums to zero before the optimizer runs.
            means = self.map(ops.partial(multiply, factor), self.sums)
            means, norm = self.reduce_gradients(means)
            finite, _ = self.agree_on_finite(means, norm)
            self.update_weights(means, None, norm, finite)
            self.map(set_zero, self.sums)
            if self.status is not None:
                ops.assign(self.saturated, 0)
        return count

    def reduce_gradients(self, grads: tuple) -> tuple[tuple, Optional[Tensor]]:
        """The packed sums over the ranks, and the sums' L2 norm if gradients are clipped.

        If the factor is already applied, the sums are means.
        """
        if self.reducer is not None:
            grads = self.reducer(grads)
        grads = self.pack(grads)
        return grads, self.norm(grads) if self.clip_norm > 0 else None

    def agree_on_finite(
        self, grads: tuple, norm: Optional[Tensor], *values: Tensor
    ) -> tuple[Tensor, tuple]:
        """Whether the gradients are finite on all ranks; the means of `values` over the ranks.

        One AllReduce serves both.
        """
        finite = self.is_finite_here(grads, norm)
        if self.sum_ranks is None:
            return finite, values
        means = self.average_over_ranks(*values, 1.0 - finite.astype(mstype.float32))
        return means[-1] == 0, means[:-1]

    def update_weights(
        self, grads: tuple, factor: Optional[Tensor], norm: Optional[Tensor], finite: Tensor
    ) -> Tensor:
        """One optimizer step with `factor` times the gradients, if they are finite."""
        if finite:
            self.apply_gradients(grads, factor, norm)
            ops.assign(self.overflows, 0)
        else:
            ops.assign_add(self.overflows, 1)
        self.scaler.adjust(finite)
        return finite  # for the reason given in `accumulate_gradients`

    def compute_gradient_factor(self, part: Union[float, Tensor]) -> Union[float, Tensor, None]:
        """The factor that removes the loss scale and turns sums over ranks into means.

        `part` is 1 / (micro-batches in a sum). None if the optimizer applies the factor.
        """
        if self.is_folded:
            return None
        if self.scale is not None:
            return part * (1 / self.scale)
        return part / (self.scaler.scale_value * self.size)

    def is_finite_here(self, grads: tuple, norm: Optional[Tensor]) -> Tensor:
        """Whether this rank has seen no overflow: by the device's flags, or else by the sums.

        The flags of the other ranks' devices are not known here; infinite sums are.
        """
        if self.status is not None:
            if self.accumulation_steps > 1:
                return self.saturated == 0
            return self.status.is_clear(grads)
        if norm is not None:
            return ops.isfinite(norm)
        return self.all_finite(grads)

    def apply_gradients(
        self, grads: tuple, factor: Optional[Tensor], norm: Optional[Tensor]
    ) -> None:
        """Scales and clips the gradients, and runs the optimizer and the EMA."""
        if norm is not None:
            factor = clip_factor(norm, factor, self.clip_norm)
        if factor is not None:
            grads = self.map(ops.partial(multiply, factor), grads)
        self.optimizer(self.pack.unpack(grads))
        if self.ema_decay > 0:
            self.map(ops.partial(move_average, self.ema_decay), self.ema_weights, self.ema_sources)

    def average_over_ranks(self, *values: Tensor) -> tuple:
        """The means of scalars over the ranks; a request of any rank gives more than 0."""
        if self.sum_ranks is None:
            return values
        return ops.unbind(self.sum_ranks(ops.stack(values)) / self.size)

    def state(self) -> Weights:
        """Everything that a resumed run needs, by name: weights, optimizer, EMA, scale, counters.

        Accumulated gradients are not part of it, so it is complete only between updates.
        """
        own = [self.micro_step, self.overflows, *self.ema_weights]
        if isinstance(self.scaler, amp.DynamicLossScaler):
            own += [self.scaler.scale_value, self.scaler.counter]
        # Learning rates are not saved: they follow from the settings.
        trained = {p.name for p in self.optimizer.parameters}
        others = [p for p in self.optimizer.get_parameters() if p.name not in trained]
        own += [p for p in others if not p.name.startswith("learning_rate")]
        weights = weights_of(self.net)
        return Weights({**weights, **{p.name: p for p in own}}, weights.padding)

    def ema_parameters(self) -> Weights:
        """The averaged weights under the network's names; empty without EMA."""
        means = {source.name: mean for source, mean in zip(self.ema_sources, self.ema_weights)}
        return Weights(means, weights_of(self.net).padding)


def choose_reducer(weights: ms.ParameterTuple, accumulation_steps: int) -> nn.Cell:
    """The Cell that sums gradients over the ranks, in the segments that `split_all_reduce` has set.

    MindSpore's own reducer runs an AllReduce for each gradient, and the compiler fuses those of a
    segment. It does not fuse inside an `if`, which accumulation needs. So SegmentReducer joins the
    gradients of a segment itself.
    """
    if accumulation_steps == 1:
        return nn.DistributedGradReducer(weights, mean=False)
    # The index of the last weight of each segment; without segments, one for all weights.
    ends = ms.get_auto_parallel_context("all_reduce_fusion_config")
    return SegmentReducer(weights, ends or [len(weights) - 1])


def create_counter(name: str, dtype: Any = mstype.int32) -> Parameter:
    return Parameter(Tensor(0, dtype), name=name, requires_grad=False)


def fold_scale(optimizer: nn.Optimizer, scale: float) -> bool:
    """Lets the optimizer divide gradients by `scale`; False if that is not exact or not supported.

    It is exact for powers of two.
    """
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
