"""Validations of a training: with which weights, which were the best, and when to give up.

A validation takes the averaged weights (EMA) if there are any: they are what the run is for.
Its metrics become a line of `log.jsonl`, from which a resumed run knows the validations before its
first step. If `run.keep_best` or `run.patience` is on, a validation that is not there is done
again, so a run that was killed ends with the same `best.ckpt`, which is written before the line.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from mindspore import Tensor

from utils.collectives import broadcast_bn_statistics
from utils.files import parse_line, report_write_errors, write_text
from utils.log import log
from utils.runtime import Runtime
from utils.settings import Run
from utils.train.train_step import TrainStep
from utils.weights import checkpoint
from utils.weights.description import Description

BEST = "best.ckpt"
FEW = 30  # videos; of fewer, which epoch is the best is luck


@dataclass(eq=False)
class Validation:
    """Evaluates the weights of a train step, and keeps the best as `run.keep_best` says.

    Of equally good ones, the best have the lowest loss. Those of the last epoch are kept if fewer
    than FEW videos are validated: with 6 of one source, the last had the lower loss in 4 of 4 runs.
    Weights or statistics that are not finite do not count.

    `evaluate()` returns the metrics of the network. All ranks know all metrics, so they decide
    alike; rank 0 writes. `lines` are the metrics of all epochs that were validated. `best.ckpt` has
    the `description`, with its metrics.
    """

    evaluate: Callable[[], dict]
    run: Run
    rt: Runtime
    step: TrainStep
    folder: Path
    description: Optional[Description] = None
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metric = "loss" if self.run.keep_best == "none" else self.run.keep_best

    @property
    def decides(self) -> bool:
        """Whether anything depends on the metrics."""
        return self.run.keep_best != "none" or self.run.patience > 0

    def resume(self, epoch: int) -> None:
        """Reads the validations up to `epoch`, at which the run is resumed."""
        path = self.folder / "log.jsonl"
        if epoch and path.is_file():
            for line in map(parse_line, path.read_text().splitlines()):
                is_known = {"videos", "epoch", self.metric} <= line.keys()
                if is_known and line["epoch"] <= epoch:
                    self.lines[line["epoch"]] = line  # of repeated ones the last

    def validate(self, epoch: int) -> dict[str, Any]:
        """The metrics after an epoch, of which 0 have passed; writes `best.ckpt` if they are best.

        Raises StopRequestError on all ranks if a signal stops it.
        """
        if not self.lines:
            log.info("evaluating ...")
        broadcast_bn_statistics(self.step.net, self.rt)
        ema = self.step.ema
        # The network has its averaged weights, with the statistics of rank 0, until the end.
        sources, means = ((), ()) if ema is None else (ema.sources, ema.means)
        own_values = [parameter.asnumpy().copy() for parameter in sources]
        try:
            for parameter, mean in zip(sources, means):
                parameter.set_data(Tensor(mean.asnumpy().copy()))
            if sources:
                broadcast_bn_statistics(self.step.net, self.rt)
            metrics = {**self.evaluate(), "weights": "averaged" if sources else "trained"}
            line = {"epoch": epoch, **metrics}
            # The same on all ranks. No run resumes here: nothing is saved after such an epoch.
            weights = checkpoint.weights_of(self.step.net)
            if not all(np.isfinite(value.asnumpy()).all() for value in weights.values()):
                log.warning("epoch %d is not the best: its weights are not finite", epoch)
                return line
            self.lines[epoch] = line
            keeps = self.run.keep_best != "none"
            if keeps and len(self.lines) == 1 and line["videos"] < FEW:
                text = "run.keep_best: of fewer than %d videos the best is luck: %s is the last"
                log.info(text, FEW, BEST)
            if keeps and self.best_epoch == epoch and self.rt.is_main_process:
                description = self.description and replace(self.description, metrics=line)
                checkpoint.save(self.folder / BEST, weights, description=description)
                values = {"keep_best": self.run.keep_best, "validation": line}
                target = (self.folder / BEST).with_suffix(".json")
                with report_write_errors(target):
                    write_text(target, json.dumps(values) + "\n")
        finally:
            for parameter, value in zip(sources, own_values):
                parameter.set_data(Tensor(value))
        return line

    @property
    def best_epoch(self) -> int:
        """The epoch of `best.ckpt`; 0: no video could be read yet."""
        last = max((epoch for epoch, line in self.lines.items() if line["videos"]), default=0)
        has_few = last and self.run.keep_best != "none" and self.lines[last]["videos"] < FEW
        return last if has_few else self.find_leader()

    def find_leader(self) -> int:
        """The epoch with the best value, of equal ones the lowest loss; 0: none."""
        sign = 1 if self.metric == "loss" else -1
        lines = {k: line for k, line in self.lines.items() if line["videos"]}
        order = {k: (sign * line[self.metric], line["loss"], k) for k, line in lines.items()}
        return min(order, key=order.__getitem__, default=0)

    def has_stalled(self) -> bool:
        """Whether the last `run.patience` validations have improved nothing."""
        leader = self.find_leader()
        return 0 < self.run.patience <= sum(epoch > leader for epoch in self.lines)
