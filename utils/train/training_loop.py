"""The callback between the steps: logs, saves and evaluates as `Schedule` says, and stops.

The host reads the values of a step (one small array) when the next one is launched, so a device
never waits for the host. It reads them at once only if this step is logged, saved or evaluated.
"""

import math
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Optional

import numpy as np
import psutil
from mindspore.train import Callback

from utils.data.rows import TrainRows
from utils.files import report_write_errors
from utils.log import Progress, format_values, log, log_values
from utils.messages import RunInterruptedError
from utils.networks import Job
from utils.signals import StopRequestError
from utils.train.plan import TrainParts
from utils.train.run_dir import RunDirectory
from utils.train.schedule import Schedule, describe_chance
from utils.train.train_step import OUTPUTS, TrainStep

if TYPE_CHECKING:
    from utils.train.validation import Validation

MANY_STEPS = 200  # of an epoch, after which a run is judged
MUCH_WAITING = 0.1  # fraction of the time
WAITS = (
    "steps wait %.0f %% of the time for data: raise data.workers if cores are idle, or re-encode "
    "the videos with scripts/data/reencode_videos.py"
)
# Scalars of run.tensorboard, of a line of steps or of a validation
SCALARS = ("loss", "top1", "lr", "loss_scale", "overflows", "clips_per_second", "waiting")
SCALARS += ("top5", "mean_class_accuracy", "map")

MAX_OVERFLOWS = 20  # consecutive steps that are not finite before the run stops


@dataclass(eq=False)
class TrainingLoop(Callback):
    """Logs, saves, evaluates and stops between steps. All ranks decide alike, on the same values.

    `rows` of the whole run; `steps_done` counts the steps since its start. Raises
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
        per_epoch = self.sampler.steps_per_epoch
        accumulation_steps = self.step.accumulation_steps
        self.schedule = Schedule(self.run, cfg.train.epochs, per_epoch, accumulation_steps)
        self.last_step = self.schedule.last_step
        # What is wrong with a run is said once, after the warm-up and a quarter of the run, or an
        # epoch.
        late = min(self.last_step / 4, max(per_epoch, MANY_STEPS))
        self.late = min(math.ceil(cfg.train.warmup_epochs * per_epoch) + late, self.last_step)
        self.start_step = self.steps_done = int(self.step.micro_step.asnumpy())
        self.pending_outputs: Any = None  # of the newest step, until they are read
        self.values = dict.fromkeys(OUTPUTS, 0.0)  # of the newest step that is read
        self.most_overflows = 0  # consecutive updates that were not finite
        self.line: dict[str, Any] = {}  # the newest log line of steps
        self.seconds = 0.0  # of all windows that have a log line
        self.profiler: Any = None  # of MindSpore, with run.profile
        self.bar: Any = None
        self.events: Any = None  # the writer for TensorBoard
        self.stop_signal = 0  # the signal that asked to stop
        self.unvalidated_epoch = 0  # whose evaluation a signal has stopped
        self.ends_early = False  # by run.patience
        self.is_finite = True  # the state that was to be saved last
        self.compile_seconds = 0.0
        self.first_step_seconds: Optional[float] = None  # since the start of the process

    def resume_validation(self) -> None:
        """Validates the epoch at which the run was stopped, if a setting depends on that."""
        if self.validation is None:
            return
        epoch = self.steps_done // self.sampler.steps_per_epoch
        self.validation.resume(epoch)
        is_due = self.steps_done > 0 and self.schedule.due(self.steps_done).evaluate
        if is_due and self.validation.decides and epoch not in self.validation.lines:
            self.validate()
        else:
            self.check_patience()

    def request_stop(self, number: int) -> None:
        self.stop_signal = number
        log.info("stopping after this step, or this batch of a validation ...")
        self.step.make_request("stop")

    def restart_window(self) -> None:
        """Begins a window: at the start, after a log line, after an evaluation."""
        self.window_start = self.step_end = time.monotonic()
        self.window_steps = 0
        self.waited = self.loss = self.top1 = 0.0

    def on_train_begin(self, run_context) -> None:
        self.restart_window()
        hidden = not self.rt.is_main_process
        self.bar = Progress(
            None, "training", self.last_step, "steps", hidden, self.steps_done, prints_lines=False
        )
        if self.run.profile:
            # MindSpore's, of a few steps. It writes `trace_view.json`, in Chrome's format, which
            # MindStudio Insight, TensorBoard with its plug-in, and other viewers open.
            from mindspore import profiler

            with report_write_errors(self.run.profile, "run.profile"):
                self.run.profile.mkdir(parents=True, exist_ok=True)
            kinds = profiler.ProfilerActivity
            other = {"Ascend": [kinds.NPU], "GPU": [kinds.GPU]}.get(self.rt.device, [])
            self.profiler = profiler.profile(
                activities=[kinds.CPU, *other],
                schedule=profiler.schedule(wait=0, skip_first=3, warmup=1, active=5, repeat=1),
                on_trace_ready=profiler.tensorboard_trace_handler(str(self.run.profile)),
            )
            self.profiler.start()
        if self.run.tensorboard and self.rt.is_main_process:
            from tensorboardX import SummaryWriter

            # TensorBoard hides older values of later steps. kill -9 loses those of a second.
            folder = self.directory.path / "tensorboard"
            with report_write_errors(folder, "run.tensorboard"):
                purged = self.start_step + 1
                self.events = SummaryWriter(str(folder), purge_step=purged, flush_secs=1)

    def on_train_step_begin(self, run_context) -> None:
        self.waited += time.monotonic() - self.step_end

    def on_train_step_end(self, run_context) -> None:
        if self.profiler:
            self.profiler.step()
        is_first = self.steps_done == self.start_step and self.rt.device == "CPU"
        self.steps_done += 1
        due = self.schedule.due(self.steps_done)
        self.read_outputs()  # of the step before
        self.pending_outputs = run_context.original_args().net_outputs
        if is_first or due.log or due.save or due.evaluate:
            self.read_outputs()
        self.bar.update()
        if due.log:
            self.log_window()
        elif is_first:  # for people only: the first window may take many minutes
            seconds = time.monotonic() - self.window_start
            left = round((self.last_step - self.steps_done) * seconds)
            values = {"loss": self.values["loss"], "seconds_left": left}
            log.info("first step  %s", format_values(values))
        self.check_overflows()
        # All ranks end as soon as all know that one has too many unreadable files.
        fault = self.rows.find_fault()
        if fault:
            self.step.make_request("bad_data")
        if self.values["bad_data"] or (fault and self.rt.size == 1):
            raise ValueError(fault or "data.max_unreadable: exceeded on another rank")
        if self.schedule.is_between_updates(self.steps_done):
            if self.parts.before_saving and (due.save_epoch or due.evaluate):
                self.compute_precise_norms()
            if due.save:
                self.save(due.save_epoch)
            if due.evaluate and self.validation:
                self.validate()
                if self.ends_early and not due.save_epoch:
                    self.save(save_epoch=True)
            if self.values["stop"] or self.unvalidated_epoch or self.ends_early:
                run_context.request_stop()
        self.step_end = time.monotonic()

    def on_train_end(self, run_context) -> None:
        if self.profiler:
            self.profiler.stop()

    def __exit__(self, *error: Any) -> None:
        """Closes the bar and the files of TensorBoard; `Model.train` calls it at its end."""
        if self.bar:
            self.bar.close()
        if self.events:
            self.events.close()

    def read_outputs(self) -> None:
        """Waits for the newest step and reads its values, unless they are read already."""
        if self.pending_outputs is not None:
            self.values = dict(zip(OUTPUTS, map(float, self.pending_outputs.asnumpy())))
            self.most_overflows = max(self.most_overflows, int(self.values["overflows"]))
            self.window_steps += 1
            self.loss += self.values["loss"]
            self.top1 += self.values["top1"]
            self.pending_outputs = None
            if self.first_step_seconds is None:
                self.first_step_seconds = round(time.time() - psutil.Process().create_time(), 1)

    def log_window(self) -> None:
        """Logs the means and times since the last line; a new window begins."""
        updates = int(self.step.optimizer.global_step.asnumpy()[0])  # without skipped ones
        steps = self.window_steps
        seconds = max(time.monotonic() - self.window_start, 1e-9)
        self.seconds += seconds
        self.line = {
            "epoch": round(self.steps_done / self.sampler.steps_per_epoch, 3),
            "step": self.steps_done,
            "loss": round(self.loss / steps, 6),
            "top1": round(self.top1 / steps, 4),
            "lr": float(self.parts.lr[max(updates - 1, 0)]),
            "loss_scale": self.values["loss_scale"],
            "overflows": int(self.values["overflows"]),
            "clips_per_second": round(self.sampler.global_batch_size * steps / seconds, 2),
            "waiting": round(self.waited / seconds, 3),
            "seconds_left": round((self.last_step - self.steps_done) * seconds / steps),
        }
        self.restart_window()
        self.write_values(self.line)

    def check_overflows(self) -> None:
        """Raises ValueError on all ranks after too many updates that were not finite."""
        if self.most_overflows >= MAX_OVERFLOWS:
            problem = f"{self.most_overflows} updates in a row were not finite"
            self.fail(f"{problem}, loss {self.values['loss']}", "the scale")

    def fail(self, problem: str, other: str) -> NoReturn:
        saved = self.directory.resume_file.exists()
        state = "the last checkpoint is intact" if saved else "nothing was saved"
        raise ValueError(f"train.lr: {problem}; {state}; lower the rate or {other}")

    def compute_precise_norms(self) -> None:
        """Calls `before_saving` with the batches of the epoch that starts, or is not done."""
        cfg = self.job.cfg
        per_epoch = self.sampler.steps_per_epoch
        epoch = self.steps_done // per_epoch
        options = {"sampler": self.sampler, "epochs": epoch + 1, "skip": epoch * per_epoch}
        rows = self.job.network.train_rows(self.rows.records, cfg=cfg, **options)
        batches = self.job.network.create_dataset(cfg, rows, cfg.data.workers)
        self.parts.before_saving(batches.create_tuple_iterator(num_epochs=1, output_numpy=True))
        self.step.set_train()

    def save(self, save_epoch: bool = False) -> None:
        """Saves the run, and the weights of an epoch; both only if all is finite."""
        if not self.rt.is_main_process:
            return
        # This rank's weights, statistics and optimizer's state.
        state = self.step.state()
        self.is_finite = all(np.isfinite(value.asnumpy()).all() for value in state.values())
        if self.is_finite:
            self.directory.save(self.step, self.sampler, self.rows.unreadable, save_epoch)
        else:
            log.warning("step %d is not saved: its state is not finite", self.steps_done)

    def validate(self) -> None:
        epoch = self.steps_done // self.sampler.steps_per_epoch
        try:
            metrics = self.validation.validate(epoch)
        except StopRequestError:
            self.unvalidated_epoch = epoch
            return
        self.write_values(metrics)
        self.check_patience()
        self.step.set_train()
        self.restart_window()

    def check_patience(self) -> None:
        """Ends the run, on all ranks, if its validations no longer improve."""
        self.ends_early = self.validation.has_stalled() and self.steps_done < self.last_step
        if self.ends_early:
            leader = self.validation.find_leader()
            log.info("run.patience: no validation was better than epoch %d; the run ends", leader)

    def write_values(self, values: dict) -> None:
        """Logs a line of steps or of a validation; once, and late in a run, what is wrong."""
        if self.rt.is_main_process:
            log_values(self.directory.path, values)
        if self.events:
            title = "validation" if "videos" in values else "train"
            tables = {title: values}
            tables |= {f"{title}_{name}": part for name, part in values.get("sets", {}).items()}
            for tag, table in tables.items():
                for name in SCALARS:
                    if table.get(name) is not None:  # top5 of few classes
                        self.events.add_scalar(f"{tag}/{name}", table[name], self.steps_done)
        if self.steps_done >= self.late:
            cfg = self.job.cfg
            fault = ""
            if "videos" in values:
                chance = 0.0 if cfg.has_several_labels else 1 / cfg.class_counts[0]
                fault = describe_chance("validation", values, chance)
            elif values["waiting"] > MUCH_WAITING and not cfg.train.feature_draws:
                fault = WAITS % (100 * values["waiting"])
            if fault:
                log.info("%s", fault)
                self.late = math.inf

    def finish(self) -> None:
        """Saves at the step at which a signal stopped the run.

        Raises ValueError if the last state cannot be saved, RunInterruptedError after ctrl-C.
        """
        self.read_outputs()
        self.check_overflows()
        is_complete = self.ends_early or self.steps_done >= self.last_step
        is_stopped = not is_complete or self.unvalidated_epoch > 0
        if is_stopped:
            self.save()
        if not self.is_finite:
            self.fail("the last weights or statistics are not finite", "the loss scale")
        if not is_stopped:
            return
        how = f"stopped at step {self.steps_done}, saved; the same command resumes there"
        if self.unvalidated_epoch:
            how += f"; the validation of epoch {self.unvalidated_epoch} is not done"
        if self.stop_signal == signal.SIGINT:
            raise RunInterruptedError(f"interrupted: {how}")
        log.info("%s: %s", signal.Signals(self.stop_signal or signal.SIGTERM).name, how)

    def result(self) -> dict:
        epochs = self.directory.list_own_epochs()
        lines = self.validation.lines if self.validation else {}
        line = lines[max(lines)] if lines else {}
        clips = (self.steps_done - self.start_step) * self.sampler.global_batch_size
        is_trained = self.ends_early or self.steps_done >= self.last_step
        return {
            "checkpoint": str(epochs[-1]) if epochs else None,
            "complete": is_trained and not (self.unvalidated_epoch and self.validation.decides),
            "epochs": round(self.steps_done / self.sampler.steps_per_epoch, 3),
            "steps": self.steps_done,
            "loss": self.line.get("loss"),
            "top1": self.line.get("top1"),
            "validation_loss": line.get("loss"),
            "validation_top1": line.get("top1"),
            **({"validation_map": line["map"]} if "map" in line else {}),
            "best_epoch": self.validation.best_epoch if line else None,
            "clips_per_second": round(clips / self.seconds, 2) if self.seconds else None,
            "compile_seconds": round(self.compile_seconds, 1),
            "first_step_seconds": self.first_step_seconds,
        }
