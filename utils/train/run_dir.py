"""The run directory: what one training writes, and how a stopped run continues.

It holds `epoch_012.ckpt` (the network's weights; averaged ones beside them as
`epoch_012_ema.ckpt`), `resume.ckpt` (all that a resumed run needs, positions included, in one file,
so that a kill cannot separate them), and `config.yaml` and `state.json` for people and other tools.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, Optional

import numpy as np
from mindspore import Parameter, Tensor

from utils.collectives import sum_over_ranks
from utils.data.rows import UnreadableFiles
from utils.data.sampler import TrainSampler
from utils.files import check_folder, lock_folder, report_write_errors, write_text
from utils.load_config import read_yaml, to_dict, to_yaml
from utils.runtime import Runtime
from utils.train.train_step import TrainStep
from utils.weights import checkpoint
from utils.weights.checkpoint_file import (
    EPOCHS,
    RECORDS,
    RESUME,
    SAMPLER,
    UNREADABLE,
    list_epochs,
    read,
)
from utils.weights.description import Description

# Settings that may differ when a run is resumed: none of them changes what is trained, but for the
# rounding of another device, mode or reader.
CHANGEABLE_ON_RESUME = {
    "run": {
        "device", "mode", "log_every", "save_every", "save_steps", "keep_checkpoints", "eval_every",
        "resume", "out", "all_reduce", "profile", "tensorboard", "engine", "keep_best", "patience",
        "engine_precision",
    },
    # Batch and accumulation may change with the number of devices: `RunDirectory.resume`.
    "data": {
        "root", "labels", "reader", "workers", "processes", "prefetch", "max_unreadable", "batch",
    },
    "train": {"accumulation_steps"},
}  # fmt: skip
STATE = "state.json"
OWN = {STATE: r'(?s)\{.*"step": .*"seed": .*"checkpoint": .*"version": ', RESUME: ""}
COUNTER = "micro_step"  # steps since the start of the run


class RunDirectory:
    """The output directory of one run, locked while the process lives. Rank 0 writes.

    `start_step` is the step at which a resumed run starts, counted in steps of this run.
    `sample_hashes` is `hash_records` of the samples; empty: not known.
    `own_epochs` are those whose weights this run has written: others in the directory are an older
    run's, and stay.
    """

    def __init__(self, config: Any, rt: Runtime):
        """Raises ValueError if the directory is in use, not writable, or holds another run."""
        self.path = Path(config.run.out)
        self.resume_file = self.path / RESUME
        self.config = config
        self.rt = rt
        self.start_step = 0
        self.sample_hashes = np.zeros(0, np.int32)
        self.own_epochs: list[int] = []
        self.description: Optional[Description] = None  # in every checkpoint of the run
        if not rt.is_main_process:
            return
        if config.run.tensorboard and not find_spec("tensorboardX"):
            raise ValueError("run.tensorboard: it needs a package: pip install tensorboardX")
        check_folder(self.path, OWN, "--run.out")
        with report_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = lock_folder(self.path)
        if self.lock is None:
            self.refuse("is in use by another run")
        if not self.resume_file.exists():
            self.write_state({"epoch": 0, "step": 0})  # which shows from the start whose it is
            return
        if not config.run.resume:
            self.refuse("already holds a run and run.resume is false")
        old = read_yaml(self.path / "config.yaml")
        for section, settings in to_dict(config).items():
            changeable = CHANGEABLE_ON_RESUME.get(section, set())
            # A setting that is younger than that run had its default.
            defaults = {f.name: f.default for f in fields(getattr(config, section))}
            for key, value in settings.items():
                before = old.get(section, {}).get(key, defaults[key])
                if section == "eval" or key in changeable or before == value:
                    continue
                self.refuse(f"holds a run with {section}.{key} {before}, not {value}")

    def refuse(self, problem: str) -> NoReturn:
        """Raises ValueError that names the directory."""
        raise ValueError(f"run.out: {self.path} {problem}; choose another --run.out")

    def find_start(
        self, sampler: TrainSampler, accumulation_steps: int, records: Iterable[Any] = ()
    ) -> TrainSampler:
        """The sampler with which the run in the directory continues; sets `start_step`.

        `records` are the samples; the run must have the same, in the same order. The number of
        ranks, the batch size and the accumulation may have changed if an update still takes as many
        samples and an epoch is still a whole number of steps; else ValueError. Writes config.yaml.
        """
        self.sample_hashes = hash_records(records)
        if self.resume_file.exists():
            state = read(self.resume_file)
            batch, effective_batch, epoch_samples, samples = map(int, state[SAMPLER])
            hashes = state.get(RECORDS, self.sample_hashes)
            if samples != sampler.samples or not np.array_equal(hashes, self.sample_hashes):
                self.refuse("holds a run over other samples, or over these in another order")
            effective = sampler.effective_batch_size(accumulation_steps)
            if effective != effective_batch or epoch_samples % sampler.global_batch_size:
                self.refuse(
                    f"holds a run of {effective_batch} samples an update and {epoch_samples} an "
                    f"epoch; with this data.batch, {effective} are an update"
                )
            self.start_step = int(state[COUNTER]) * batch // sampler.global_batch_size
            sampler = replace(sampler, epoch_samples=epoch_samples)
        if self.rt.is_main_process:
            with report_write_errors(self.path):
                write_text(self.path / "config.yaml", to_yaml(self.config))
        if self.rt.size > 1:
            own_step = self.start_step % 4096  # sums stay exact
            if sum_over_ranks(np.array([own_step]))[0] != own_step * self.rt.size:
                self.refuse("is not the same folder on all ranks")
        return sampler

    def restore(self, step: TrainStep, unreadable: UnreadableFiles) -> None:
        """Loads the state of a stopped run, if there is one, into the train step and the marks.

        Raises ValueError if names or shapes differ.
        """
        if not self.resume_file.exists():
            return
        arrays = read(self.resume_file)
        for name in (SAMPLER, RECORDS):  # `find_start` has checked them
            arrays.pop(name, None)
        # A run of an older version did not say which it wrote: all that are there count as its own.
        found = [int(file.stem.removeprefix("epoch_")) for file in list_epochs(self.path)]
        self.own_epochs = arrays.pop(EPOCHS, np.array([0, *found])).tolist()[1:]
        unreadable.restore_marks(arrays.pop(UNREADABLE, np.zeros(0, np.int32)))
        state = step.state()
        shapes = {name: tuple(parameter.shape) for name, parameter in state.items()}
        report = checkpoint.report_differences(arrays, shapes)
        if report:
            self.refuse(f"has the {RESUME} of another run: {report}")
        for name, value in arrays.items():
            state[name].set_data(Tensor(value, state[name].dtype))
        step.micro_step.set_data(Tensor(self.start_step, step.micro_step.dtype))

    def save(
        self,
        step: TrainStep,
        sampler: TrainSampler,
        unreadable: UnreadableFiles,
        save_epoch: bool = False,
    ) -> None:
        """Writes the resume file: the state of the train step and the sampler, unreadable files.

        Every rank of the resumed run counts on from the files that this rank could not read. With
        `save_epoch` it first writes the weights of the epoch, and beside them the averaged ones.
        At the end it deletes those of all but the newest `run.keep_checkpoints` epochs of this run.
        """
        steps = int(step.micro_step.asnumpy())
        epoch, step_in_epoch = divmod(steps, sampler.steps_per_epoch)
        if save_epoch:
            name = f"epoch_{epoch:03d}"
            weights = {f"{name}.ckpt": checkpoint.weights_of(step.net)}
            if step.ema is not None:
                weights[f"{name}_ema.ckpt"] = step.ema_parameters()
            for file, values in weights.items():
                checkpoint.save(self.path / file, values, description=self.description)
            self.own_epochs.append(epoch)
        # The sizes, in samples, that a resumed run must keep or convert.
        counts = (
            sampler.global_batch_size,
            sampler.effective_batch_size(step.accumulation_steps),
            sampler.samples_per_epoch,
            sampler.samples,
        )
        more = {
            SAMPLER: np.array(counts, np.int32),
            UNREADABLE: np.flatnonzero(unreadable.view_flags()).astype(np.int32),
            EPOCHS: np.array([0, *self.own_epochs], np.int32),
            RECORDS: self.sample_hashes,
        }
        state = step.state()
        for name, value in more.items():
            if value.size:  # MindSpore cannot save an empty array
                state[name] = Parameter(Tensor(value), name=name, requires_grad=False)
        checkpoint.save(self.resume_file, state, description=self.description)
        progress = {"epoch": epoch, "step_in_epoch": step_in_epoch, "step": steps}
        self.write_state(progress | {"epochs": self.config.train.epochs})
        keep = self.config.run.keep_checkpoints
        for old in self.list_own_epochs()[:-keep] if keep else ():
            with report_write_errors(old):
                old.unlink()
                old.with_name(f"{old.stem}_ema.ckpt").unlink(missing_ok=True)

    def write_state(self, progress: dict) -> None:
        """Writes state.json, for people and other tools. Here it says only that this is a run."""
        epochs = self.list_own_epochs()
        newest = epochs[-1].name if epochs else None
        state = {"seed": self.rt.seed, "devices": self.rt.size, "checkpoint": newest, "version": 1}
        with report_write_errors(self.path):
            write_text(self.path / STATE, json.dumps({**progress, **state}, indent=1) + "\n")

    def list_own_epochs(self) -> list[Path]:
        """The weights that this run has written and that are still there, oldest first."""
        files = [self.path / f"epoch_{epoch:03d}.ckpt" for epoch in sorted({*self.own_epochs})]
        return [file for file in files if file.is_file()]


def hash_records(records: Iterable[Any]) -> np.ndarray:
    """A hash int32 (4,) of the samples in their order: names, labels, segments.

    Folders and suffixes do not count: while a run is stopped, videos may move or be re-encoded.
    """
    digest = hashlib.sha256()
    for record in records:
        name = os.path.splitext(os.path.basename(record.path))[0]
        line = f"{name}\t{record.dataset_index}\t{record.label}\t{record.segment}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return np.frombuffer(digest.digest()[:16], np.int32)
