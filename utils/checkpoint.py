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

from utils import event_files
from utils.config import first_of, one_line, read_yaml, to_dict, to_yaml
from utils.files import explained, locked, write_text
from utils.order import Order
from utils.runtime import Runtime
from utils.train_step import TrainStep, is_state

RESUME = "resume.ckpt"


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
            event_files.require_package()
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
        _, per_update, per_epoch, samples = counts_of(read(self.resume_file, ORDER)[ORDER])
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
        per_step, *_ = counts_of(found.pop(ORDER))
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
        found = {
            file: re.fullmatch(r"epoch_(\d+)\.ckpt", file.name) for file in self.path.iterdir()
        }
        return sorted(
            (file for file, name in found.items() if name), key=lambda f: int(found[f][1])
        )

    def drop_old(self, keep: int) -> None:
        """Deletes all but the newest `keep` epochs' weights; 0 keeps all."""
        for file in self.epochs()[:-keep] if keep else ():
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
    try:
        with explained(path, setting):
            ms.save_checkpoint(entries, str(temporary))
            os.chmod(temporary, 0o644)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except RuntimeError as error:  # MindSpore's own words for a full disk
        raise ValueError(f"{setting}: cannot write {path}: {one_line(error)[:200]}") from None
    finally:
        remove_leftovers(path.parent, path.name)  # MindSpore leaves one of its own, too


def weights_of(net: nn.Cell) -> dict[str, Parameter]:
    return {p.name: p for p in net.get_parameters() if is_state(p)}


def read(path: Path, only: str = "") -> dict[str, Parameter]:
    """The parameters in a MindSpore checkpoint, or only one; ValueError where it is none."""
    path = Path(path)
    if not path.is_file():
        folder = path if path.is_dir() else path.parent
        there = sorted(file.name for file in folder.glob("epoch_*.ckpt"))[-3:]
        hint = "training writes one, scripts/convert_checkpoint.py converts published weights"
        if there:
            hint = f"{folder} has {', '.join(there)}"
        raise ValueError(f"{path}: no such checkpoint; {hint}")
    if not path.stat().st_size:
        raise ValueError(f"{path}: is empty; copy it again")
    if path.suffix in (".pth", ".pyth", ".pt", ".safetensors", ".tar"):
        raise ValueError(f"{path}: convert it first with scripts/convert_checkpoint.py")
    if path.suffix == ".mindir":
        raise ValueError(f"{path}: a MINDIR holds no weights to load; give the checkpoint")
    if path.suffix == ".onnx":
        raise ValueError(
            f"{path}: ONNX Runtime runs it (docs/export.md); give a checkpoint or MINDIR"
        )
    if path.suffix != ".ckpt":
        raise ValueError(f"{path}: not a readable checkpoint: its name does not end in .ckpt")
    try:
        wanted = (lambda name: name == only) if only else None
        return ms.load_checkpoint(str(path), choice_func=wanted)
    except Exception as error:  # noqa: BLE001 MindSpore raises ValueError, RuntimeError and protobuf's own
        reason = one_line(error).split(". ")[0][:120]
        raise ValueError(f"{path}: not a readable checkpoint ({reason}); copy it again") from None


def load(net: nn.Cell, path: Path, new_head: bool = False, head: str = "") -> list[str]:
    """Loads every weight of `net` from `path`, strictly: nothing missing, nothing left over.

    With `new_head`, parameters whose names match the regular expression `head` keep their fresh
    values. Returns the names that stayed fresh. Raises ValueError otherwise, before anything of
    the network has changed.
    """
    found, wanted = read(path), weights_of(net)
    fresh = [name for name in wanted if new_head and re.search(head, name)]
    if new_head:
        found = {name: value for name, value in found.items() if not re.search(head, name)}
    report = compare(
        {name: tuple(p.shape) for name, p in found.items()},
        {name: tuple(p.shape) for name, p in wanted.items() if name not in fresh},
    )
    if report:
        advice = "; is it of another network, or of other settings under model?"
        if not new_head and re.search(head or "$^", report):
            advice = "; model.num_classes must be its own, or in training train.new_head=true"
        if Path(path).name == RESUME:
            advice = "; a run goes on from this file: give an epoch_*.ckpt beside it"
        raise ValueError(f"{path} does not fit this network: {report}{advice}")
    for name, value in found.items():
        wanted[name].set_data(Tensor(value.asnumpy(), wanted[name].dtype))
    return fresh


def compare(found: dict[str, tuple], wanted: dict[str, tuple]) -> str:
    """What differs between two lists of names and shapes, in one line; empty if nothing does."""
    shapes = [
        f"{name} is {list(found[name])} instead of {list(wanted[name])}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    parts = [listing("missing", missing), listing("unknown", extra), listing("shape", shapes)]
    return "; ".join(part for part in parts if part)


def listing(what: str, names: list[str]) -> str:
    return f"{what} {first_of(names, 3)}" if names else ""


def restore(state: dict[str, Parameter], found: dict[str, Parameter], path: Path) -> None:
    """Puts a resumed run where it was by what was found at `path`; strict on both sides."""
    report = compare(
        {name: tuple(p.shape) for name, p in found.items()},
        {name: tuple(p.shape) for name, p in state.items()},
    )
    if report:
        raise ValueError(f"{path} is of another run: {report}; choose another --run.out")
    for name, value in found.items():
        state[name].set_data(Tensor(value.asnumpy(), state[name].dtype))


def counts_of(mark: Parameter) -> tuple[int, int, int, int]:
    """Samples of a step, an update, an epoch and of the list, as `RunFolder.save` writes them."""
    return tuple(int(count) for count in mark.asnumpy())


def write_state(folder: Path, state: dict) -> None:
    with explained(folder):
        write_text(folder / "state.json", json.dumps(state, indent=1) + "\n")


def read_state(folder: Path) -> Optional[dict]:
    try:
        return json.loads((Path(folder) / "state.json").read_text())
    except (OSError, ValueError):
        return None
