"""Trains like tsm/train.py, then writes the state of the rank beside the run.

    msrun ... tests/distributed_train_worker.py --config_path Y [--section.key=value ...]

Variables change the last rank only: POISONED_STEP=3 makes its loss infinite in step 3;
FLAGGED_STEP=3 reports an overflow in step 3 although its gradients are finite; LAST_STEP=5
requests the end of the run after step 5.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import os
import signal

import numpy as np
from mindspore import ops

from tsm.config import Config
from tsm.network import NETWORK
from tsm.train import build
from utils import cli
from utils.train import train
from utils.train.gradients import FiniteCheck
from utils.train.train_step import Backward, TrainStep

NAMES = ("POISONED_STEP", "FLAGGED_STEP", "LAST_STEP")
POISONED, FLAGGED, LAST = (int(os.environ.get(name, -1)) for name in NAMES)


class PoisonedBackward(Backward):
    """Makes the loss infinite in one step."""

    def compute_scaled_loss(self, clip, target):
        scaled, loss, scores = super().compute_scaled_loss(clip, target)
        poison = 1.0 + 1e38 * (self.micro_step == POISONED - 1)
        return scaled * poison * poison, loss, scores


class FlaggedCheck(FiniteCheck):
    """Reports an overflow in one step, though its gradients are finite.

    That occurs on an Ascend 910A.
    """

    def construct(self, grads, norm):
        return ops.logical_and(super().construct(grads, norm), self.micro_step != FLAGGED - 1)


class FaultyStep(TrainStep):
    def __init__(self, net, loss, optimizer, **options):
        super().__init__(net, loss, optimizer, **options)
        weights = optimizer.parameters
        self.backward = PoisonedBackward(net, loss=loss, weights=weights, scaler=self.scaler)
        self.backward.micro_step = self.micro_step
        self.sync.check = FlaggedCheck()
        self.sync.check.micro_step = self.micro_step


class StoppedLoop(train.TrainingLoop):
    """Requests the end of the run in its middle."""

    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        if self.steps_done == LAST:
            self.request_stop(signal.SIGTERM)


def main(cfg: Config) -> None:
    saved = {}
    build_training = train.build_training

    def build_and_save(plan, build):
        rt = plan.rt
        if rt.rank == rt.size - 1:
            train.TrainStep = FaultyStep
            train.TrainingLoop = StoppedLoop
        saved["rank"] = rt.rank
        saved["step"], parts = build_training(plan, build)
        return saved["step"], parts

    train.build_training = build_and_save
    train.run_training(NETWORK, cfg, build)
    arrays = {name: p.asnumpy() for name, p in saved["step"].state().items()}
    np.savez(cfg.run.out.parent / f"rank_{saved['rank']}.npz", **arrays)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
