"""Trains TSM.

    python tsm/train.py --config_path tsm/configs/tsm_r50_sthv2_8f.yaml [--train.epochs=1 ...]

The last line of stdout is one JSON object: checkpoint, epochs, steps, loss, top1,
clips_per_second, compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from tsm.config import Config
from tsm.dataset import (
    EvalVideos,
    TrainSource,
    clip_shape,
    list_files,
    read_records,
    train_order,
)
from tsm.loss import build_loss
from tsm.lr_generator import HEAD, get_lr, parameter_groups
from tsm.model import TSM, freeze_batch_norms
from utils import cli, log, runtime
from utils.data.class_names import advise
from utils.data.sampler import Order
from utils.distributed import gradient_fusion
from utils.evaluate.metrics import evaluate, print_result
from utils.train import amp, optimizers, trainer
from utils.train.train_step import TrainStep
from utils.weights import checkpoint


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
    )
    print_result(trainer.fit(step, clips.dataset(step.dropout), plan, rt, folder), rt)


def build(cfg: Config, rt: runtime.Runtime, order: Order) -> tuple:
    """The train step, the learning rate of every update, and the AllReduce segments."""
    net = TSM(**cfg.network())
    if cfg.train.pretrained:
        checkpoint.load(net, cfg.train.pretrained, cfg.train.new_head, HEAD)
    freeze_batch_norms(net, cfg.train.batch_norm)
    many = cfg.train.accumulate
    lr = get_lr(cfg.train, order.updates_per_epoch(many), order.per_update(many))
    weights = net.trainable_params()
    groups = parameter_groups(weights, cfg.train, lr, cfg.data.modality == "flow")
    opt = optimizers.SGD(weights, groups, cfg.train.momentum, cfg.train.nesterov)
    clips = (cfg.data.batch, *clip_shape(cfg.data, cfg.data.crop))
    segments = gradient_fusion.split_all_reduce(net, opt, cfg.run, rt, clips)  # read by TrainStep
    net, loss = amp.cast(net, cfg.run.amp), build_loss(cfg.model.before_softmax)
    step = TrainStep(
        net, loss, opt, cfg.run, cfg.train, rt, order.steps_per_epoch, samples=clips[0]
    )
    return step, lr, segments


def validation(cfg: Config, net, rt: runtime.Runtime):
    """Evaluates while training, every `run.eval_every` epochs; None for never.

    The list is read here, so that a bad line is told before the training starts.
    """
    if not cfg.run.eval_every:
        return None
    records = read_records(cfg, "test")
    classes = cfg.model.num_classes
    return lambda: evaluate(net, EvalVideos(records, cfg, rt, "val").dataset(), classes, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
