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

from utils import cli, log, runtime
from utils.data.class_names import advise
from utils.data.sampler import Order
from utils.distributed import gradient_fusion
from utils.evaluate.metrics import evaluate, print_result
from utils.nn.layers import freeze
from utils.train import amp, optimizers, trainer
from utils.train.train_step import TrainStep
from utils.weights import checkpoint
from x3d.config import Config
from x3d.dataset import (
    TrainSource,
    clip_shape,
    eval_data,
    list_files,
    read_records,
    train_order,
)
from x3d.loss import build_loss
from x3d.lr_generator import HEAD, get_lr, parameter_groups
from x3d.model import X3D
from x3d.precise_bn import PreciseBatchNorms


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    folder = checkpoint.RunFolder(cfg, rt)
    log.start_log(rt, folder.path)
    advise(list_files(cfg)[0], cfg.data)
    records = read_records(cfg, "train")
    order = folder.continued(train_order(cfg, records, rt), cfg.train.accumulate)
    step, lr, segments = build(cfg, rt, order)
    done = folder.restore(step, order)
    log.announce(cfg.train, order, segments, done)
    clips = TrainSource(records, cfg, order, cfg.train.epochs, done)
    plan = trainer.Plan(
        run=cfg.run,
        epochs=cfg.train.epochs,
        order=order,
        rates=lr,
        too_many_bad=lambda: clips.bad.over(cfg.data.bad_limit),
        evaluate=validation(cfg, step.net, rt),
        prepare=precise(cfg, step.net, records, order),
    )
    print_result(trainer.fit(step, clips.dataset(step.dropout), plan, rt, folder), rt)


def build(cfg: Config, rt: runtime.Runtime, order: Order) -> tuple:
    """The train step, the learning rate of every update, and the AllReduce segments."""
    train = cfg.train
    net = X3D(**cfg.network())
    if train.pretrained:
        checkpoint.load(net, train.pretrained, train.new_head, HEAD)
    if train.batch_norm == "frozen":
        freeze(cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d))
    many = train.accumulate
    lr = get_lr(train, order.updates_per_epoch(many), order.per_update(many))
    weights = net.trainable_params()
    opt = optimizers.SGD(
        weights, parameter_groups(weights, train, lr), train.momentum, train.nesterov
    )
    clips = (cfg.data.batch, *clip_shape(cfg.data, cfg.data.crop))
    segments = gradient_fusion.split_all_reduce(net, opt, cfg.run, rt, clips)  # read by TrainStep
    net = amp.cast(net, cfg.run.amp)
    step = TrainStep(
        net, build_loss(), opt, cfg.run, train, rt, order.steps_per_epoch, samples=clips[0]
    )
    return step, lr, segments


def precise(cfg: Config, net, records: list, order: Order):
    """Precise batch norm over batches of the epoch that comes next; None where it is off."""
    if not cfg.train.precise_bn or cfg.train.batch_norm == "frozen":
        return None
    norms = PreciseBatchNorms(net)  # keeps its compiled graph from one call to the next

    def prepare(position: int) -> None:
        epoch = position // order.steps_per_epoch
        skip = epoch * order.steps_per_epoch
        source = TrainSource(records, cfg, order, epoch + 1, skip)
        batches = source.dataset().create_tuple_iterator(num_epochs=1, output_numpy=True)
        count = min(cfg.train.precise_bn, order.steps_per_epoch)
        log.log.info("precise batch norm over %d batches ...", count)
        norms.update(clip for clip, _ in islice(batches, count))

    return prepare


def validation(cfg: Config, net, rt: runtime.Runtime):
    """Evaluates while training, every `run.eval_every` epochs; None for never."""
    if not cfg.run.eval_every:
        return None
    read_records(cfg, "test")  # a bad line is told before the training starts
    return lambda: evaluate(net, eval_data(cfg, rt), cfg.model.num_classes, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
