"""Trains TSM.

    python tsm/train.py --config_path tsm/configs/tsm_r50_sthv2_8f.yaml [--train.epochs=1 ...]

The last line of stdout is one JSON object: checkpoint, complete, epochs, steps, loss, top1,
validation_loss, validation_top1, best_epoch (null without validations), clips_per_second,
compile_seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from tsm.config import Config
from tsm.dataset import EvalVideos, TrainVideos, get_clip_shape
from tsm.loss import CrossEntropy
from tsm.lr_generator import build_parameter_groups, get_lr
from tsm.model import TSM, freeze_batch_norms
from tsm.network import NETWORK
from utils import cli, runtime
from utils.data.annotation_file import Record
from utils.data.equal_files import log_repeats
from utils.data.records import read_records
from utils.data.sampler import TrainSampler
from utils.data.videos import build_train_sampler
from utils.evaluate.metrics import EvalSet, evaluate
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
    records = read_records(cfg, "train")
    sampler = trainer.resume(build_train_sampler(cfg, records, rt))
    setup = build(cfg, rt, sampler)  # model, optimizer, AllReduce fusion, train step
    train_set = TrainVideos(
        records, cfg=cfg, sampler=sampler, epochs=cfg.train.epochs, skip=trainer.start_step
    )
    validation = build_validation(cfg, net=setup.step.net, rt=rt, trained=records)
    trainer.fit(setup, train_set, evaluate=validation)


@with_training_kernels
def build(cfg: Config, rt: runtime.Runtime, sampler: TrainSampler) -> TrainSetup:
    net = TSM(**cfg.model_arguments())
    train = cfg.train
    if train.pretrained:
        checkpoint.load(
            net, path=train.pretrained, new_head=train.new_head, head=NETWORK.classifier
        )
    freeze_batch_norms(net, train.batch_norm)
    freeze(net, train.freeze, NETWORK.classifier)
    updates = sampler.updates_per_epoch(train.accumulation_steps)
    lr = get_lr(train, updates, sampler.effective_batch_size(train.accumulation_steps))
    weights = net.trainable_params()
    groups = build_parameter_groups(weights, train=train, lr=lr, flow=cfg.data.modality == "flow")
    opt = optimizers.SGD(weights, groups=groups, momentum=train.momentum, nesterov=train.nesterov)
    clips = (cfg.data.batch, *get_clip_shape(cfg.data, cfg.data.crop))
    (class_weights,) = compute_class_weights(cfg, sampler)
    before_softmax = cfg.model.before_softmax
    loss = choose_loss(cfg, class_weights, lambda w: CrossEntropy(before_softmax, w))
    return build_setup(
        cfg, rt=rt, sampler=sampler, net=net, loss=loss, optimizer=opt, lr=lr, clips=clips
    )


def build_validation(cfg: Config, net, rt: runtime.Runtime, trained: list[Record]):
    """A function that evaluates `net` during training; None if `run.eval_every` is 0.

    Logs repeated videos, also those that are among `trained`.
    """
    if not cfg.run.eval_every:
        log_repeats(rt, train=trained)
        return None
    records = read_records(cfg, "val")  # a bad line stops the run before training starts
    log_repeats(rt, train=trained, validation=records)
    (space,) = NETWORK.list_label_spaces(cfg)
    scorer = CellScorer(net)

    def validate() -> dict:
        rows = EvalVideos(records, cfg=cfg, rt=rt, split="val")
        return evaluate(scorer, [EvalSet(rows, space)], rt)

    return validate


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
