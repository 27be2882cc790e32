"""Training: from the first step, or from the last one of a stopped run, to the last epoch.

`Trainer` is what `main` of a network's train.py uses: run directory, log, resume point, and `fit`,
which runs the train step through `mindspore.train.Model` over one long sequence of batches. Epochs
are counted here. `TrainingLoop` is the callback between the steps: it logs every N steps, saves,
evaluates and stops.

The host reads the values of a step (one small array) when the next one is launched, so a device
never waits for the host. It reads them at once only if this step is logged, saved or evaluated.
"""

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
from mindspore import Tensor, nn
from mindspore.train import Callback, Model

from utils.config import Run
from utils.data.class_names import warn_about_mirroring
from utils.data.sampler import TrainSampler
from utils.distributed.gradient_fusion import Segments, split_all_reduce
from utils.evaluate.metrics import broadcast_bn_statistics, check_same_step
from utils.log import format_values, log, log_values, make_progress_bar, print_result, start_log
from utils.messages import Interrupted
from utils.runtime import Runtime, release_memory
from utils.signals import Stopped, handle_signals
from utils.train import amp, lr_schedules, memory, tensorboard
from utils.train.profiler import StepProfiler
from utils.train.run_dir import RunDirectory, write_state
from utils.train.train_step import OUTPUTS, TrainStep
from utils.weights import checkpoint

MUCH_WAITING = 0.1  # fraction of the time
DEVICE_COUNTS = (1, 8, 32, 48, 96, 128, 192, 384, 768, 1536)  # in the table of rates


@dataclass(frozen=True)
class TrainSetup:
    """A train step, its input, the learning rate of every update, and the AllReduce segments."""

    step: TrainStep
    lr: Sequence[float]
    segments: Segments
    clips: tuple[int, ...]  # the shape of a batch as the network takes it


def build_setup(
    cfg: Any,
    rt: Runtime,
    sampler: TrainSampler,
    net: nn.Cell,
    loss: nn.Cell,
    optimizer: nn.Optimizer,
    lr: Sequence[float],
    clips: tuple[int, ...],
    mix: Optional[nn.Cell] = None,
) -> TrainSetup:
    """Sets the AllReduce fusion, casts the network to its amp level, and builds the train step.

    `clips` is the shape of this rank's batch as the network takes it. `mix` is TrainStep's. The
    fusion must be set before TrainStep is built, which reads it. Raises ValueError for a bad
    `run.all_reduce`.
    """
    segments = split_all_reduce(net, optimizer, cfg.run, rt, clips)
    if cfg.run.amp_level != cfg.run.amp:
        log.info("%s", describe_cpu_precision(cfg.run))
    net = amp.cast(net, cfg.run.amp_level)
    steps = sampler.steps_per_epoch
    step = TrainStep(net, loss, optimizer, cfg.run, cfg.train, rt, steps, mix, clips[0])
    return TrainSetup(step, lr, segments, clips)


def describe_cpu_precision(run: Run) -> str:
    """A line about a recipe in float16 that trains on a CPU."""
    kind = "float32" if run.cpu_amp == "O0" else f"amp level {run.cpu_amp}"
    return (
        f"training in {kind}: on a CPU, run.amp {run.amp} of the config file has no effect "
        f"(float16 is slower there; --run.amp={run.amp} on the command line forces it)"
    )


class Trainer:
    """One training run of this process: the steps of `main` in a network's train.py, in order.

    Raises ValueError if the run directory is in use or holds a run with other settings.
    """

    def __init__(self, cfg: Any, rt: Runtime):
        self.cfg = cfg
        self.rt = rt
        self.directory = RunDirectory(cfg, rt)
        self.sampler: Optional[TrainSampler] = None
        start_log(rt, self.directory.path)

    def resume(self, sampler: TrainSampler) -> TrainSampler:
        """The sampler of this run: `sampler`, or if a run was stopped, the one that continues it.

        Raises ValueError if the stopped run had another effective batch size or other samples.
        """
        self.sampler = self.directory.resume(sampler, self.cfg.train.accumulation_steps)
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

        `train_set` is a network's `TrainSource` from `start_step` on. `evaluate()` returns metrics,
        every `run.eval_every` epochs; `before_saving(position)` runs before an epoch is saved or
        evaluated. Raises ValueError if the run failed (too many overflows or unreadable files),
        Interrupted after ctrl-C.
        """
        cfg = self.cfg
        step = setup.step
        self.directory.restore(step)
        for file, settings in train_set.list_flip_settings():
            warn_about_mirroring(file, settings)
        log_start(cfg.train, self.sampler, setup.segments, self.start_step)
        run = (cfg, self.rt, setup, self.sampler, self.directory)
        loop = TrainingLoop(*run, train_set.find_fault, evaluate, before_saving)
        batches = train_set.dataset(step.dropout)
        if batches is None:
            log.info("nothing left to train: %d epochs are done", cfg.train.epochs)
        else:
            self.run_steps(setup, batches, loop, train_set.make_blank_batch(step.dropout))
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
        sink = run.sink and self.rt.device != "CPU"
        size = choose_sink_size(batches, run.log_every) if sink else -1
        if sink:  # the graph that reads from the device's queue is another one
            log.info("compiling the graph during the first steps (run.sink) ...")
            loop.steps_per_call = size
        else:
            usual = 0.0
            if self.rt.device == "CPU":
                usual = memory.check_step(step.net, setup.clips, self.cfg.data.batch)
            loop.compile_seconds = compile_step(step, blank, self.rt, usual)
        with handle_signals(loop.request_stop):
            calls = batches // size if sink else 1
            Model(step).train(calls, data, [loop], dataset_sink_mode=sink, sink_size=size)
        loop.finish()


class TrainingLoop(Callback):
    """Logs, saves, evaluates and stops between steps. All ranks decide alike, on the same values.

    Positions count steps since the start of the run. `find_data_fault()` returns the reason to
    stop, or an empty string; `evaluate` and `before_saving` are those of `Trainer.fit`.
    """

    def __init__(
        self,
        cfg: Any,
        rt: Runtime,
        setup: TrainSetup,
        sampler: TrainSampler,
        directory: RunDirectory,
        find_data_fault: Callable[[], str] = str,
        evaluate: Optional[Callable[[], dict]] = None,
        before_saving: Optional[Callable[[int], None]] = None,
    ):
        self.run = cfg.run
        self.epochs = cfg.train.epochs
        self.rt = rt
        self.step = setup.step
        self.lr = setup.lr
        self.sampler = sampler
        self.directory = directory
        self.find_data_fault = find_data_fault
        self.evaluate = evaluate
        self.before_saving = before_saving
        self.steps_per_epoch = self.step.steps_per_epoch
        self.last_position = self.epochs * self.steps_per_epoch
        self.start_position = self.position = int(self.step.micro_step.asnumpy())
        self.checked_position = self.position  # at which saving was last considered
        self.steps_per_call = 1  # several if the device is fed many steps at a time
        self.unread: list = []  # (outputs, steps) of the newest call, whose values are not read yet
        self.values = dict.fromkeys(OUTPUTS, 0.0)  # the newest ones that were read
        self.profiling = StepProfiler(self.run.profile, rt)
        self.events: Any = None  # the writer for TensorBoard
        self.stop_signal = 0  # the signal that asked to stop
        self.unfinished = ""  # an evaluation that a signal has stopped, for the last line
        self.failure = ""  # why the run stops before its end
        self.unsaved = ""  # why the newest state could not be saved
        self.has_advised = False
        self.can_pack = getattr(cfg.data, "packed", "") is None  # images have no such setting
        self.newest_values: dict = {}  # the newest log line
        self.compile_seconds = self.seconds = 0.0

    def request_stop(self, number: int) -> None:
        self.stop_signal = number
        log.info("stopping after this step, or this batch of a validation ...")
        self.step.make_request("stop")

    def on_train_begin(self, run_context) -> None:
        self.window = MetricWindow()
        self.bar = make_progress_bar(self.last_position, "step", self.rt, self.position)
        self.profiling.start()
        if self.run.tensorboard and self.rt.is_main_process:
            folder = self.directory.path / "tensorboard"
            self.events = tensorboard.open_writer(folder, self.start_position)

    def on_train_step_begin(self, run_context) -> None:
        self.window.waited += time.monotonic() - self.window.since

    def on_train_step_end(self, run_context) -> None:
        self.profiling.step()
        before = self.position
        self.position = self.position + self.steps_per_call
        self.read_values()  # of the step before
        self.unread = [(run_context.original_args().net_outputs, self.steps_per_call)]
        log_is_due = self.crossed(before, self.run.log_every) or self.position == self.last_position
        is_first = before == self.start_position and self.rt.device == "CPU"
        if log_is_due or is_first or self.is_due(self.checked_position):
            self.read_values()
        self.bar.update(self.position - before)
        if log_is_due:
            self.log_window()
        elif is_first:
            self.log_first_step()
        self.check_data()
        if self.between_updates():
            self.save_and_evaluate()
            if self.failure or self.values["stop"] or self.unfinished:
                run_context.request_stop()
        self.window.since = time.monotonic()

    def read_values(self) -> None:
        """Waits for the newest call and reads its values; nothing if they are read already."""
        while self.unread:
            outputs, steps = self.unread.pop()
            self.values = dict(zip(OUTPUTS, map(float, outputs.asnumpy())))
            self.window.add(steps, self.values["loss"], self.values["top1"])
            self.check_overflows()

    def is_due(self, before: int) -> bool:
        """Whether this position saves, evaluates or ends the run."""
        return self.between_updates() and (
            self.epoch_is_saved(before)
            or self.crossed(before, self.run.save_steps)
            or self.evaluation_is_due(before)
        )

    def between_updates(self) -> bool:
        """Whether no micro-batch waits for the others of its group."""
        return self.position % self.steps_per_epoch % self.step.accumulation_steps == 0

    def save_and_evaluate(self) -> None:
        """Saves and evaluates if, since the last time, that has become due."""
        before = self.checked_position
        self.checked_position = self.position
        if self.failure or not self.is_due(before):
            return
        saves_epoch = self.epoch_is_saved(before)
        evaluates = self.evaluation_is_due(before)
        epoch = self.position // self.steps_per_epoch
        if self.before_saving and (saves_epoch or evaluates):
            self.before_saving(self.position)
            self.step.set_train()
        if saves_epoch:
            self.save(f"epoch_{epoch:03d}")
        elif self.crossed(before, self.run.save_steps):
            self.save()
        if evaluates:
            self.validate(epoch)

    def validate(self, epoch: int) -> None:
        broadcast_bn_statistics(self.step.net, self.rt)
        try:
            metrics = self.evaluate()
        except Stopped:
            self.unfinished = f"; the validation of epoch {epoch} is left to eval.py"
            return
        self.step.set_train()
        self.write_values({"epoch": epoch, **metrics})
        self.window = MetricWindow()

    def on_train_end(self, run_context) -> None:
        self.bar.close()
        fractions = self.profiling.stop()
        if fractions:
            self.write_values({"traced_steps": list(self.profiling.steps), **fractions})
        if self.events:
            self.events.close()

    def crossed(self, before: int, every: int) -> bool:
        """Whether a multiple of `every` steps was reached since `before`."""
        return every > 0 and self.position // every > before // every

    def check_overflows(self) -> None:
        """Fails the run, on all ranks alike, after too many updates that were not finite."""
        overflows = int(self.values["overflows"])
        if overflows >= self.run.max_overflows:
            self.failure = (
                f"train.lr: {overflows} updates in a row were not finite, loss "
                f"{self.values['loss']} (run.max_overflows); {self.describe_saved()}; "
                "lower the rate or the scale"
            )

    def check_data(self) -> None:
        """Fails the run if a rank has too many unreadable files, as soon as all ranks know."""
        mine = self.find_data_fault()
        if mine:
            self.step.make_request("bad_data")
        if mine and self.rt.size == 1:
            self.failure = mine
        elif self.values["bad_data"]:
            self.failure = mine or "data.max_unreadable: another rank has too many unreadable files"

    def describe_saved(self) -> str:
        saved = self.directory.resume_file.exists()
        return "the last checkpoint is intact" if saved else "nothing was saved"

    def state_is_finite(self) -> bool:
        """Whether weights, statistics and the optimizer's state are finite: those of this rank."""
        return all(np.isfinite(p.asnumpy()).all() for p in self.step.state().values())

    def epoch_is_saved(self, before: int) -> bool:
        epochs = self.position // self.steps_per_epoch
        due = epochs % self.run.save_every == 0 or self.position == self.last_position
        return self.crossed(before, self.steps_per_epoch) and due

    def evaluation_is_due(self, before: int) -> bool:
        every = self.run.eval_every
        is_last = every > 0 and self.position == self.last_position
        due = self.crossed(before, every * self.steps_per_epoch) or is_last
        return bool(self.evaluate and due)

    def save(self, name: str = "") -> None:
        """Writes the resume file and, with a name, the weights of an epoch; both only if finite."""
        if not self.rt.is_main_process:
            return
        if not self.state_is_finite():
            log.warning("step %d is not saved: its state is not finite", self.position)
            self.unsaved = "train.lr: the run ended with weights or statistics that are not finite"
            return
        self.unsaved = ""
        folder = self.directory.path
        if name:
            checkpoint.save(folder / f"{name}.ckpt", checkpoint.weights_of(self.step.net))
        if name and self.step.ema_decay:
            checkpoint.save(folder / f"{name}_ema.ckpt", self.step.ema_parameters())
        self.directory.save(self.step, self.sampler)
        epoch, step_in_epoch = divmod(self.position, self.steps_per_epoch)
        position = {"epoch": epoch, "step_in_epoch": step_in_epoch, "step": self.position}
        settings = {"epochs": self.epochs, "seed": self.rt.seed, "devices": self.rt.size}
        newest = self.directory.find_newest()
        write_state(folder, {**position, **settings, "checkpoint": newest, "version": 1})
        self.directory.delete_old_epochs(self.run.keep_checkpoints)

    def log_window(self) -> None:
        window = self.window
        clips = self.sampler.global_batch_size
        self.seconds += window.seconds
        steps_left = self.last_position - self.position
        self.newest_values = {
            "epoch": round(self.position / self.steps_per_epoch, 3),
            "step": self.position,
            "loss": round(window.loss / window.steps, 6),
            "top1": round(window.top1 / window.steps, 4),
            "lr": float(self.lr[self.last_update()]),
            "loss_scale": self.values["loss_scale"],
            "overflows": int(self.values["overflows"]),
            "clips_per_second": round(clips * window.steps / window.seconds, 2),
            "waiting": round(window.waited / window.seconds, 3),
            "seconds_left": round(steps_left * window.seconds / window.steps),
        }
        self.write_values(self.newest_values)
        self.advise_on_data(self.newest_values["waiting"])
        self.window = MetricWindow()

    def log_first_step(self) -> None:
        """A line for people only: on a CPU the first window may take many minutes."""
        seconds = self.window.seconds
        values = {
            "loss": self.values["loss"],
            "clips_per_second": self.sampler.global_batch_size / seconds,
            "seconds_left": round((self.last_position - self.position) * seconds),
        }
        log.info("first step  %s", format_values(values))

    def advise_on_data(self, waiting: float) -> None:
        """Logs advice once if the device waits for data; the first window fills the pipeline."""
        if waiting > MUCH_WAITING and self.seconds > self.window.seconds and not self.has_advised:
            self.has_advised = True
            log.info(
                "steps wait %.0f %% of the time for data: raise data.workers if cores are idle%s; "
                "benchmarks/benchmark.py data measures the cost of a clip",
                100 * waiting,
                ", or pack the videos with scripts/data/pack_videos.py" if self.can_pack else "",
            )

    def last_update(self) -> int:
        """Index of the update that the last batch belonged to."""
        epoch, step = divmod(self.position - 1, self.steps_per_epoch)
        groups = -(-self.steps_per_epoch // self.step.accumulation_steps)
        return epoch * groups + step // self.step.accumulation_steps

    def write_values(self, values: dict) -> None:
        if self.rt.is_main_process:
            log_values(self.directory.path, values)
        if self.events:
            for tag, value in tensorboard.select_scalars(values).items():
                self.events.add_scalar(tag, value, self.position)

    def finish(self) -> None:
        """Saves at the step at which a signal stopped the run; raises the error that ended it."""
        self.read_values()
        if (self.position < self.last_position or self.unfinished) and not self.failure:
            self.save()
        if self.unsaved and not self.failure:
            advice = "lower the rate or the loss scale"
            self.failure = f"{self.unsaved}; {self.describe_saved()}; {advice}"
        if self.failure:
            raise ValueError(self.failure)
        is_incomplete = self.position < self.last_position
        if is_incomplete or self.unfinished:
            rest = "; the same command goes on from there" if is_incomplete else ""
            how = f"stopped at step {self.position}, saved{rest}{self.unfinished}"
            if self.stop_signal == signal.SIGINT:
                raise Interrupted(f"interrupted: {how}")
            log.info("SIGTERM: %s", how)

    def result(self) -> dict:
        newest = self.directory.find_newest()
        clips = (self.position - self.start_position) * self.sampler.global_batch_size
        return {
            "checkpoint": str(self.directory.path / newest) if newest else None,
            "epochs": round(self.position / self.steps_per_epoch, 3),
            "steps": self.position,
            "loss": self.newest_values.get("loss"),
            "top1": self.newest_values.get("top1"),
            "clips_per_second": round(clips / self.seconds, 2) if self.seconds else None,
            "compile_seconds": round(self.compile_seconds, 1),
        }


class MetricWindow:
    """Sums between two log lines."""

    def __init__(self):
        self.start = self.since = time.monotonic()
        self.steps = self.waited = 0
        self.loss = self.top1 = 0.0

    def add(self, steps: int, loss: float, top1: float) -> None:
        """`loss` and `top1` of the last of `steps` steps stand for all of them."""
        self.steps += steps
        self.loss += steps * loss
        self.top1 += steps * top1

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.start, 1e-9)


def log_start(train: Any, sampler: TrainSampler, segments: Segments, start_step: int) -> None:
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
        log.info("going on from step %d", start_step)


def describe_device_counts(train: Any, sampler: TrainSampler) -> str:
    """Samples an update and peak rate of the same yaml on other numbers of devices, in one line.

    `here` stands before the number in use; numbers that the data cannot feed are left out.
    """
    fed = [n for n in DEVICE_COUNTS if sampler.batch * n <= sampler.samples]
    parts = []
    for n in sorted({sampler.size, *fed}):
        effective = sampler.batch * n * train.accumulation_steps
        peak = lr_schedules.peak_lr(train.lr, train.base_batch, effective)
        parts.append(f"{'here ' if n == sampler.size else ''}{n}: {effective}, lr {peak:g}")
    return f"devices: samples an update, peak lr | {' | '.join(parts)}"


def choose_sink_size(batches: int, most: int) -> int:
    """The largest number of steps per call, up to `most`, that divides `batches`."""
    return next(size for size in range(min(most, batches), 0, -1) if batches % size == 0)


def format_duration(seconds: float) -> str:
    """`20 s` or `3 minutes`, in steps of 10 s and of a minute."""
    if seconds < 90:
        return f"{10 * math.ceil(seconds / 10)} s"
    return f"{math.ceil(seconds / 60)} minutes"


def compile_step(
    step: TrainStep, batch: Sequence[np.ndarray], rt: Runtime, usual: float = 0.0
) -> float:
    """Builds the graph for batches like `batch`, with a log line before and after; seconds.

    `usual`: the seconds that this takes on an idle machine; 0 if they are not known.
    """
    duration = f", usually {format_duration(usual)} on an idle machine" if usual else ""
    log.info("compiling the graph%s ...", duration)
    start = time.monotonic()
    step.compile(*map(Tensor, batch))
    release_memory()
    seconds = time.monotonic() - start
    log.info("compiled in %.1f s", seconds)
    if rt.device == "Ascend":
        log.info(
            "the first step also compiles the device's kernels, which can take minutes "
            "(run.op_compile: prebuilt uses CANN's own)"
        )
    return seconds
