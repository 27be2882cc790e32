"""Trains ResNet.

    python resnet50/train.py --config_path resnet50/configs/resnet50_smoke.yaml [--train.lr=1 ...]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second
(images here), compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from functools import partial

from mindspore import nn

from resnet50.class_folders import write_run_classes
from resnet50.config import Config
from resnet50.dataset import (
    EvalImages,
    TrainImages,
    build_train_sampler,
    get_clip_shape,
    read_records,
)
from resnet50.loss import SmoothedCrossEntropy
from resnet50.lr_generator import build_parameter_groups, get_lr
from resnet50.mix_images import MixImages
from resnet50.model import build_network
from resnet50.network import NETWORK
from resnet50.readers import Images, find_classes
from utils import cli, runtime
from utils.data.equal_files import log_repeats
from utils.data.sampler import TrainSampler
from utils.evaluate.metrics import EvalSet, evaluate
from utils.nn.layers import freeze_norms
from utils.scoring.scorer import CellScorer
from utils.train import optimizers
from utils.train.choose_kernels import with_training_kernels
from utils.train.class_weights import choose_loss, compute_class_weights
from utils.train.freeze import freeze
from utils.train.trainer import Trainer, TrainSetup, build_setup
from utils.weights import checkpoint


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    trainer = Trainer(cfg, rt)  # run directory, log, resume point
    images = read_records(cfg, "train")
    sampler = trainer.resume(build_train_sampler(cfg, images, rt))
    classes = find_classes(cfg.data, cfg.model.num_classes, split="train")
    write_run_classes(trainer.directory.path, classes, rt)
    setup = build(cfg, rt, sampler)  # model, optimizer, AllReduce fusion, train step
    train_set = TrainImages(
        images, cfg=cfg, sampler=sampler, epochs=cfg.train.epochs, skip=trainer.start_step
    )
    validation = build_validation(cfg, net=setup.step.net, rt=rt, trained=images)
    trainer.fit(setup, train_set, evaluate=validation)


@with_training_kernels
def build(cfg: Config, rt: runtime.Runtime, sampler: TrainSampler) -> TrainSetup:
    train = cfg.train
    net = build_network(**cfg.model_arguments())
    if train.pretrained:
        checkpoint.load(
            net, path=train.pretrained, new_head=train.new_head, head=NETWORK.classifier
        )
    if train.batch_norm == "frozen":
        freeze_norms(cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d))
    freeze(net, train.freeze, NETWORK.classifier)
    mix = MixImages(net.normalize) if cfg.data.mixes else None
    updates = sampler.updates_per_epoch(train.accumulation_steps)
    lr = get_lr(train, updates, sampler.effective_batch_size(train.accumulation_steps))
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train, lr)
    if train.optimizer == "lars":
        opt = optimizers.LARS(
            weights,
            groups=groups,
            momentum=train.momentum,
            trust=train.trust_coefficient,
            eps=train.epsilon,
        )
    else:
        opt = optimizers.SGD(
            weights, groups=groups, momentum=train.momentum, nesterov=train.nesterov
        )
    clips = (cfg.data.batch, *get_clip_shape(cfg.data, cfg.data.crop))
    (class_weights,) = compute_class_weights(cfg, sampler)
    smooth = partial(SmoothedCrossEntropy, train.smoothing, train.smoothed)
    loss = choose_loss(cfg, class_weights, smooth)
    return build_setup(
        cfg, rt=rt, sampler=sampler, net=net, loss=loss, optimizer=opt, lr=lr, clips=clips, mix=mix
    )


def build_validation(cfg: Config, net, rt: runtime.Runtime, trained: Images):
    """A function that evaluates `net` during training; None if `run.eval_every` is 0.

    Logs repeated images, also those that are among `trained`.
    """
    if not cfg.run.eval_every:
        log_repeats(rt, train=trained)
        return None
    images = read_records(cfg, "val")  # a bad label stops the run before training starts
    log_repeats(rt, train=trained, validation=images)
    (space,) = NETWORK.list_label_spaces(cfg)
    scorer = CellScorer(net)
    return lambda: evaluate(scorer, [EvalSet(EvalImages(images, cfg, rt), space)], rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
