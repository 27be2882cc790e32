"""Writes the gradients of one global batch of synthetic clips, computed by all ranks.

    python tests/gradients.py --config_path Y [--section.key=value ...]

Rank r computes the r-th part of `data.batch` x ranks clips. The clips do not depend on the ranks.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from mindspore import Tensor, nn

from mvit_multi.config import Config
from mvit_multi.network import NETWORK
from mvit_multi.train import build
from utils import cli, runtime
from utils.data.sampler import TrainSampler
from utils.train.plan import Plan
from utils.train.train import build_training


class Gradients(nn.Cell):
    """A train step that ends with the mean of the gradients over the ranks."""

    def __init__(self, step: nn.Cell):
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        _, _, grads = self.step.backward(self.step.mix(clip, target), target)
        means, _, _ = self.step.sync(grads, self.step.loss_scale, ())
        return means


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)
    batch = cfg.data.batch
    sampler = TrainSampler(100, batch=batch, rank=rt.rank, size=rt.size, seed=0)
    step = build_training(Plan(NETWORK, cfg, rt, sampler), build)[0].set_train()
    shape = NETWORK.get_sample_shape(cfg)
    clips = np.random.RandomState(0).randint(0, 255, (batch * rt.size, *shape)).astype(np.uint8)
    targets = NETWORK.build_targets(cfg, np.arange(batch * rt.size) % 4)
    local = slice(batch * rt.rank, batch * (rt.rank + 1))
    grads = Gradients(step)(Tensor(clips[local]), Tensor(targets[local]))
    names = [parameter.name for parameter in step.optimizer.parameters]
    if rt.is_main_process:
        cfg.run.out.mkdir(parents=True)
        arrays = {name: grad.asnumpy() for name, grad in zip(names, grads)}
        np.savez(cfg.run.out / "gradients.npz", **arrays)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
