"""Checkpoints: written whole or not at all, loaded with a report of both sides.

A run folder holds `epoch_012.ckpt` (the network's weights, averaged ones beside them as
`epoch_012_ema.ckpt`), `resume.ckpt` (all that a resumed run needs, positions included, in one file
so that no kill can part them), `config.yaml` and `state.json` for people and other tools.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from utils.config import first_of, one_line, read_yaml, to_dict, to_yaml
from utils.data.sampler import Order
from utils.files import escape_control, explained, locked, write_text
from utils.log import log
from utils.runtime import Runtime
from utils.train import tensorboard
from utils.train.train_step import TrainStep, is_state
from utils.weights.checkpoint_file import RESUME, list_epochs, read

# Settings that may change between the two parts of one run: none moves a number.
FREE = {
    "run": {
        "device",
        "log_every",
        "save_every",
        "save_steps",
        "keep",
        "eval_every",
        "resume",
        "out",
        "all_reduce",
        "cluster",
        "backward",
        "profile",
        "tensorboard",
    },
    # Batch and accumulation may change with the number of devices: `RunFolder.continued`.
    "data": {"root", "labels", "reader", "workers", "processes", "prefetch", "bad_limit", "batch"},
    "train": {"accumulate"},
}
ORDER = "order"  # in the resume file: samples of a step, an update, an epoch, and of the list


class RunFolder:
    """The output folder of one run, locked for as long as the process lives. Rank 0 writes."""

    def __init__(self, config: Any, rt: Runtime):
        """Raises ValueError where the folder is in use, cannot be written, or is another run's."""
        self.path, self.config, self.rt = Path(config.run.out), config, rt
        if not rt.is_first:
            return
        if config.run.tensorboard:
            tensorboard.require_package()
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = locked(self.path)
        if self.lock is None:
            raise ValueError(
                f"run.out: {self.path} is in use by another run; choose another --run.out"
            )
        if self.resume_file.exists():
            self.check_same_run(config)
        with explained(self.path):
            remove_leftovers(self.path)

    def check_same_run(self, config: Any) -> None:
        """Raises where the run in the folder is not the one that is asked for."""
        advice = "choose another --run.out"
        if not config.run.resume:
            raise ValueError(
                f"run.out: {self.path} already holds a run and run.resume is false; {advice}"
            )
        old, new = read_yaml(self.path / "config.yaml"), to_dict(config)
        for section in new:
            for key, value in new[section].items():
                before = old.get(section, {}).get(key)
                if section != "eval" and key not in FREE.get(section, ()) and before != value:
                    raise ValueError(
                        f"run.out: {self.path} holds a run with {section}.{key} {before}, "
                        f"not {value}; {advice}"
                    )

    def continued(self, order: Order, accumulate: int) -> Order:
        """The order in which the run in the folder goes on, with the ranks there are now.

        Their number, the batch and the accumulation may be others as long as an update takes as
        many samples, and its epochs are whole steps. Raises ValueError where they are not.
        Writes config.yaml: here nothing speaks against the run any more.
        """
        if self.resume_file.exists():
            order = self.checked(order, accumulate)
        if self.rt.is_first:
            with explained(self.path):
                write_text(self.path / "config.yaml", to_yaml(self.config))
        return order

    def checked(self, order: Order, accumulate: int) -> Order:
        _, per_update, per_epoch, samples = read_counts(
            read(self.resume_file, ORDER), self.resume_file
        )
        if samples != order.samples:
            raise ValueError(
                f"run.out: {self.path} holds a run over {samples} samples, and the list now has "
                f"{order.samples}; choose another --run.out"
            )
        here = f"{order.batch} a device x {order.size} devices x {accumulate} accumulated"
        if order.per_update(accumulate) != per_update:
            raise ValueError(
                f"run.out: {self.path} holds a run of {per_update} samples an update, and {here} "
                f"are {order.per_update(accumulate)}; change data.batch or train.accumulate, or "
                "choose another --run.out"
            )
        if per_epoch % order.per_step:
            raise ValueError(
                f"run.out: {self.path} holds a run of {per_epoch} samples an epoch, which are no "
                f"whole steps of {order.per_step}; change data.batch and train.accumulate, or "
                "choose another --run.out"
            )
        return replace(order, used=per_epoch)

    def restore(self, step: TrainStep, order: Order) -> int:
        """Puts the step where the run stopped, if it did; returns the steps that are done.

        In steps of now, where the run had others.
        """
        if not self.resume_file.exists():
            return 0
        found = read(self.resume_file)
        per_step, *_ = read_counts(found, self.resume_file)
        restore(step.state(), found, self.resume_file)
        done = int(step.micro_step.asnumpy()) * per_step // order.per_step
        step.micro_step.set_data(Tensor(done, step.micro_step.dtype))
        return done

    def save(self, step: TrainStep, order: Order) -> None:
        """Writes the resume file: the step's state and how its counter counts."""
        per_update = order.per_update(step.accumulate)
        counts = order.per_step, per_update, order.per_epoch, order.samples
        mark = Parameter(Tensor(np.array(counts, np.int32)), name=ORDER, requires_grad=False)
        save(self.resume_file, {**step.state(), ORDER: mark})

    @property
    def resume_file(self) -> Path:
        return self.path / RESUME

    def newest(self) -> Optional[str]:
        """Name of the newest epoch's weights."""
        found = self.epochs()
        return found[-1].name if found else None

    def epochs(self) -> list[Path]:
        """The checkpoints of whole epochs, oldest first."""
        return list_epochs(self.path)

    def drop_old(self, keep: int) -> None:
        """Deletes all but the newest `keep` epochs' weights; 0 keeps all."""
        for file in self.epochs()[:-keep] if keep else ():
            with explained(file):
                file.unlink()
                file.with_name(f"{file.stem}_ema.ckpt").unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Deletes the temporary files of a write that did not end."""
    for file in folder.glob(f"{name}.tmp*"):
        file.unlink()


def save(path: Path, parameters: dict[str, Parameter], setting: str = "run.out") -> None:
    """Writes a MindSpore checkpoint atomically: at no time is there a half-written `path`.

    Raises ValueError, and leaves what was there before, where the disk does not take it.
    """
    temporary = path.with_name(path.name + ".tmp.ckpt")
    entries = [{"name": name, "data": parameter} for name, parameter in parameters.items()]
    with explained(path, setting):
        try:
            ms.save_checkpoint(entries, str(temporary), crc_check=True)
            os.chmod(temporary, 0o644)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except RuntimeError as error:  # MindSpore's own words for a full disk
            raise ValueError(f"{setting}: cannot write {path}: {one_line(error)[:200]}") from None
        finally:  # fails as well, where the disk has become read-only
            remove_leftovers(path.parent, path.name)  # MindSpore leaves one of its own, too


def weights_of(net: nn.Cell) -> dict[str, Parameter]:
    return {p.name: p for p in net.get_parameters() if is_state(p)}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint without the single numbers that `append_dict` writes.

    No network here has a weight without axes. Raises ValueError where the file is no checkpoint.
    """
    found = read(path)
    notes = [escape_control(name) for name, value in found.items() if not value.ndim]
    if notes:
        log.info("%s: left out what is no weight: %s", path, first_of(notes, 3))
    return {name: value for name, value in found.items() if value.ndim}


def load(net: nn.Cell, path: Path, new_head: bool = False, head: str = "") -> list[str]:
    """Loads every weight of `net` from `path`, strictly: nothing missing, nothing left over.

    With `new_head`, parameters whose names match the regular expression `head` keep their fresh
    values. Returns the names that stayed fresh. Raises ValueError otherwise, before anything of
    the network has changed.
    """
    found, wanted = read_weights(path), weights_of(net)
    fresh = [name for name in wanted if new_head and re.search(head, name)]
    if new_head:
        found = {name: value for name, value in found.items() if not re.search(head, name)}
    report = compare(found, {name: p for name, p in wanted.items() if name not in fresh})
    if report:
        advice = "; is it of another network, or of other settings under model?"
        if not new_head and re.search(head or "$^", report):
            advice = "; model.num_classes must be its own, or in training train.new_head=true"
        if Path(path).name == RESUME:
            advice = "; a run goes on from this file: give an epoch_*.ckpt beside it"
        raise ValueError(f"{path} does not fit this network: {report}{advice}")
    for name, value in found.items():
        wanted[name].set_data(Tensor(value, wanted[name].dtype))
    return fresh


def compare(found: dict[str, np.ndarray], wanted: dict[str, Parameter]) -> str:
    """What differs in names, shapes and kinds of numbers, in one line; empty if nothing does."""
    both = [(name, found[name], wanted[name]) for name in wanted if name in found]
    shapes = [
        f"{name} is {list(array.shape)} instead of {list(p.shape)}"
        for name, array, p in both
        if array.shape != tuple(p.shape)
    ]
    kinds = [
        f"{name} is {array.dtype} instead of {str(p.dtype).lower()}"
        for name, array, p in both
        if np.issubdtype(array.dtype, np.floating) != p.is_floating_point()
    ]
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    parts = [listing("missing", missing), listing("unknown", extra), listing("shape", shapes)]
    return "; ".join(part for part in [*parts, listing("type", kinds)] if part)


def listing(what: str, names: list[str]) -> str:
    """The first few, of which a stranger's file may have chosen the names."""
    return f"{what} {first_of([escape_control(name)[:200] for name in names], 3)}" if names else ""


def restore(state: dict[str, Parameter], found: dict[str, Parameter], path: Path) -> None:
    """Puts a resumed run where it was by what was found at `path`; strict on both sides."""
    report = compare(found, state)
    if report:
        raise ValueError(f"{path} is of another run: {report}; choose another --run.out")
    for name, value in found.items():
        state[name].set_data(Tensor(value, state[name].dtype))


def read_counts(found: dict[str, np.ndarray], path: Path) -> tuple[int, int, int, int]:
    """Takes out of a resume file's arrays what `RunFolder.save` adds to the step's state.

    Samples of a step, an update, an epoch and of the list. Raises ValueError.
    """
    counts = found.pop(ORDER, np.zeros(0)).tolist()
    if np.shape(counts) != (4,) or min(counts) < 1:
        raise ValueError(f"{path} is no resume file of this zoo; choose another --run.out")
    return tuple(map(int, counts))


def write_state(folder: Path, state: dict) -> None:
    with explained(folder):
        write_text(folder / "state.json", json.dumps(state, indent=1) + "\n")


def read_state(folder: Path) -> Optional[dict]:
    try:
        return json.loads((Path(folder) / "state.json").read_text())
    except (OSError, ValueError):
        return None
