"""Trains a small network with `train.sync_batch_norm`, and saves what it becomes.

    [msrun ...] tests/sync_norm_worker.py FOLDER CASE

Each rank takes its part of every batch. It saves FOLDER/rank_R_of_S.npz: the losses, weights and
running statistics, and for X3D the statistics of precise batch norm before the training.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

from dataclasses import replace

import numpy as np
from mindspore import Tensor

from scripts.analysis.build_networks import build_train_step, make_dummy_batch
from tests.helpers import load_smoke_config
from utils import runtime
from utils.settings import Run
from utils.weights.checkpoint import weights_of
from x3d.precise_bn import PreciseBatchNorms

BATCH = 8
UPDATES = 3
SETTINGS = ["train.sync_batch_norm=true", "train.warmup_epochs=0"]
TSM = ["model.first_width=8", "data.segments=2", "data.crop=32", "train.lr=0.01"]
X3D = ["model.depth_factor=0.4", "data.scales=[32,32]", "data.crop=32", "data.frames=4"]
CASES = {
    "resnet50": ["data.resize=64", "data.crop=64", "train.lr=0.01"],
    "tsm": TSM,
    "tsm partial": [*TSM, "train.batch_norm=partial"],
    "tsm amp": [*TSM, "run.cpu_amp=O2"],
    "x3d": [*X3D, "train.lr=0.001"],
}


def train(rt: runtime.Runtime, case: str) -> dict:
    network = case.split()[0]
    cfg = load_smoke_config(network, *CASES[case], *SETTINGS, f"data.batch={BATCH}")
    batches = [make_dummy_batch(network, cfg, seed) for seed in range(UPDATES)]
    cfg = replace(cfg, data=replace(cfg.data, batch=BATCH // rt.size))
    step = build_train_step(network, cfg, rt)
    own = [[Tensor(x.asnumpy()[rt.rank :: rt.size]) for x in batch] for batch in batches]
    arrays = {}
    if network == "x3d":
        PreciseBatchNorms(step.net, rt.size).update(clips.asnumpy() for clips, _ in own)
        weights = weights_of(step.net).items()
        arrays = {f"precise {n}": p.asnumpy().copy() for n, p in weights if "moving_" in n}
    for k, batch in enumerate(own):
        arrays[f"loss {k}"] = step(*batch).asnumpy()[0]
    return {**arrays, **{name: p.asnumpy() for name, p in weights_of(step.net).items()}}


def main(folder: Path, case: str) -> None:
    rt = runtime.start(Run(device="CPU"))
    np.savez(folder / f"rank_{rt.rank}_of_{rt.size}.npz", **train(rt, case))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
