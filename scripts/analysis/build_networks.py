"""Builds networks and train steps with random batches: for commands that measure or plan."""

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn

from utils.data.sampler import TrainSampler
from utils.inference import checkpoint
from utils.networks import find_build, find_network
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.train.plan import Plan
from utils.train.train import build_training
from utils.train.train_step import TrainStep


def drop_pretrained(cfg: NetworkConfig) -> NetworkConfig:
    """The same settings with random weights: speed and plans need no checkpoint."""
    return replace(cfg, train=replace(cfg.train, pretrained=None, new_head=False))


def build_train_step(network: str, cfg: NetworkConfig, rt: Runtime) -> TrainStep:
    """The train step, for an epoch of a thousand steps."""
    samples = 1000 * cfg.data.batch * rt.size
    sampler = TrainSampler(samples, batch=cfg.data.batch, rank=rt.rank, size=rt.size, seed=0)
    plan = Plan(find_network(network), cfg, rt, sampler)
    return build_training(plan, find_build(network))[0].set_train()


def build_eval_network(network: str, cfg: NetworkConfig) -> nn.Cell:
    """The network as eval.py runs it, with random weights."""
    net = checkpoint.build_network(find_network(network), cfg)
    net.init_parameters_data()
    return checkpoint.prepare_for_inference(net, cfg.run.amp_level, dtype=cfg.run.amp_dtype)


def make_dummy_batch(network: str, cfg: NetworkConfig, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(random clips uint8, target) of the shapes of a training batch."""
    videos = cfg.data.batch
    shape = (videos, *find_network(network).get_sample_shape(cfg))
    clips = np.random.RandomState(seed).randint(0, 255, shape).astype(np.uint8)
    labels = np.zeros(videos, np.int32)
    return Tensor(clips), Tensor(find_network(network).build_targets(cfg, labels))


def build_cell(network: str, cfg: NetworkConfig, rt: Runtime, mode: str) -> tuple[nn.Cell, tuple]:
    """(train step or network in evaluation, its inputs for random clips); `mode`: train or eval."""
    clips, target = make_dummy_batch(network, cfg)
    if mode == "train":
        step = build_train_step(network, cfg, rt)
        return step, (clips, target, *step.make_dropout_factors())
    # Each clip of a video is one row of the batch.
    shape = find_network(network).get_input_shape(cfg)
    return build_eval_network(network, cfg), (clips.reshape(-1, *shape),)
