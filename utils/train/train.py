"""A training, from the command line to the last line of stdout: read it from top to bottom.

process -> run directory -> data -> model and step -> validation -> steps
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Callable, NoReturn

import numpy as np
from mindspore import Tensor
from mindspore.train import Model

from utils import cli, runtime
from utils.data.rows import Rows, RowsWithDropout
from utils.evaluate.label_space import list_class_names
from utils.files import get_cache_folder
from utils.log import log, print_result, start_log
from utils.networks import Job, Network
from utils.nn import amp, kernels
from utils.nn.layers import synchronize_norms
from utils.settings import NetworkConfig, Run
from utils.signals import handle_signals
from utils.train.gradients import segments_of, split_all_reduce
from utils.train.plan import Plan, TrainParts
from utils.train.run_dir import RunDirectory
from utils.train.schedule import peak_lr
from utils.train.train_step import TrainStep
from utils.train.training_loop import TrainingLoop
from utils.weights.checkpoint_file import check_kind
from utils.weights.description import describe

Build = Callable[[Any, Plan], TrainParts]  # of a network's train.py


def train(network: Network, build: Build, usage: str) -> NoReturn:
    """Trains as the command line says, and exits; `usage` is the docstring of the script."""

    def main(cfg: NetworkConfig) -> None:
        run_training(network, cfg, build)

    cli.run(main, network.config, usage)


def run_training(network: Network, cfg: NetworkConfig, build: Build) -> None:
    """Trains a network from its first step, or from the last one of a stopped run.

    Raises ValueError for a setting or a file that does not fit, and if the run fails;
    RunInterruptedError after ctrl-C.
    """
    # ---- Process: graph mode, device, seed, rank
    if cfg.train.pretrained:
        check_kind(cfg.train.pretrained)
    rt = runtime.start(cfg.run)

    # ---- Run directory: locked by this process; and the log
    directory = RunDirectory(cfg, rt)
    start_log(rt, directory.path)

    # ---- Data: samples, and their order from the first step on that is not done
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, rt)
    sampler = directory.find_start(sampler, cfg.train.accumulation_steps, records)
    records.write_classes(directory.path, rt)
    spaces = network.list_label_spaces(cfg)
    classes = list_class_names(spaces, directory.path)

    # ---- Model, loss, optimizer, train step
    plan = Plan(network, cfg, rt, sampler, classes)
    step, parts = build_training(plan, build)
    rows = network.train_rows(
        records, cfg=cfg, sampler=sampler, epochs=cfg.train.epochs, skip=directory.start_step
    )
    directory.description = describe(
        network.name, cfg, classes=classes, seconds=rows.measure_clips()
    )

    # ---- Validation, and features that are computed once
    read_rows: Rows = rows
    validation = None
    eval_sets: list = []
    if cfg.run.eval_every:  # a bad line of a list stops the run before the training starts
        from utils.evaluate.metrics import EvalSet, evaluate
        from utils.evaluate.scorer import CellScorer
        from utils.train.validation import Validation

        rows_of = network.build_eval_rows(cfg, rt, spaces, split="val")
        eval_sets = [
            EvalSet(part, spaces[k], network.create_dataset) for k, part in rows_of.items()
        ]
    if cfg.train.feature_draws:
        from utils.train.frozen_features import use_features  # here: most trainings need it not

        read_rows, eval_sets = use_features(plan, step.net, rows, eval_sets)
    directory.restore(step, rows.unreadable)
    if eval_sets:
        validate = partial(evaluate, CellScorer(step.net), eval_sets, rt)
        validation = Validation(
            validate, cfg.run, rt, step, folder=directory.path, description=directory.description
        )

    # ---- Steps
    effective = sampler.effective_batch_size(cfg.train.accumulation_steps)
    sizes = (sampler.batch, sampler.size, cfg.train.accumulation_steps, effective)
    log.info("%d samples; %d steps an epoch", sampler.samples, sampler.steps_per_epoch)
    log.info("%d a device x %d devices x %d accumulated = %d an update", *sizes)
    peak = peak_lr(cfg.train.lr, cfg.train.base_batch, effective)
    log.info("lr %g, train.base_batch %d -> %g here", cfg.train.lr, cfg.train.base_batch, peak)
    if directory.start_step:
        log.info("resuming at step %d", directory.start_step)
    loop = TrainingLoop(plan, parts, step, rows=rows, directory=directory, validation=validation)
    if step.dropout.size:
        read_rows = RowsWithDropout(read_rows, step.dropout)
    # Forks worker processes, before the threads of a validation run.
    batches = network.create_dataset(cfg, read_rows, cfg.data.workers) if len(read_rows) else None
    with handle_signals(loop.request_stop):
        loop.resume_validation()
    if loop.unvalidated_epoch or loop.ends_early:
        loop.finish()
    elif batches is None:
        log.info("nothing left to train: %d epochs are done", cfg.train.epochs)
    else:
        run_steps(plan, step, batches, loop, example=read_rows.make_zero_batch())
    print_result(loop.result(), rt)


def build_training(plan: Plan, build: Build) -> tuple[TrainStep, TrainParts]:
    """The train step of a network in its amp level, and what `build` of its train.py returned.

    Raises ValueError for weights that do not fit, a bad `run.all_reduce`, or a
    `train.sync_batch_norm` without a batch norm that is trained.
    """
    cfg, rt, run = plan.cfg, plan.rt, plan.cfg.run
    if run.amp_dtype == "bfloat16":  # needs no loss scale
        run = replace(run, loss_scale=1.0, dynamic_loss_scale=False)
    with kernels.use(choose_kernels(run, rt.device)):
        parts = build(cfg, plan)
        if cfg.train.sync_batch_norm:
            synchronize_norms(parts.net, rt.size)
        ends = split_all_reduce(parts.net, run, freezes=bool(cfg.train.freeze))
        for first, last in segments_of(ends):
            size = sum(p.size * p.itemsize for p in parts.optimizer.parameters[first : last + 1])
            log.info("a segment of gradients: %d tensors %.2f MB", last - first + 1, size / 1e6)
        step = TrainStep(
            amp.cast(parts.net, run.amp_level, run.amp_dtype),
            loss=parts.loss,
            optimizer=parts.optimizer,
            run=run,
            train=cfg.train,
            rt=rt,
            steps_per_epoch=plan.sampler.steps_per_epoch,
            mix=parts.mix,
            clips=cfg.data.batch * cfg.data.clips_per_sample,
            ends=ends,
        )
    return step, parts


def choose_kernels(run: Run, device: str) -> kernels.Plain:
    """The operators for a device; on a CPU in float32 the zoo's, compiled once.

    Logs one line if that is not possible; then they are MindSpore's. In eager mode, arrays may be
    views of others, which compiled kernels cannot read.
    """
    if device == "CPU" and run.amp_level == "O0" and run.mode == "graph":
        from utils.nn.kernels.cpu import Cpu, library

        try:
            return Cpu(library.load(get_cache_folder() / "cpu_kernels", log.info))
        except (OSError, ValueError) as error:
            log.info("the training uses MindSpore's CPU kernels, not the zoo's: %s", error)
    return kernels.select(device)


def run_steps(
    job: Job, step: TrainStep, data: Any, loop: TrainingLoop, example: Sequence[np.ndarray]
) -> None:
    """Compiles the step and runs it over `data`, a MindData data set of batches like `example`.

    `data.output_shapes()` is not used: it would start the data set's workers for one batch.
    """
    step.set_train()
    if job.cfg.run.mode == "eager":
        log.info("run.mode eager: no graph is compiled, operators are MindSpore's")
    else:
        log.info("compiling the graph ...")
        start = time.monotonic()
        step.compile(*map(Tensor, example))
        runtime.release_memory()
        loop.compile_seconds = time.monotonic() - start
        log.info("compiled in %.1f s", loop.compile_seconds)
        if job.rt.device == "Ascend":
            log.info("the first step also compiles the device's kernels, which can take minutes")
    with handle_signals(loop.request_stop):
        # One pass over `data` is all remaining epochs.
        Model(step).train(1, data, [loop], dataset_sink_mode=False)
    loop.finish()
