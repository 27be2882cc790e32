"""What happens around the train step: the line every N steps, saving, stopping, evaluating.

`fit` runs the step through `mindspore.train.Model` over one long sequence of batches, from the
position of a resumed run to the end; epochs are counted here.

The host reads the values of a step (one small array) when the next one is launched, so a device
never waits for the host. It reads them at once only if this step is logged, saved or evaluated.
"""

import signal
import time

import numpy as np
from mindspore.train import Callback, Model

from utils import checkpoint
from utils.checkpoint import RunFolder
from utils.command import Interrupted
from utils.event_files import EventFiles
from utils.first_step import choose_sink_size, compile_step
from utils.metrics import check_same_step, share_statistics
from utils.plan import Plan
from utils.profiling import Profiling
from utils.run_log import Window, log, progress, write_line
from utils.runtime import Runtime
from utils.signals import Stopped, reacting
from utils.train_step import OUTPUTS, TrainStep

MUCH_WAITING = 0.1  # a share of the time


def fit(step: TrainStep, data, plan: Plan, rt: Runtime, folder: RunFolder) -> dict:
    """Trains to the end of the plan; returns what the last line of stdout says.

    `data` is the rest of the tape, None where nothing is left. Raises ValueError where the run
    failed (too many overflows or unreadable files), Interrupted after ctrl-C.
    """
    trainer = Trainer(step, plan, rt, folder)
    check_same_step(trainer.position, rt, folder.path)
    if data is None:
        log.info("nothing left to train: %d epochs are done", plan.epochs)
        return trainer.result()
    step.set_train()
    batches = data.get_dataset_size()
    sink = plan.run.sink and rt.device != "CPU"
    size = choose_sink_size(batches, plan.run.log_every) if sink else -1
    if sink:  # the graph that reads from the device's queue is another one
        log.info("compiling the graph during the first steps (run.sink) ...")
        trainer.steps_per_call = size
    else:
        trainer.compile_seconds = compile_step(step, data, rt)
    with reacting(trainer.ask_to_stop):
        Model(step).train(
            batches // size if sink else 1,
            data,
            callbacks=[trainer],
            dataset_sink_mode=sink,
            sink_size=size,
        )
    trainer.finish()
    return trainer.result()


class Trainer(Callback):
    """Follows the run from step to step. All ranks decide alike: they read the same numbers."""

    def __init__(self, step: TrainStep, plan: Plan, rt: Runtime, folder: RunFolder):
        self.step, self.plan, self.run, self.rt, self.folder = step, plan, plan.run, rt, folder
        self.per_epoch = step.steps_per_epoch
        self.total = plan.epochs * self.per_epoch
        self.begun = self.position = int(step.micro_step.asnumpy())
        self.settled = self.position  # the position at which saving was last considered
        self.steps_per_call = 1  # several if the device is fed many steps at a time
        self.unread: list = []  # (outputs, steps) of the newest call, whose values are not read yet
        self.values = dict.fromkeys(OUTPUTS, 0.0)  # the newest ones that were read
        self.profiling = Profiling(plan.run.profile, rt)
        events = folder.path / "tensorboard" if plan.run.tensorboard else None
        self.events = EventFiles(events, self.begun)
        self.signal = 0  # the one that asked to stop
        self.unfinished = ""  # what a signal has ended before its end, for the last line
        self.failure = ""  # why the run stops before its end
        self.unsaved = ""  # why the newest state could not be saved
        self.advised = False
        self.last: dict = {}
        self.compile_seconds = self.seconds = 0.0

    def ask_to_stop(self, number: int) -> None:
        self.signal = number
        log.info("stopping after this step, or this batch of a validation ...")
        self.step.request("stop")

    def on_train_begin(self, run_context) -> None:
        self.window = Window()
        self.bar = progress(self.total, "step", self.rt, self.position)
        self.profiling.start()

    def on_train_step_begin(self, run_context) -> None:
        self.window.waited += time.monotonic() - self.window.since

    def on_train_step_end(self, run_context) -> None:
        self.profiling.step()
        before, self.position = self.position, self.position + self.steps_per_call
        self.read_values()  # of the step before
        self.unread = [(run_context.original_args().net_outputs, self.steps_per_call)]
        log_is_due = self.passed(before, self.run.log_every) or self.position == self.total
        if log_is_due or self.is_due(self.settled):
            self.read_values()
        self.bar.update(self.position - before)
        if log_is_due:
            self.report()
        self.report_bad_data()
        if self.between_updates():
            self.settle()
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
            or self.passed(before, self.run.save_steps)
            or self.evaluation_is_due(before)
        )

    def between_updates(self) -> bool:
        """Whether no micro-batch waits for the others of its group."""
        return self.position % self.per_epoch % self.step.accumulate == 0

    def settle(self) -> None:
        """Saves and evaluates if, since the last time, that has become due."""
        before, self.settled = self.settled, self.position
        if self.failure or not self.is_due(before):
            return
        self.prepare_if_due(before)
        self.save_if_due(before)
        self.evaluate_if_due(before)

    def on_train_end(self, run_context) -> None:
        self.bar.close()
        shares = self.profiling.stop()
        if shares:
            self.write({"traced_steps": list(self.profiling.steps), **shares})

    def passed(self, before: int, every: int) -> bool:
        """Whether a multiple of `every` steps was reached since `before`."""
        return every > 0 and self.position // every > before // every

    def check_overflows(self) -> None:
        """Fails the run, on all ranks alike, after too many updates that were not finite."""
        overflows = int(self.values["overflows"])
        if overflows >= self.run.max_overflows:
            self.failure = (
                f"train.lr: {overflows} updates in a row were not finite, loss "
                f"{self.values['loss']} (run.max_overflows); {self.kept()}; lower the rate or "
                "the scale"
            )

    def report_bad_data(self) -> None:
        """Fails the run if a rank has too many unreadable files, as soon as all ranks know."""
        mine = self.plan.too_many_bad()
        if mine:
            self.step.request("bad_data")
        if mine and self.rt.size == 1:
            self.failure = mine
        elif self.values["bad_data"]:
            self.failure = mine or "data.bad_limit: another rank has too many unreadable files"

    def kept(self) -> str:
        saved = self.folder.resume_file.exists()
        return "the last checkpoint is intact" if saved else "nothing was saved"

    def is_sound(self) -> bool:
        """Whether weights, statistics and the optimizer's state are finite: those of this rank."""
        return all(np.isfinite(p.asnumpy()).all() for p in self.step.state().values())

    def prepare_if_due(self, before: int) -> None:
        if self.plan.prepare and (self.epoch_is_saved(before) or self.evaluation_is_due(before)):
            self.plan.prepare(self.position)
            self.step.set_train()

    def epoch_is_saved(self, before: int) -> bool:
        epochs = self.position // self.per_epoch
        due = epochs % self.run.save_every == 0 or self.position == self.total
        return self.passed(before, self.per_epoch) and due

    def evaluation_is_due(self, before: int) -> bool:
        every = self.run.eval_every
        due = self.passed(before, every * self.per_epoch) or every and self.position == self.total
        return bool(self.plan.evaluate and due)

    def save_if_due(self, before: int) -> None:
        if self.epoch_is_saved(before):
            self.save(f"epoch_{self.position // self.per_epoch:03d}")
        elif self.passed(before, self.run.save_steps):
            self.save()

    def evaluate_if_due(self, before: int) -> None:
        if self.evaluation_is_due(before):
            share_statistics(self.step.net, self.rt)
            epoch = self.position // self.per_epoch
            try:
                result = self.plan.evaluate()
            except Stopped:
                self.unfinished = f"; the validation of epoch {epoch} is left to eval.py"
                return
            self.step.set_train()
            self.write({"epoch": epoch, **result})
            self.window = Window()

    def save(self, name: str = "") -> None:
        """Writes the resume file and, with a name, the weights of an epoch; both only if finite."""
        if not self.rt.is_first:
            return
        if not self.is_sound():
            log.warning("step %d is not saved: its state is not finite", self.position)
            self.unsaved = "train.lr: the run ended with weights or statistics that are not finite"
            return
        self.unsaved = ""
        folder = self.folder.path
        if name:
            checkpoint.save(folder / f"{name}.ckpt", checkpoint.weights_of(self.step.net))
        if name and self.step.ema:
            checkpoint.save(folder / f"{name}_ema.ckpt", self.step.averaged())
        self.folder.save(self.step, self.plan.order)
        epoch, place = divmod(self.position, self.per_epoch)
        where = {"epoch": epoch, "step_in_epoch": place, "step": self.position}
        settings = {"epochs": self.plan.epochs, "seed": self.rt.seed, "devices": self.rt.size}
        newest = self.folder.newest()
        checkpoint.write_state(folder, {**where, **settings, "checkpoint": newest, "version": 1})
        self.folder.drop_old(self.run.keep)

    def report(self) -> None:
        window, clips = self.window, self.plan.order.per_step
        self.seconds += window.seconds
        self.last = {
            "epoch": round(self.position / self.per_epoch, 3),
            "step": self.position,
            "loss": round(window.loss / window.steps, 6),
            "top1": round(window.top1 / window.steps, 4),
            "lr": float(self.plan.rates[self.last_update()]),
            "loss_scale": self.values["loss_scale"],
            "overflows": int(self.values["overflows"]),
            "clips_per_second": round(clips * window.steps / window.seconds, 2),
            "waiting": round(window.waited / window.seconds, 3),
            "seconds_left": round((self.total - self.position) * window.seconds / window.steps),
        }
        self.write(self.last)
        self.advise(self.last["waiting"])
        self.window = Window()

    def advise(self, waiting: float) -> None:
        """Says once what to do where the device starves; the first window fills the pipeline."""
        if waiting > MUCH_WAITING and self.seconds > self.window.seconds and not self.advised:
            self.advised = True
            log.info(
                "steps wait %.0f %% of the time for data: raise data.workers where cores are idle; "
                "scripts/benchmark.py data says what a clip costs",
                100 * waiting,
            )

    def last_update(self) -> int:
        """Index of the update that the last batch belonged to."""
        epoch, place = divmod(self.position - 1, self.per_epoch)
        groups = -(-self.per_epoch // self.step.accumulate)
        return epoch * groups + place // self.step.accumulate

    def write(self, values: dict) -> None:
        if self.rt.is_first:
            write_line(self.folder.path, values)
            self.events.write(self.position, values)

    def finish(self) -> None:
        """Raises what stopped the run, or saves at the step at which it was asked to stop."""
        self.read_values()
        if (self.position < self.total or self.unfinished) and not self.failure:
            self.save()
        if self.unsaved and not self.failure:
            self.failure = f"{self.unsaved}; {self.kept()}; lower the rate or the loss scale"
        if self.failure:
            raise ValueError(self.failure)
        if self.position < self.total or self.unfinished:
            rest = "; the same command goes on from there" if self.position < self.total else ""
            how = f"stopped at step {self.position}, saved{rest}{self.unfinished}"
            if self.signal == signal.SIGINT:
                raise Interrupted(f"interrupted: {how}")
            log.info("SIGTERM: %s", how)

    def result(self) -> dict:
        newest = self.folder.newest()
        clips = (self.position - self.begun) * self.plan.order.per_step
        return {
            "checkpoint": str(self.folder.path / newest) if newest else None,
            "epochs": round(self.position / self.per_epoch, 3),
            "steps": self.position,
            "loss": self.last.get("loss"),
            "top1": self.last.get("top1"),
            "clips_per_second": round(clips / self.seconds, 2) if self.seconds else None,
            "compile_seconds": round(self.compile_seconds, 1),
        }
