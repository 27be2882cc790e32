"""A room's network on made-up clips: for commands that measure it or plan for it."""

import importlib
import time
from dataclasses import replace
from typing import Any, Callable

import numpy as np
from mindspore import Tensor, nn

from utils.data.sampler import TrainSampler
from utils.export import inference
from utils.runtime import Runtime
from utils.train.train_step import TrainStep


def without_checkpoint(cfg: Any) -> Any:
    """The same settings with fresh weights: speed and plans need no checkpoint."""
    return replace(cfg, train=replace(cfg.train, pretrained=None, new_head=False))


def build_step(room: str, cfg: Any, rt: Runtime) -> TrainStep:
    """The room's train step, for an epoch of a thousand steps."""
    order = TrainSampler(1000 * cfg.data.batch * rt.size, cfg.data.batch, rt.rank, rt.size, 0)
    return importlib.import_module(f"{room}.train").build(cfg, rt, order).step.set_train()


def evaluated(room: str, cfg: Any) -> nn.Cell:
    """The network as eval.py runs it, with fresh weights."""
    model = importlib.import_module(f"{room}.model")
    return inference.ready(model.build_network(**cfg.network()), cfg.run.amp)


def made_up_batch(room: str, cfg: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(clips uint8, target) of the shapes of a training batch."""
    dataset, videos = importlib.import_module(f"{room}.dataset"), cfg.data.batch
    shape = (videos, *dataset.clip_shape(cfg.data, cfg.data.crop))
    clips = np.random.RandomState(seed).randint(0, 255, shape).astype(np.uint8)
    target = np.zeros(videos, np.int32)
    if hasattr(dataset, "targets_of"):  # more than labels
        target = dataset.targets_of(cfg, target)
    return Tensor(clips), Tensor(target)


def one_clip(room: str, data: Any) -> tuple[int, ...]:
    """The shape of one clip as the network takes it, of which a video may have several."""
    dataset = importlib.import_module(f"{room}.dataset")
    if hasattr(dataset, "one_clip"):
        return tuple(dataset.one_clip(data))
    return tuple(dataset.clip_shape(data, data.crop))


def median_seconds(work: Callable[[], Any], repeats: int, warm_up: int = 1) -> float:
    """Median of several timed runs, after `warm_up` that are not timed."""
    times = []
    for _ in range(warm_up + repeats):
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return float(np.median(times[warm_up:]))
