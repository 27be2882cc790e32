"""Trains MViTv2 on several data sets at once, or on one.

    python mvit_multi/train.py --config_path mvit_multi/configs/mvit_multi_smoke.yaml [--train.lr=1]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second
(here videos, with data.repeated_aug clips each), compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from mvit_multi.config import Config
from mvit_multi.dataset import (
    Sample,
    TrainVideos,
    build_eval_videos,
    get_input_shape,
    read_records,
)
from mvit_multi.loss import GatherEmbeddings, MultiLoss, VarianceCovarianceLoss
from mvit_multi.lr_generator import build_parameter_groups, get_lr
from mvit_multi.mixup import MixClips
from mvit_multi.model import MViT
from mvit_multi.network import NETWORK
from utils import cli, runtime
from utils.data.equal_files import log_repeats
from utils.data.sampler import TrainSampler
from utils.data.videos import build_train_sampler
from utils.evaluate.metrics import EvalSet, evaluate
from utils.scoring.scorer import CellScorer
from utils.train import optimizers
from utils.train.choose_kernels import with_training_kernels
from utils.train.class_weights import ClassWeights, compute_class_weights
from utils.train.freeze import freeze
from utils.train.trainer import Trainer, TrainSetup, build_setup
from utils.weights import checkpoint


def main(cfg: Config) -> None:
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    trainer = Trainer(cfg, rt)  # run directory, log, resume point
    samples = read_records(cfg, "train")
    sampler = trainer.resume(build_train_sampler(cfg, samples, rt))
    setup = build(cfg, rt, sampler)  # model, optimizer, AllReduce fusion, train step
    train_set = TrainVideos(
        samples, cfg=cfg, sampler=sampler, epochs=cfg.train.epochs, skip=trainer.start_step
    )
    distinct = samples[: len(samples) // cfg.data.dataset_repeats]
    validation = build_validation(cfg, net=setup.step.net, rt=rt, trained=distinct)
    trainer.fit(setup, train_set, evaluate=validation)


@with_training_kernels
def build(cfg: Config, rt: runtime.Runtime, sampler: TrainSampler) -> TrainSetup:
    train = cfg.train
    net = MViT(**cfg.model_arguments())
    if train.pretrained:
        checkpoint.load(
            net, path=train.pretrained, new_head=train.new_head, head=NETWORK.classifier
        )
    freeze(net, train.freeze, NETWORK.classifier)
    global_batch = sampler.effective_batch_size(train.accumulation_steps)
    lr = get_lr(train, sampler.steps_per_epoch, global_batch)
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train=train, lr=lr, depth=cfg.model.depth)
    if train.optimizer == "sgd":
        opt = optimizers.SGD(
            weights, groups=groups, momentum=train.momentum, nesterov=train.nesterov
        )
    else:
        opt = optimizers.AdamW(weights, groups=groups, betas=train.betas, eps=train.eps)
    clips = (cfg.data.batch * cfg.data.repeated_aug, *get_input_shape(cfg.data))
    mix = MixClips(net.normalize, cfg.data.mixes)
    return build_setup(
        cfg,
        rt=rt,
        sampler=sampler,
        net=net,
        loss=build_training_loss(cfg, rt, compute_class_weights(cfg, sampler)),
        optimizer=opt,
        lr=lr,
        clips=clips,
        mix=mix,
    )


def build_training_loss(cfg: Config, rt: runtime.Runtime, class_weights: tuple[ClassWeights, ...]):
    """Classification, projection and informative loss with the weights of the config file."""
    train = cfg.train
    informative = None
    if train.informative_weight:
        gather = GatherEmbeddings(rt.rank, rt.size) if rt.size > 1 else None
        informative = VarianceCovarianceLoss(train.std_weight, train.covariance_weight, gather)
    return MultiLoss(
        tuple(dataset.num_classes for dataset in cfg.data.sets),
        cross_projections=cfg.crosses,
        smoothing=train.smoothing,
        smoothing_classes=train.smoothing_classes,
        weights=train.set_weights,
        projection_weight=train.projection_weight,
        add_to_scores=train.add_to_scores,
        informative=informative,
        informative_weight=train.informative_weight,
        gradient_scale=1 / rt.size if train.gradient == "original" else 1.0,
        class_weights=class_weights,
    )


def build_validation(cfg: Config, net, rt: runtime.Runtime, trained: list[Sample]):
    """A function that evaluates `net` during training; None if `run.eval_every` is 0.

    Logs repeated videos, also those that are among `trained`.
    """
    if not cfg.run.eval_every:
        log_repeats(rt, train=trained)
        return None
    videos = build_eval_videos(cfg, rt, "val")  # a bad line stops the run before training starts
    validated = [sample for rows in videos.values() for sample in rows.records]
    log_repeats(rt, train=trained, validation=validated)
    scorer = CellScorer(net)
    spaces = NETWORK.list_label_spaces(cfg)
    eval_sets = [EvalSet(rows, spaces[k]) for k, rows in videos.items()]
    return lambda: evaluate(scorer, eval_sets, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
