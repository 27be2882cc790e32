"""The callback between the steps: logs, saves and evaluates as `Schedule` says, and stops.

The host reads the values of a step (one small array) when the next one is launched, so a device
never waits for the host. It reads them at once only if this step is logged, saved or evaluated.
"""

import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import psutil
from mindspore.train import Callback

from utils.data.rows import TrainRows
from utils.files import report_write_errors
from utils.log import Progress, format_values, log, log_values
from utils.messages import RunInterruptedError
from utils.networks import Job
from utils.signals import StopRequestError
from utils.train.meter import OUTPUTS, Meter, describe_fault
from utils.train.plan import TrainParts
from utils.train.run_dir import RunDirectory
from utils.train.schedule import Due, Schedule
from utils.train.train_step import TrainStep

if TYPE_CHECKING:
    from utils.train.validation import Validation

MANY_STEPS = 200  # of an epoch, after which a run is judged
SKIPPED, WARM_UP, RECORDED = 3, 1, 5  # steps of run.profile
# Scalars of run.tensorboard
TRAINING = ("loss", "top1", "lr", "loss_scale", "overflows", "clips_per_second", "waiting")
TEST = ("top1", "top5", "mean_class_accuracy", "map", "loss")

MAX_OVERFLOWS = 20  # consecutive steps that are not finite before the run stops


@dataclass(eq=False)
class TrainingLoop(Callback):
    """Logs, saves, evaluates and stops between steps. All ranks decide alike, on the same values.

    `rows` are those of the whole run, `steps_done` counts the steps since its start. Raises
    ValueError if the run fails.
    """

    job: Job
    parts: TrainParts
    step: TrainStep
    rows: TrainRows
    directory: RunDirectory
    validation: "Optional[Validation]" = None

    def __post_init__(self) -> None:
        cfg = self.job.cfg
        self.run = cfg.run
        self.rt = self.job.rt
        self.sampler = self.rows.sampler
        per_epoch = self.step.steps_per_epoch
        accumulation_steps = self.step.accumulation_steps
        self.schedule = Schedule(self.run, cfg.train.epochs, per_epoch, accumulation_steps)
        self.last_step = self.schedule.last_step
        self.meter = Meter(self.sampler.global_batch_size, per_epoch, self.last_step)
        # What is wrong with a run is said once, after the warm-up and a quarter of the run, or an
        # epoch.
        self.chance = 0.0 if cfg.has_several_labels else 1 / cfg.class_counts[0]
        late = min(self.last_step / 4, max(per_epoch, MANY_STEPS))
        self.late = min(math.ceil(cfg.train.warmup_epochs * per_epoch) + late, self.last_step)
        self.start_step = int(self.step.micro_step.asnumpy())
        self.steps_done = self.start_step
        self.steps_per_call = 1  # several if the device is fed many steps at a time
        self.pending_outputs: Any = None  # of the newest call, until they are read
        self.profiler: Any = None  # of MindSpore, with run.profile
        self.bar: Any = None
        self.events: Any = None  # the writer for TensorBoard
        self.stop_signal = 0  # the signal that asked to stop
        self.unvalidated_epoch = 0  # whose evaluation a signal has stopped
        self.ends_early = False  # by run.patience
        self.is_finite = True  # the state that was to be saved last
        self.compile_seconds = 0.0
        self.first_step_seconds: Optional[float] = None  # since the start of the process

    def __exit__(self, *error: Any) -> None:
        """Closes the bar and the files of TensorBoard; `Model.train` calls it at its end."""
        if self.bar:
            self.bar.close()
        if self.events:
            self.events.close()

    def resume_validation(self) -> None:
        """Validates the epoch at which the run was stopped, if a setting depends on that."""
        if self.validation is None:
            return
        epoch = self.steps_done // self.step.steps_per_epoch
        self.validation.resume(epoch)
        due = self.schedule.due(self.steps_done - 1, self.steps_done)
        is_due = self.steps_done > 0 and due.evaluate
        if is_due and self.validation.decides and epoch not in self.validation.lines:
            self.validate(epoch)
        else:
            self.check_patience()

    def request_stop(self, number: int) -> None:
        self.stop_signal = number
        log.info("stopping after this step, or this batch of a validation ...")
        self.step.make_request("stop")

    def on_train_begin(self, run_context) -> None:
        self.meter.restart()
        self.bar = Progress(
            self.last_step,
            name="training",
            unit="steps",
            hidden=not self.rt.is_main_process,
            initial=self.steps_done,
            prints_lines=False,
        )
        if self.run.profile:
            # MindSpore's, of a few steps. It writes `trace_view.json`, in Chrome's format, which
            # MindStudio Insight, TensorBoard with its plug-in, and other viewers open.
            from mindspore import profiler

            with report_write_errors(self.run.profile, "run.profile"):
                self.run.profile.mkdir(parents=True, exist_ok=True)
            kinds = profiler.ProfilerActivity
            other = {"Ascend": [kinds.NPU], "GPU": [kinds.GPU]}.get(self.rt.device, [])
            steps = {"skip_first": SKIPPED, "warmup": WARM_UP, "active": RECORDED}
            self.profiler = profiler.profile(
                activities=[kinds.CPU, *other],
                schedule=profiler.schedule(wait=0, repeat=1, **steps),
                on_trace_ready=profiler.tensorboard_trace_handler(str(self.run.profile)),
            )
            self.profiler.start()
        if self.run.tensorboard and self.rt.is_main_process:
            self.events = open_events(self.directory.path / "tensorboard", self.start_step)

    def on_train_step_begin(self, run_context) -> None:
        self.meter.begin_step()

    def on_train_step_end(self, run_context) -> None:
        if self.profiler:
            self.profiler.step()
        before = self.steps_done
        self.steps_done += self.steps_per_call
        due = self.schedule.due(before, self.steps_done)
        is_first = before == self.start_step and self.rt.device == "CPU"
        self.read_outputs()  # of the call before
        self.pending_outputs = run_context.original_args().net_outputs
        if is_first or due.log or due.save or due.evaluate:
            self.read_outputs()
        self.bar.update(self.steps_per_call)
        if due.log:
            updates = int(self.step.optimizer.global_step.asnumpy()[0])  # without skipped ones
            rate = float(self.parts.lr[max(updates - 1, 0)])
            self.write_values(self.meter.close_window(self.steps_done, rate))
        elif is_first:
            values = self.meter.describe_first_step(self.steps_done)
            log.info("first step  %s", format_values(values))
        self.check_overflows()
        # All ranks end as soon as all know that one has too many unreadable files.
        fault = self.rows.find_fault()
        if fault:
            self.step.make_request("bad_data")
        if self.meter.values["bad_data"] or (fault and self.rt.size == 1):
            other = "data.max_unreadable: another rank has too many unreadable files"
            raise ValueError(fault or other)
        if self.schedule.is_between_updates(self.steps_done):
            self.save_and_evaluate(due)
            if self.meter.values["stop"] or self.unvalidated_epoch or self.ends_early:
                run_context.request_stop()
        self.meter.end_step()

    def on_train_end(self, run_context) -> None:
        if self.profiler:
            self.profiler.stop()
            last = SKIPPED + WARM_UP + RECORDED
            steps = (SKIPPED + WARM_UP + 1, last, self.run.profile)
            log.info("run.profile: the trace of steps %d to %d is in %s", *steps)

    def read_outputs(self) -> None:
        """Waits for the newest call and reads its values, unless they are read already."""
        if self.pending_outputs is not None:
            values = map(float, self.pending_outputs.asnumpy())
            self.meter.add(self.steps_per_call, dict(zip(OUTPUTS, values)))
            self.pending_outputs = None
            if self.first_step_seconds is None:
                self.first_step_seconds = round(time.time() - psutil.Process().create_time(), 1)

    def check_overflows(self) -> None:
        """Raises ValueError on all ranks after too many updates that were not finite."""
        overflows = self.meter.most_overflows
        if overflows >= MAX_OVERFLOWS:
            raise ValueError(
                f"train.lr: {overflows} updates in a row were not finite, loss "
                f"{self.meter.values['loss']}; {self.describe_saved()}; "
                "lower the rate or the scale"
            )

    def describe_saved(self) -> str:
        saved = self.directory.resume_file.exists()
        return "the last checkpoint is intact" if saved else "nothing was saved"

    def save_and_evaluate(self, due: Due) -> None:
        if self.parts.before_saving and (due.save_epoch or due.evaluate):
            job, sampler = self.job, self.sampler
            epoch = self.steps_done // sampler.steps_per_epoch  # that starts, or is not done
            skip = epoch * sampler.steps_per_epoch
            rows = job.network.train_rows(
                self.rows.records, cfg=job.cfg, sampler=sampler, epochs=epoch + 1, skip=skip
            )
            batches = job.network.create_dataset(job.cfg, rows, job.cfg.data.workers)
            self.parts.before_saving(batches.create_tuple_iterator(num_epochs=1, output_numpy=True))
            self.step.set_train()
        if due.save:
            self.save(due.save_epoch)
        if due.evaluate and self.validation:
            self.validate(self.steps_done // self.step.steps_per_epoch)
            if self.ends_early and not due.save_epoch:
                self.save(save_epoch=True)

    def save(self, save_epoch: bool = False) -> None:
        """Writes the resume file, and the weights of an epoch; both only if all is finite."""
        if not self.rt.is_main_process:
            return
        # Weights, statistics and the optimizer's state: those of this rank.
        state = self.step.state()
        self.is_finite = all(np.isfinite(value.asnumpy()).all() for value in state.values())
        if not self.is_finite:
            log.warning("step %d is not saved: its state is not finite", self.steps_done)
            return
        epoch, step_in_epoch = divmod(self.steps_done, self.step.steps_per_epoch)
        if save_epoch:
            self.directory.save_epoch(self.step, epoch)
        self.directory.save(self.step, self.sampler, self.rows.unreadable)
        progress = {"epoch": epoch, "step_in_epoch": step_in_epoch, "step": self.steps_done}
        self.directory.write_state({**progress, "epochs": self.job.cfg.train.epochs})
        self.directory.delete_old_epochs(self.run.keep_checkpoints)

    def validate(self, epoch: int) -> None:
        try:
            metrics = self.validation.validate(epoch)
        except StopRequestError:
            self.unvalidated_epoch = epoch
            return
        self.write_values(metrics)
        self.check_patience()
        self.step.set_train()
        self.meter.restart()

    def check_patience(self) -> None:
        """Ends the run, on all ranks, if its validations no longer improve."""
        self.ends_early = self.validation.is_stalled and self.steps_done < self.last_step
        if self.ends_early:
            log.info("run.patience: %s; the run ends", self.validation.describe_stall())

    def write_values(self, values: dict) -> None:
        """Logs a line of steps or of a validation; once, and late in a run, what is wrong."""
        if self.rt.is_main_process:
            log_values(self.directory.path, values)
        if self.events:
            for tag, value in select_scalars(values).items():
                self.events.add_scalar(tag, value, self.steps_done)
        if self.steps_done >= self.late:
            reads_files = not self.job.cfg.train.feature_draws
            fault = describe_fault(values, self.chance, reads_files)
            if fault:
                log.info(fault)
                self.late = math.inf

    def finish(self) -> None:
        """Saves at the step at which a signal stopped the run.

        Raises ValueError if the last state cannot be saved, RunInterruptedError after ctrl-C.
        """
        self.read_outputs()
        self.check_overflows()
        is_incomplete = self.steps_done < self.last_step and not self.ends_early
        is_stopped = is_incomplete or self.unvalidated_epoch > 0
        if is_stopped:
            self.save()
        if not self.is_finite:
            raise ValueError(
                "train.lr: the run ended with weights or statistics that are not finite; "
                f"{self.describe_saved()}; lower the rate or the loss scale"
            )
        if not is_stopped:
            return
        how = f"stopped at step {self.steps_done}, saved"
        if is_incomplete:
            how += "; the same command resumes there"
        if self.unvalidated_epoch:
            remedy = "repeated then" if self.validation.decides else "left to eval.py"
            how += f"; the validation of epoch {self.unvalidated_epoch} is {remedy}"
        if self.stop_signal == signal.SIGINT:
            raise RunInterruptedError(f"interrupted: {how}")
        log.info("%s: %s", signal.Signals(self.stop_signal or signal.SIGTERM).name, how)

    def result(self) -> dict:
        newest = self.directory.find_newest()
        line = self.validation.last_line if self.validation else {}
        clips = (self.steps_done - self.start_step) * self.sampler.global_batch_size
        seconds = self.meter.seconds
        is_trained = self.ends_early or self.steps_done >= self.last_step
        return {
            "checkpoint": str(self.directory.path / newest) if newest else None,
            "complete": is_trained and not (self.unvalidated_epoch and self.validation.decides),
            "epochs": round(self.steps_done / self.step.steps_per_epoch, 3),
            "steps": self.steps_done,
            "loss": self.meter.line.get("loss"),
            "top1": self.meter.line.get("top1"),
            "validation_loss": line.get("loss"),
            "validation_top1": line.get("top1"),
            **({"validation_map": line["map"]} if "map" in line else {}),
            "best_epoch": self.validation.best_epoch if line else None,
            "clips_per_second": round(clips / seconds, 2) if seconds else None,
            "compile_seconds": round(self.compile_seconds, 1),
            "first_step_seconds": self.first_step_seconds,
        }


def open_events(folder: Path, start_step: int) -> Any:
    """A tensorboardX.SummaryWriter. TensorBoard hides older values of steps after `start_step`.

    It flushes every second: kill -9 loses the values of the last second.
    """
    from tensorboardX import SummaryWriter

    with report_write_errors(folder, "run.tensorboard"):
        return SummaryWriter(str(folder), purge_step=start_step + 1, flush_secs=1)


def select_scalars(values: dict) -> dict[str, float]:
    """{tag: value} of a log line of training or of a validation; empty for any other line."""
    if "videos" not in values:
        line = values if "loss" in values else {}
        return {f"train/{name}": line[name] for name in TRAINING if name in line}
    tables = {"validation": values}
    tables.update((f"validation_{name}", table) for name, table in values.get("sets", {}).items())
    return {
        f"{title}/{name}": table[name]
        for title, table in tables.items()
        for name in TEST
        if table.get(name) is not None  # top5 of few classes
    }
