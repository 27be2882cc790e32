"""Trains X3D.

    python x3d/train.py --config_path x3d/configs/x3d_s_k400_13x6.yaml [--train.epochs=1 ...]

The last line of stdout is one JSON object: checkpoint, epochs, steps, loss, top1,
clips_per_second, compile_seconds.
"""

import sys
from itertools import islice
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from mindspore import nn

from utils import cli, runtime
from utils.data.sampler import TrainSampler
from utils.evaluate.metrics import evaluate
from utils.log import log
from utils.nn.layers import freeze
from utils.train import optimizers
from utils.train.train_setup import TrainSetup, build_setup
from utils.train.trainer import Trainer
from utils.weights import checkpoint
from x3d.config import Config
from x3d.dataset import (
    TrainSource,
    clip_shape,
    eval_data,
    read_records,
    train_sampler,
)
from x3d.loss import build_loss
from x3d.lr_generator import get_lr, parameter_groups
from x3d.model import X3D
from x3d.network import NETWORK
from x3d.precise_bn import PreciseBatchNorms


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    trainer = Trainer(cfg, rt)  # run directory, log, resume point
    records = read_records(cfg, "train")
    sampler = trainer.resume(train_sampler(cfg, records, rt))
    setup = build(cfg, rt, sampler)  # model, optimizer, AllReduce fusion, train step
    train_set = TrainSource(records, cfg, sampler, cfg.train.epochs, trainer.start_step)
    net = setup.step.net
    trainer.fit(
        setup,
        train_set,
        evaluate=validation(cfg, net, rt),
        before_saving=precise_batch_norm(cfg, net, records, sampler),
    )


def build(cfg: Config, rt: runtime.Runtime, sampler: TrainSampler) -> TrainSetup:
    """Model, optimizer and train step of a run over the samples of `sampler`."""
    train = cfg.train
    net = X3D(**cfg.network())
    if train.pretrained:
        checkpoint.load(net, train.pretrained, train.new_head, NETWORK.classifier)
    if train.batch_norm == "frozen":
        freeze(cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d))
    updates = sampler.updates_per_epoch(train.accumulate)
    lr = get_lr(train, updates, sampler.effective_batch_size(train.accumulate))
    weights = net.trainable_params()
    opt = optimizers.SGD(
        weights, parameter_groups(weights, train, lr), train.momentum, train.nesterov
    )
    clips = (cfg.data.batch, *clip_shape(cfg.data, cfg.data.crop))
    return build_setup(cfg, rt, sampler, net, build_loss(), opt, lr, clips)


def precise_batch_norm(cfg: Config, net, records: list, sampler: TrainSampler):
    """A function that computes precise BN over batches of the next epoch; None if it is off."""
    if not cfg.train.precise_bn or cfg.train.batch_norm == "frozen":
        return None
    norms = PreciseBatchNorms(net)  # keeps its compiled graph from one call to the next

    def update_statistics(position: int) -> None:
        epoch = position // sampler.steps_per_epoch
        skip = epoch * sampler.steps_per_epoch
        source = TrainSource(records, cfg, sampler, epoch + 1, skip)
        batches = source.dataset().create_tuple_iterator(num_epochs=1, output_numpy=True)
        count = min(cfg.train.precise_bn, sampler.steps_per_epoch)
        log.info("precise batch norm over %d batches ...", count)
        norms.update(clip for clip, _ in islice(batches, count))

    return update_statistics


def validation(cfg: Config, net, rt: runtime.Runtime):
    """Evaluates while training, every `run.eval_every` epochs; None for never."""
    if not cfg.run.eval_every:
        return None
    read_records(cfg, "test")  # a bad line is told before the training starts
    return lambda: evaluate(net, eval_data(cfg, rt), cfg.model.num_classes, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
