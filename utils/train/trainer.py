"""Training: from the first step, or from the last one of a stopped run, to the last epoch.

`Trainer` is what `utils.commands.train` uses: run directory, log, resume point, and `fit`,
which runs the train step through `mindspore.train.Model` over one long sequence of batches.
`TrainingLoop` is the callback between the steps.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from mindspore import Tensor, nn
from mindspore.train import Model

from utils.data.class_names import warn_about_mirroring
from utils.data.sampler import TrainSampler
from utils.distributed.collectives import check_same_step
from utils.distributed.segments import Segments, split_all_reduce
from utils.log import log, print_result, start_log
from utils.nn.layers import synchronize_norms
from utils.runtime import Runtime, release_memory
from utils.settings import Run, TrainSettings
from utils.signals import handle_signals
from utils.train import amp, lr_schedules, memory
from utils.train.plan import Plan, TrainParts, UseBatches
from utils.train.run_dir import RunDirectory
from utils.train.schedule import choose_sink_size
from utils.train.train_step import TrainStep
from utils.train.training_loop import TrainingLoop
from utils.train.validation import Validation

if TYPE_CHECKING:
    from utils.networks import Job

DEVICE_COUNTS = (1, 8, 32, 48, 96, 128, 192, 384, 768, 1536)  # in the table of rates


@dataclass(frozen=True)
class TrainSetup:
    """A train step, its input, the learning rate of every update, and the AllReduce segments.

    `build_before_saving` is that of `TrainParts`.
    """

    step: TrainStep
    lr: np.ndarray
    segments: Segments
    batch_shape: tuple[int, ...]  # the shape of a batch as the network takes it
    build_before_saving: Callable[[nn.Cell], Optional[UseBatches]]


def build_setup(plan: Plan, parts: TrainParts, batch_shape: tuple[int, ...]) -> TrainSetup:
    """Casts the network to its amp level, and builds the train step.

    `batch_shape` is that of this rank's batch as the network takes it. Raises ValueError for a bad
    `run.all_reduce`, or a `train.sync_batch_norm` without a batch norm that is trained.
    """
    train = plan.cfg.train
    run = plan.cfg.run
    if train.sync_batch_norm:
        synchronize_norms(parts.net, plan.rt.size)
    segments = split_all_reduce(parts.net, parts.optimizer, run, freezes=bool(train.freeze))
    if run.amp_level != run.amp:
        log.info("%s", describe_cpu_precision(run))
    if run.amp_dtype == "bfloat16" and (run.loss_scale != 1 or run.dynamic_loss_scale):
        log.info(
            "run.amp_dtype bfloat16 needs no loss scale: that of the config file has no effect"
        )
        run = replace(run, loss_scale=1.0, dynamic_loss_scale=False)
    step = TrainStep(
        amp.cast(parts.net, run.amp_level, run.amp_dtype),
        loss=parts.loss,
        optimizer=parts.optimizer,
        run=run,
        train=train,
        rt=plan.rt,
        steps_per_epoch=plan.steps_per_epoch,
        mix=parts.mix,
        clips=batch_shape[0],
        ends=[last for last, _, _ in segments],
    )
    return TrainSetup(step, parts.lr, segments, batch_shape, parts.build_before_saving)


def describe_cpu_precision(run: Run) -> str:
    """A line about a training in 16 bits that trains on a CPU."""
    kind = "float32" if run.cpu_amp == "O0" else f"amp level {run.cpu_amp}"
    advice = f"float16 is slower there; --run.amp={run.amp} on the command line forces it"
    if run.amp_dtype == "bfloat16":
        advice = "MindSpore has no bfloat16 there"
    return (
        f"training in {kind}: on a CPU, run.amp {run.amp} of the config file has no effect "
        f"({advice})"
    )


class Trainer:
    """One training run of this process: the steps of `run_training`, in order.

    Raises ValueError if the run directory is in use or holds a run with other settings.
    """

    def __init__(self, job: "Job"):
        self.create_dataset = job.network.create_dataset
        self.cfg = job.cfg
        self.rt = job.rt
        self.directory = RunDirectory(job.cfg, job.rt)
        self.sampler: Optional[TrainSampler] = None
        start_log(job.rt, self.directory.path)

    def resume(self, sampler: TrainSampler, records: Iterable[Any]) -> TrainSampler:
        """The sampler of this run: `sampler`, or if a run was stopped, the one that continues it.

        Its weights are loaded by `fit`.

        Raises ValueError if the stopped run had another effective batch size or other samples.
        """
        self.sampler = self.directory.resume(sampler, self.cfg.train.accumulation_steps, records)
        check_same_step(self.start_step, self.rt, self.directory.path)
        return self.sampler

    @property
    def start_step(self) -> int:
        """Steps that are done; valid after `resume`."""
        return self.directory.start_step

    def fit(
        self,
        setup: TrainSetup,
        train_set: Any,
        evaluate: Optional[Callable[[], dict]] = None,
        before_saving: Optional[Callable[[int], None]] = None,
    ) -> None:
        """Trains to the last epoch and prints the result as the last line of stdout.

        `train_set` are the rows of a network from `start_step` on. `evaluate()` returns metrics,
        every `run.eval_every` epochs; `before_saving(steps)` runs before an epoch is saved or
        evaluated. Raises ValueError if the run failed (too many overflows or unreadable files),
        RunInterruptedError after ctrl-C.
        """
        train = self.cfg.train
        step = setup.step
        self.directory.restore(step, train_set.unreadable)
        for file, settings in train_set.list_flip_settings():
            warn_about_mirroring(file.labels_path, file.num_classes, settings)
        log_start(train, sampler=self.sampler, segments=setup.segments, start_step=self.start_step)
        run = self.cfg.run
        validation = None
        if evaluate:
            validation = Validation(
                evaluate,
                run=run,
                rt=self.rt,
                step=step,
                folder=self.directory.path,
                description=self.directory.description,
            )
        loop = TrainingLoop(
            run=run,
            rt=self.rt,
            step=step,
            lr=setup.lr,
            epochs=train.epochs,
            sampler=self.sampler,
            directory=self.directory,
            train_set=train_set,
            chance_loss=math.inf if self.cfg.data.mixes else self.cfg.chance_loss,
            chance=self.cfg.chance,
            warmup_epochs=train.warmup_epochs,
            validation=validation,
            before_saving=before_saving,
        )
        rows = train_set.append_dropout(step.dropout)
        # Forks worker processes, before the threads of a validation run.
        batches = None
        if len(rows):
            batches = self.create_dataset(self.cfg, rows, self.cfg.data.workers)
        with handle_signals(loop.request_stop):
            loop.resume_validation()
        if loop.unvalidated_epoch or loop.ends_early:
            loop.finish()
        elif batches is None:
            log.info("nothing left to train: %d epochs are done", train.epochs)
        else:
            self.run_steps(setup, data=batches, loop=loop, blank=rows.make_blank_batch())
        print_result(loop.result(), self.rt)

    def run_steps(
        self, setup: TrainSetup, data: Any, loop: "TrainingLoop", blank: Sequence[np.ndarray]
    ) -> None:
        """Compiles the step and runs it over `data`, a MindData data set of batches like `blank`.

        `data.output_shapes()` is not used: it would start the data set's workers for one batch.
        """
        step = setup.step.set_train()
        run = self.cfg.run
        batches = data.get_dataset_size()
        sink = run.sink and self.rt.device != "CPU" and run.mode == "graph"
        size = choose_sink_size(batches, run.log_every) if sink else -1
        if sink:  # the graph that reads from the device's queue is another one
            log.info("compiling the graph during the first steps (run.sink) ...")
            loop.steps_per_call = size
        elif run.mode == "eager":
            log.info(
                "run.mode eager: no graph is compiled, operators are MindSpore's and run one by one"
            )
        else:
            if self.rt.device == "CPU" and loop.train_set.replacement is None:
                memory.check_step(step.net, setup.batch_shape, self.cfg.data.batch)
            loop.compile_seconds = compile_step(step, batch=blank, rt=self.rt)
        with handle_signals(loop.request_stop):
            calls = batches // size if sink else 1
            Model(step).train(calls, data, [loop], dataset_sink_mode=sink, sink_size=size)
        loop.finish()


def log_start(
    train: TrainSettings, sampler: TrainSampler, segments: Segments, start_step: int
) -> None:
    """Logs sizes, learning rate and AllReduce segments before the first step."""
    effective = sampler.effective_batch_size(train.accumulation_steps)
    batches = f"{sampler.batch} a device x {sampler.size} devices x {train.accumulation_steps}"
    log.info("%d samples; %d steps an epoch", sampler.samples, sampler.steps_per_epoch)
    log.info("%s accumulated = %d an update", batches, effective)
    if train.base_batch:
        peak = lr_schedules.peak_lr(train.lr, train.base_batch, effective)
        log.info("lr %g for %d samples -> %g for %d", train.lr, train.base_batch, peak, effective)
    else:
        log.info("lr %g for any batch: train.base_batch is 0, so it does not scale", train.lr)
    log.info("%s", describe_device_counts(train, sampler))
    parts = [f"{tensors} tensors {size / 1e6:.2f} MB" for _, tensors, size in segments]
    log.info("gradients are reduced in %d segments: %s", len(parts), " | ".join(parts))
    if start_step:
        log.info("resuming at step %d", start_step)


def describe_device_counts(train: TrainSettings, sampler: TrainSampler) -> str:
    """Samples an update and peak rate of these settings on other numbers of devices, in one line.

    `here` stands before the number in use; numbers that the data cannot feed are left out.
    """
    device_counts = [n for n in DEVICE_COUNTS if sampler.batch * n <= sampler.samples]
    parts = []
    for n in sorted({sampler.size, *device_counts}):
        effective = sampler.batch * n * train.accumulation_steps
        peak = lr_schedules.peak_lr(train.lr, train.base_batch, effective)
        parts.append(f"{'here ' if n == sampler.size else ''}{n}: {effective}, lr {peak:g}")
    return f"devices: samples an update, peak lr | {' | '.join(parts)}"


def compile_step(step: TrainStep, batch: Sequence[np.ndarray], rt: Runtime) -> float:
    """Builds the graph for batches like `batch`, with a log line before and after; seconds."""
    log.info("compiling the graph ...")
    start = time.monotonic()
    step.compile(*map(Tensor, batch))
    release_memory()
    seconds = time.monotonic() - start
    log.info("compiled in %.1f s", seconds)
    if rt.device == "Ascend":
        log.info("the first step also compiles the device's kernels, which can take minutes")
    return seconds
