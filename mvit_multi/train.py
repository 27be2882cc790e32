"""Trains MViTv2 on several data sets at once, or on one.

    python mvit_multi/train.py --config_path mvit_multi/configs/mvit_multi_smoke.yaml [--train.lr=1]

The last line of stdout is one JSON object: checkpoint, epochs, steps, loss, top1,
clips_per_second (videos here, each in data.copies clips), compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from mvit_multi.config import Config
from mvit_multi.dataset import TrainSource, list_file, one_clip, read_records, train_order
from mvit_multi.evaluation import eval_videos, evaluate_sets
from mvit_multi.loss import Gather, Informative, build_loss
from mvit_multi.lr_generator import HEAD, get_lr, parameter_groups
from mvit_multi.mixup import MixClips
from mvit_multi.model import MViT
from utils import cli, log, runtime
from utils.data.class_names import advise
from utils.data.sampler import Order
from utils.distributed import gradient_fusion
from utils.evaluate.metrics import print_result
from utils.train import amp, optimizers, trainer
from utils.train.train_step import TrainStep
from utils.weights import checkpoint


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    folder = checkpoint.RunFolder(cfg, rt)
    log.start_log(rt, folder.path)
    for which, each in enumerate(cfg.data.sets):
        advise(list_file(cfg, which, "train"), each)
    samples = read_records(cfg, "train")
    order = folder.continued(train_order(cfg, samples, rt), cfg.train.accumulate)
    step, lr, segments = build(cfg, rt, order)
    done = folder.restore(step, order)
    log.announce(cfg.train, order, segments, done)
    clips = TrainSource(samples, cfg, order, cfg.train.epochs, done)
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
    train = cfg.train
    net = MViT(**cfg.network())
    if train.pretrained:
        checkpoint.load(net, train.pretrained, train.new_head, HEAD)
    lr = get_lr(train, order.steps_per_epoch, order.per_update(train.accumulate))
    weights = net.trainable_params()
    groups = parameter_groups(weights, train, lr)
    opt = optimizers.AdamW(weights, groups, train.betas, train.eps)
    clips = (cfg.data.batch * cfg.data.copies, *one_clip(cfg.data))
    segments = gradient_fusion.split_all_reduce(net, opt, cfg.run, rt, clips)  # read by TrainStep
    mix = MixClips(net.normalize, cfg.data.mixes)
    net, loss = amp.cast(net, cfg.run.amp), losses(cfg, rt)
    step = TrainStep(net, loss, opt, cfg.run, train, rt, order.steps_per_epoch, mix, clips[0])
    return step, lr, segments


def losses(cfg: Config, rt: runtime.Runtime):
    """Classification, projection and informative loss as the yaml weighs them."""
    train, informative = cfg.train, None
    if train.informative_weight:
        gather = Gather(rt.rank, rt.size) if rt.size > 1 else None
        informative = Informative(train.std_weight, train.covariance_weight, gather)
    return build_loss(
        tuple(each.num_classes for each in cfg.data.sets),
        cfg.crosses,
        smoothing=train.smoothing,
        smoothing_classes=train.smoothing_classes,
        weights=train.set_weights,
        projection_weight=train.projection_weight,
        add_to_scores=train.add_to_scores,
        informative=informative,
        informative_weight=train.informative_weight,
        share=1 / rt.size if train.gradient == "original" else 1.0,
    )


def validation(cfg: Config, net, rt: runtime.Runtime):
    """Evaluates while training, every `run.eval_every` epochs; None for never."""
    if not cfg.run.eval_every:
        return None
    videos = eval_videos(cfg, rt, "val")  # a bad line is told before the training starts
    return lambda: evaluate_sets(net, videos, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
