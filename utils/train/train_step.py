"""The train step of all networks: a Cell that `mindspore.train.Model` runs batch by batch.

Backward -> [sums] -> GradientSync -> if finite: optimizer -> [MovingAverage]

A step is one call with one micro-batch, a batch of the data set. An update changes the weights; it
follows `accumulation_steps` steps.

* `Backward`: forward pass, loss times the loss scale, gradients.
* Accumulation: sums of the gradients of `accumulation_steps` micro-batches. The remaining
  micro-batches at the end of an epoch make a separate update, averaged over their number. The sums
  are local to a rank and are not saved. So the trainer saves and stops only between updates.
* `GradientSync`: sums the gradients over the ranks, checks them for overflow, and multiplies once
  by 1 / (loss scale x ranks x micro-batches), times the clipping factor. Clipping limits the total
  L2 norm of the means, before the optimizer adds weight decay.
* The optimizer multiplies instead (`fold_scale`) if the factor is a constant power of two and
  nothing is clipped. In ResNet-50 on Ascend that saves 7 % of the kernel launches of a step.
* Overlap: one AllReduce sums the joined gradients of a segment (`run.all_reduce`: the names of the
  layers at which segments end). It starts as soon as they exist, during the backward pass. With
  accumulation nothing overlaps: AllReduces run after the last micro-batch of an update.
* Overflow check (`gradients.FiniteCheck`): usually an infinity or NaN of one rank reaches all ranks
  by the AllReduce, and the check reads the sums, or only their norm if it is known. A 910A
  saturates instead, and sets flags of its own rank. There `clear` clears the flags before the
  forward pass, `record` counts micro-batches that have set some, and `reset` ends the update; both
  return their argument, which orders them in the graph. The result is reduced over the ranks: all
  change their weights or none does. Statistics of batch norms change in the forward pass, also if
  the update is skipped.
* Requests: a rank that got a signal, or met too many unreadable files, sets `stop` or `bad_data` to
  1, and it stays set. A step returns their means over the ranks: above 0 if any rank has asked.
* A step returns six numbers (OUTPUTS), the same on every rank.
"""

from collections.abc import Sequence
from typing import Any, Optional, Union

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn, ops
from mindspore import dtype as mstype

from utils.nn import kernels
from utils.nn.dropout import DropoutFactors
from utils.nn.layers import list_norms
from utils.nn.loss import Loss
from utils.runtime import Runtime
from utils.settings import Run, TrainSettings
from utils.train.gradients import FiniteCheck, SegmentSum, choose_packing, create_counter, multiply
from utils.train.optimizers import SGD
from utils.weights.checkpoint import Weights, weights_of

# The values that a step returns. The last two are requests to stop, by a signal or because too many
# videos are unreadable: above 0 from the step on in which any rank has made them.
OUTPUTS = ("loss", "top1", "loss_scale", "overflows", "stop", "bad_data")
REQUESTS = OUTPUTS[-2:]


class Backward(nn.Cell):
    """(clip, target) -> loss, scores, and the gradients of the loss times the loss scale.

    `auto_prefix=False`, here and below: parameters keep the names that they have in the network,
    which are the names in checkpoints.
    """

    def __init__(self, net: nn.Cell, loss: Loss, weights: ms.ParameterTuple, scaler: Any):
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = loss
        self.scaler = scaler
        self.gradients = ms.value_and_grad(self.compute_scaled_loss, None, weights, has_aux=True)

    def compute_scaled_loss(self, clip: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.net(clip)
        loss = self.loss(scores, target)
        return self.scaler.scale(loss), loss, scores

    def construct(self, clip: Tensor, target: Tensor) -> tuple[Tensor, Tensor, tuple]:
        (_, loss, scores), grads = self.gradients(clip, target)
        return loss, scores, grads


class GradientSync(nn.Cell):
    """Scaled gradients of this rank -> mean gradients of all ranks, unscaled and clipped.

    pack -> reduce -> finite? -> unscale and clip -> unpack. `ends` are the last indices of the
    AllReduce segments. `clip_norm` 0: do not clip. If `optimizer_unscales` (`fold_scale`), the
    gradients are only reduced and checked.
    """

    def __init__(
        self,
        weights: ms.ParameterTuple,
        ends: Sequence[int],
        check: nn.Cell,
        rt: Runtime,
        clip_norm: float,
        optimizer_unscales: bool,
    ):
        super().__init__(auto_prefix=False)
        self.optimizer_unscales = optimizer_unscales
        packs = rt.size > 1 or not optimizer_unscales
        self.pack = choose_packing(weights, ends, rt) if packs else None
        self.reduce = SegmentSum(len(ends)) if rt.size > 1 else None
        self.check = check
        self.size = rt.size
        self.all_reduce = ops.AllReduce() if rt.size > 1 else None  # a sum
        self.clip_norm = clip_norm
        self.norm = kernels.current().vector_norm()
        self.map = ops.HyperMap()

    def construct(
        self, grads: tuple, scale: Union[float, Tensor], values: tuple
    ) -> tuple[tuple, Tensor, tuple]:
        """The gradients, whether they are finite on all ranks, and the means of `values`.

        `scale` is the loss scale times the number of micro-batches in a sum. `values` are scalars;
        one AllReduce serves them and the overflow flag.
        """
        if self.pack is not None:
            grads = self.pack(grads)
        if self.reduce is not None:
            grads = self.reduce(grads)
        norm = self.norm(grads) if self.clip_norm > 0 else None
        finite = self.check(grads, norm)
        if self.all_reduce is not None:
            means = self.average_over_ranks((*values, 1.0 - finite.astype(mstype.float32)))
            finite = means[-1] == 0
            values = means[:-1]
        if not self.optimizer_unscales:
            factor = 1.0 / (scale * self.size)
            if norm is not None:  # of the scaled sums; 1e-6 as in PyTorch
                one = Tensor(1.0, mstype.float32)
                factor = factor * ops.minimum(one, self.clip_norm / (norm * factor + 1e-6))
            grads = self.map(ops.partial(multiply, factor), grads)
        if self.pack is not None:
            grads = self.pack.unpack(grads)
        return grads, finite, values

    def average_over_ranks(self, values: tuple) -> tuple:
        """The means of scalars over the ranks, by one AllReduce."""
        if self.all_reduce is None:
            return values
        return ops.unbind(self.all_reduce(ops.stack(values)) / self.size)


class MovingAverage(nn.Cell):
    """Moving averages of the network's weights and running statistics (EMA).

    A call moves them by one update. What stays as it is in this training has no average.
    """

    def __init__(self, net: nn.Cell, decay: float):
        super().__init__(auto_prefix=False)
        self.decay = decay
        norms = [norm for norm in list_norms(net) if norm.use_batch_statistics is False]
        constant = {id(p) for norm in norms for p in (norm.moving_mean, norm.moving_variance)}
        self.sources = ms.ParameterTuple(
            p
            for p in weights_of(net).values()
            if p.requires_grad or ("moving_" in p.name and id(p) not in constant)
        )
        self.means = self.sources.clone("ema", "same")
        self.map = ops.HyperMap()

    def construct(self) -> tuple:
        return self.map(ops.partial(move_average, self.decay), self.means, self.sources)


class TrainStep(nn.Cell):
    """(clip, target[, dropout factors]) -> float32 (6,): OUTPUTS.

    `clip`: a batch of clips as the network takes it, uint8; the axes are in each `model.py`. (With
    repeated augmentation rows have several clips, which `mix` joins with the batch.)
    `target` is what `loss` takes together with the scores: labels int32 (N,), or float32
    (N, columns) whose first column is the label; dataset.py of the network explains the others.
    `mix` (optional) computes the network's input from clips and target.

    Dropout: the host draws the factors, 0 or 1 / (1 - p), by the position of a row in the run and
    the number of the clip in it (`utils.data.rows`). So a resumed run, and one on other devices,
    draws the same. A network with dropout takes them as third input: float32 (B, copies, K), where
    a batch has `copies` clips of each of B videos, 1 without repeated augmentation; or (N, K). K
    counts the factors of a clip in all dropout layers.

    The outputs: loss and top1, means over all ranks; the loss scale; `overflows`, the number of
    consecutive updates that were not finite; `stop` and `bad_data`, the requests. `train` has
    `accumulation_steps`, `clip_norm` (0: do not clip) and `ema_decay` (0: no EMA).
    """

    def __init__(
        self,
        net: nn.Cell,
        loss: Loss,
        optimizer: nn.Optimizer,
        run: Run,
        train: TrainSettings,
        rt: Runtime,
        steps_per_epoch: int,
        mix: Optional[nn.Cell] = None,
        clips: int = 0,
        ends: Sequence[int] = (),
    ):
        """`clips`: those in a batch of this rank, N; only dropout needs it.

        `ends`: last indices of the AllReduce segments; by default all weights are one.
        """
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = loss
        self.mix = mix
        self.dropout = DropoutFactors(net, rt.seed)
        self.dropout_factors = self.dropout.connect(clips) if self.dropout.size else None
        self.steps_per_epoch = steps_per_epoch
        self.accumulation_steps = train.accumulation_steps
        self.micro_step = create_counter("micro_step")  # steps since the start of the run
        self.overflows = create_counter("overflows")  # consecutive non-finite updates
        self.stop, self.bad_data = (create_counter(name, mstype.float32) for name in REQUESTS)

        self.optimizer = optimizer
        weights = optimizer.parameters
        accumulates = train.accumulation_steps > 1
        if run.dynamic_loss_scale:  # doubles after 1000 finite updates, halves at an overflow
            self.scaler = amp.DynamicLossScaler(run.loss_scale, scale_factor=2, scale_window=1000)
        else:
            self.scaler = amp.StaticLossScaler(scale_value=run.loss_scale)
        # A Python number if it is static: then the compiler folds it into other constants.
        self.loss_scale = self.scaler.scale_value if run.dynamic_loss_scale else run.loss_scale
        self.backward = Backward(net, loss=loss, weights=weights, scaler=self.scaler)
        self.grad_sums = weights.clone("grad_sum", "zeros") if accumulates else None
        self.map = ops.HyperMap()
        self.counts_flags = rt.device == "Ascend" and amp._ascend_910a_target()
        self.check: nn.Cell = FiniteCheck()
        if self.counts_flags:
            from utils.nn.kernels.ascend import StatusFlagCheck  # here: no other device needs it

            self.check = StatusFlagCheck()
        optimizer_unscales = False
        if not (accumulates or run.dynamic_loss_scale or train.clip_norm > 0):
            # False if dividing there is not exact (no power of two) or not supported.
            scale = run.loss_scale * rt.size
            optimizer_unscales = scale == 1 or (
                isinstance(optimizer, SGD) and optimizer.fold_scale(scale)
            )
        self.sync = GradientSync(
            weights,
            ends=ends or [len(weights) - 1],
            check=self.check,
            rt=rt,
            clip_norm=train.clip_norm,
            optimizer_unscales=optimizer_unscales,
        )
        self.ema = MovingAverage(net, train.ema_decay) if train.ema_decay > 0 else None

    def construct(self, clip: Tensor, target: Tensor, factors: Optional[Tensor] = None) -> Tensor:
        if self.dropout_factors is not None:
            ops.assign(self.dropout_factors, ops.reshape(factors, self.dropout_factors.shape))
        if self.counts_flags:
            clip = self.check.clear(clip)
        clip = clip if self.mix is None else self.mix(clip, target)
        loss, scores, grads = self.backward(clip, target)
        if self.counts_flags:
            grads = self.check.record(grads)
        values = (loss, self.loss.top1(scores, target), self.stop.value(), self.bad_data.value())
        if self.grad_sums is None:  # one AllReduce serves the values and the overflow check
            values = self.update(grads, self.loss_scale, values)
        else:
            values = self.sync.average_over_ranks(values)
            self.accumulate(grads)
        ops.assign_add(self.micro_step, 1)
        loss, top1, stop, bad_data = values
        overflows = self.overflows.astype(mstype.float32)
        scale = self.scaler.scale_value.value()  # in eager mode, `stack` takes no Parameter
        return ops.stack((loss, top1, scale, overflows, stop, bad_data))

    def accumulate(self, grads: tuple) -> Tensor:
        """Adds a micro-batch; after the last one of an update or of the epoch, updates the weights.

        It returns a value that nobody uses. MindSpore 2.10 does not compile a function that has an
        `if` on a Tensor and returns nothing: Python runs it, in the middle of the graph.
        """
        self.map(ops.assign_add, self.grad_sums, grads)
        step_in_epoch = self.micro_step % self.steps_per_epoch
        count = step_in_epoch % self.accumulation_steps + 1
        if count == self.accumulation_steps or step_in_epoch + 1 == self.steps_per_epoch:
            scale = self.loss_scale * count.astype(mstype.float32)
            self.update(self.grad_sums, scale, ())
            self.map(set_zero, self.grad_sums)
        return count

    def update(self, grads: tuple, scale: Union[float, Tensor], values: tuple) -> tuple:
        """One update; returns the means of `values`.

        `grads` contain the factor `scale`, which is divided out here.
        """
        grads, finite, values = self.sync(grads, scale, values)
        self.update_weights(grads, finite)
        if self.counts_flags:
            self.check.reset()
        return values

    def update_weights(self, grads: tuple, finite: Tensor) -> Tensor:
        """One step of the optimizer and the EMA, if the gradients are finite."""
        if finite:
            self.optimizer(grads)
            if self.ema is not None:
                self.ema()
            ops.assign(self.overflows, 0)
        else:
            ops.assign_add(self.overflows, 1)
        self.scaler.adjust(finite)
        return finite  # for the reason given in `accumulate`

    def make_dropout_factors(self, start: int = 0) -> tuple[Tensor, ...]:
        """The step's third input for N clips from position `start` of the run on, one a position.

        For benchmarks and tests; in a training the rows bring them. Empty without dropout.
        """
        if self.dropout_factors is None:
            return ()
        count = len(self.dropout_factors)
        return (Tensor(np.concatenate([self.dropout.draw(start + k) for k in range(count)])),)

    def make_request(self, name: str) -> None:
        """Sets one of REQUESTS: from the next step on, all ranks return a value above 0."""
        getattr(self, name).set_data(Tensor(1.0, mstype.float32))

    def state(self) -> Weights:
        """Everything that a resumed run needs, by name: weights, optimizer, EMA, scale, counters.

        Accumulated gradients are not part of it, so it is complete only between updates.
        """
        own = [self.micro_step, self.overflows]
        if self.ema is not None:
            own += self.ema.means
        if isinstance(self.scaler, amp.DynamicLossScaler):
            own += [self.scaler.scale_value, self.scaler.counter]
        # Momenta and the step of the optimizer; learning rates follow from the settings.
        trained = {p.name for p in self.optimizer.parameters}
        others = [p for p in self.optimizer.get_parameters() if p.name not in trained]
        own += [p for p in others if not p.name.startswith("learning_rate")]
        # `padding`: a ResNet pads as PyTorch or as MindSpore; weights fit one, so files say which.
        weights = weights_of(self.net)
        return Weights({**weights, **{p.name: p for p in own}}, weights.padding)

    def ema_parameters(self) -> Weights:
        """The averaged weights under the network's names, of a step with EMA."""
        weights = weights_of(self.net)
        means = {p.name: mean for p, mean in zip(self.ema.sources, self.ema.means)}
        return Weights({**weights, **means}, weights.padding)


def set_zero(x: Tensor) -> Tensor:
    return ops.assign(x, ops.zeros_like(x))


def move_average(decay: float, mean: Tensor, value: Tensor) -> Tensor:
    return ops.assign(mean, mean * decay + value * (1 - decay))
