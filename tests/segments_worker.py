"""Trains a small network with several settings of the AllReduce and saves its weights.

    [msrun ...] tests/segments_worker.py FOLDER

Each rank takes its part of every batch. It saves FOLDER/rank_R_of_S.npz: the weights, their
averages and the loss scale of each case of CASES, under `case/segments/name`. One device, which
sends nothing, has one segment.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import numpy as np
from mindspore import Tensor, nn

from utils import runtime
from utils.nn import amp
from utils.nn.loss import Loss
from utils.settings import Run
from utils.train.optimizers import SGD
from utils.train.train_step import TrainStep

# Last indices of the segments of four weights.
SEGMENTS = {"one": [3], "two": [1, 3], "each": [0, 1, 2, 3]}
OPTIONS = {"accumulation_steps": 1, "clip_norm": 0.0, "ema_decay": 0.0}
CASES = {
    "folded_scale": ({}, {"loss_scale": 1024.0}),  # the optimizer divides by it
    "amp": (
        {"clip_norm": 0.5, "ema_decay": 0.9},
        {"cpu_amp": "O2", "loss_scale": 64.0, "dynamic_loss_scale": True},
    ),
    "accumulation": (
        {"accumulation_steps": 2, "clip_norm": 0.5, "ema_decay": 0.9},
        {"loss_scale": 64.0, "dynamic_loss_scale": True},
    ),
}
STEPS = 4
BATCH = 4


class SquaredError(Loss):
    """Mean over rows of the squared scores."""

    def construct(self, scores, label):
        return (scores * scores).sum(axis=1).mean()


def build_network() -> nn.Cell:
    rng = np.random.RandomState(0)
    first, second = (Tensor(rng.randn(*shape).astype(np.float32)) for shape in ((4, 3), (2, 4)))
    return nn.SequentialCell(nn.Dense(3, 4, first, "zeros"), nn.Dense(4, 2, second, "zeros"))


def train(rt: runtime.Runtime, case: str, ends: list) -> dict:
    options, run_options = CASES[case]
    run = Run(device="CPU", **run_options)
    net = build_network()
    weights = net.trainable_params()
    group = {"params": weights, "lr": [0.05] * STEPS, "weight_decay": 0.0}
    optimizer = SGD(weights, [group], momentum=0.9)
    net = amp.cast(net, run.amp_level, run.amp_dtype)
    step = TrainStep(
        net,
        loss=SquaredError(),
        optimizer=optimizer,
        run=run,
        train=SimpleNamespace(**{**OPTIONS, **options}),
        rt=rt,
        steps_per_epoch=STEPS,
        ends=ends,
    ).set_train()
    rows = np.random.RandomState(1).randn(STEPS, BATCH, 3).astype(np.float32)
    for batch in rows:
        step(Tensor(batch[rt.rank :: rt.size]), Tensor(np.zeros(BATCH // rt.size, np.int32)))
    return {name: parameter.asnumpy() for name, parameter in step.state().items()}


def main(folder: Path) -> None:
    rt = runtime.start(Run(device="CPU"))
    splits = SEGMENTS if rt.size > 1 else {"one": SEGMENTS["one"]}
    arrays = {
        f"{case}/{segments}/{name}": array
        for case in CASES
        for segments, ends in splits.items()
        for name, array in train(rt, case, ends).items()
    }
    np.savez(folder / f"rank_{rt.rank}_of_{rt.size}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
