"""Trains ResNet.

    python resnet50/train.py --config_path resnet50/configs/resnet50_smoke.yaml [--train.lr=1 ...]

The last line of stdout is one JSON object: checkpoint, epochs, steps, loss, top1,
clips_per_second (images here), compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from mindspore import nn

from resnet50.config import Config
from resnet50.dataset import EvalSource, TrainSource, clip_shape, read_records, train_order
from resnet50.loss import build_loss
from resnet50.lr_generator import HEAD, get_lr, parameter_groups
from resnet50.mixup import MixUp
from resnet50.model import build_network
from utils import cli, log, runtime
from utils.data.sampler import Order
from utils.distributed import gradient_fusion
from utils.evaluate.metrics import evaluate, print_result
from utils.nn.layers import freeze
from utils.train import amp, optimizers, trainer
from utils.train.train_step import TrainStep
from utils.weights import checkpoint


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    folder = checkpoint.RunFolder(cfg, rt)
    log.start_log(rt, folder.path)
    samples = read_records(cfg, "train")
    order = folder.continued(train_order(cfg, samples, rt), cfg.train.accumulate)
    step, lr, segments = build(cfg, rt, order)
    done = folder.restore(step, order)
    log.announce(cfg.train, order, segments, done)
    images = TrainSource(samples, cfg, order, cfg.train.epochs, done)
    plan = trainer.Plan(
        run=cfg.run,
        epochs=cfg.train.epochs,
        order=order,
        rates=lr,
        too_many_bad=images.over,
        evaluate=validation(cfg, step.net, rt),
    )
    print_result(trainer.fit(step, images.dataset(), plan, rt, folder), rt)


def build(cfg: Config, rt: runtime.Runtime, order: Order) -> tuple:
    """The train step, the learning rate of every update, and the AllReduce segments."""
    train = cfg.train
    net = build_network(**cfg.network())
    if train.pretrained:
        checkpoint.load(net, train.pretrained, train.new_head, HEAD)
    if train.batch_norm == "frozen":
        freeze(cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d))
    mix = MixUp(net.normalize) if cfg.data.mixup else None
    many = train.accumulate
    lr = get_lr(train, order.updates_per_epoch(many), order.per_update(many))
    weights = net.trainable_params()
    groups = parameter_groups(weights, train, lr)
    if train.optimizer == "lars":
        opt = optimizers.LARS(
            weights, groups, train.momentum, train.trust_coefficient, train.epsilon
        )
    else:
        opt = optimizers.SGD(weights, groups, train.momentum, train.nesterov)
    clips = (cfg.data.batch, *clip_shape(cfg.data, cfg.data.crop))
    segments = gradient_fusion.split_all_reduce(net, opt, cfg.run, rt, clips)  # read by TrainStep
    net, loss = amp.cast(net, cfg.run.amp), build_loss(train.smoothing, train.smoothed)
    step = TrainStep(net, loss, opt, cfg.run, train, rt, order.steps_per_epoch, mix)
    return step, lr, segments


def validation(cfg: Config, net, rt: runtime.Runtime):
    """Evaluates while training, every `run.eval_every` epochs; None for never."""
    if not cfg.run.eval_every:
        return None
    samples = read_records(cfg, "test")
    return lambda: evaluate(net, EvalSource(samples, cfg, rt), cfg.model.num_classes, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
