"""Writes the gradients of one batch of made-up clips, spread over the ranks there are: for a test.

    python tests/gradients.py --config_path Y [--section.key=value ...]

Rank r takes the r-th part of `data.batch` x ranks videos, the same whatever their number.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from mindspore import Tensor, nn

from mvit_multi import dataset, train
from mvit_multi.config import Config
from utils import cli, runtime
from utils.data.sampler import TrainSampler


class Gradients(nn.Cell):
    """A train step up to the mean over ranks."""

    def __init__(self, step: nn.Cell):
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        _, grads = self.step.gradients(self.step.mix(clip, target), target)
        grads = self.step.scaler.unscale(grads)
        if self.step.reducer is None:
            return grads
        sums, means = self.step.reducer(grads), ()
        for total in sums:
            means += (total / self.step.size,)
        return means


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)
    batch = cfg.data.batch
    step = train.build(cfg, rt, TrainSampler(100, batch, rt.rank, rt.size, 0)).step.set_train()
    shape = dataset.clip_shape(cfg.data, cfg.data.crop)
    clips = np.random.RandomState(0).randint(0, 255, (batch * rt.size, *shape)).astype(np.uint8)
    targets = dataset.targets_of(cfg, np.arange(batch * rt.size) % 4)
    mine = slice(batch * rt.rank, batch * (rt.rank + 1))
    grads = Gradients(step)(Tensor(clips[mine]), Tensor(targets[mine]))
    names = [parameter.name for parameter in step.optimizer.parameters]
    if rt.is_main_process:
        cfg.run.out.mkdir(parents=True)
        arrays = {name: grad.asnumpy() for name, grad in zip(names, grads)}
        np.savez(cfg.run.out / "gradients.npz", **arrays)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
