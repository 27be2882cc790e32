"""train.py of every network, but for its `build`: what it trains, and how.

settings -> run directory, log -> records -> sampler -> build -> train step -> rows -> epochs
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, NoReturn

from utils import cli, runtime
from utils.data.sampler import TrainSampler
from utils.evaluate.label_space import LabelSpace, find_moved_name, list_class_names
from utils.evaluate.metrics import EvalSet, evaluate
from utils.networks import Job, Network
from utils.nn import kernels
from utils.scoring.scorer import CellScorer
from utils.settings import NetworkConfig
from utils.train.choose_kernels import choose_kernels
from utils.train.plan import Plan, TrainParts
from utils.train.trainer import Trainer, TrainSetup, build_setup
from utils.weights.checkpoint_file import check_kind
from utils.weights.description import describe, read_description

Build = Callable[[Any, Plan], TrainParts]


def train(network: Network, build: Build, usage: str) -> NoReturn:
    """Trains as the command line says, and exits; `usage` is the docstring of the script."""

    def main(cfg: NetworkConfig) -> None:
        if cfg.train.pretrained:
            check_kind(cfg.train.pretrained)
        run_training(network, cfg, build)

    cli.run(main, network.config, usage)


def run_training(network: Network, cfg: NetworkConfig, build: Build) -> None:
    """Trains a network from its first step, or from the last one of a stopped run."""
    rt = runtime.start(cfg.run)  # graph mode, device, seed, rank
    job = Job(network, cfg, rt)
    trainer = Trainer(job)  # run directory, log, resume point
    records = network.read_records(cfg, "train")
    sampler = trainer.resume(network.build_train_sampler(cfg, records, rt), records)
    folder = trainer.directory.path
    records.write_classes(folder, rt)
    spaces = network.list_label_spaces(cfg)
    classes = list_class_names(spaces, folder)
    setup = build_training(job, sampler, build)  # model, optimizer, AllReduce segments, step
    rows = network.train_rows(
        records, cfg=cfg, sampler=sampler, epochs=cfg.train.epochs, skip=trainer.start_step
    )
    if cfg.train.pretrained and not cfg.train.new_head:
        check_kept_classes(cfg.train.pretrained, classes)
    seconds = rows.measure_clips()
    description = describe(network.name, cfg, classes=classes, seconds=seconds)
    trainer.directory.description = description
    eval_sets = build_eval_sets(job, spaces)
    if cfg.train.feature_draws:
        from utils.commands.frozen_features import use_features  # here: most trainings need it not

        eval_sets = use_features(job, setup.step.net, rows, eval_sets)
    validate = partial(evaluate, CellScorer(setup.step.net), eval_sets, rt) if eval_sets else None
    use_batches = setup.build_before_saving(setup.step.net)

    def before_saving(steps: int) -> None:
        use_batches(read_next_epoch(job, sampler, records, steps))

    trainer.fit(
        setup, rows, evaluate=validate, before_saving=before_saving if use_batches else None
    )


def check_kept_classes(path: Path, classes: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if the classifier of a checkpoint has some of the classes elsewhere."""
    own = read_description(path)
    for data_set, names in classes.items():
        moved = find_moved_name(names, own.classes.get(data_set, ()) if own else ())
        if moved:
            raise ValueError(
                f"train.pretrained: {path} has the class {moved!r} with another label: set "
                "train.new_head=true, or give the classes the checkpoint's order"
            )


def build_training(job: Job, sampler: TrainSampler, build: Build) -> TrainSetup:
    """The train step of a network; `build` is that of its train.py.

    The layers that it builds take the kernels that `choose_kernels` gives.
    """
    network, cfg, rt = job.network, job.cfg, job.rt
    plan = Plan(cfg, rt=rt, sampler=sampler, naming=network.parameter_names())
    shape = (cfg.data.batch * cfg.data.clips_per_sample, *network.get_input_shape(cfg))
    with kernels.use(choose_kernels(cfg.run, rt.device)):
        return build_setup(plan, build(cfg, plan), shape)


def read_next_epoch(job: Job, sampler: TrainSampler, records: Any, steps: int) -> Iterator[tuple]:
    """The batches of the epoch that starts after so many steps of the run, or that they are in."""
    epoch = steps // sampler.steps_per_epoch
    skip = epoch * sampler.steps_per_epoch
    rows = job.network.train_rows(
        records, cfg=job.cfg, sampler=sampler, epochs=epoch + 1, skip=skip
    )
    batches = job.network.create_dataset(job.cfg, rows, job.cfg.data.workers)
    return batches.create_tuple_iterator(num_epochs=1, output_numpy=True)


def build_eval_sets(job: Job, spaces: Sequence[LabelSpace]) -> list[EvalSet]:
    """What a validation during training evaluates; empty if `run.eval_every` is 0.

    `spaces` have the class names of the training, by which those of the validation are matched.
    A bad line of a list stops the run before the training starts.
    """
    network, cfg, rt = job.network, job.cfg, job.rt
    if not cfg.run.eval_every:
        return []
    rows_of = network.build_eval_rows(cfg, rt, spaces, split="val")
    return [EvalSet(rows, spaces[k], network.create_dataset) for k, rows in rows_of.items()]
