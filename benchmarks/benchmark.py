#!/usr/bin/env python3
"""Measures a network, or its data pipeline, on this machine.

    python benchmarks/benchmark.py step   --config_path Y [--section.key=value ...] [--torch]
    python benchmarks/benchmark.py memory --config_path Y [--section.key=value ...]
    python benchmarks/benchmark.py data   --config_path Y [--section.key=value ...]
    python benchmarks/benchmark.py eval   --config_path Y [--section.key=value ...] [--torch]
        [--checkpoint_path C] [--repeats 7] [--seconds 20] [--network tsm] [--out FILE]
        [--against FILE]

`step`: clips/s of training and evaluation, compile seconds, peak memory (of an NPU or a GPU: its
own), GFLOP/s, and their ratio to a matrix product's on this machine, timed in the same run.
`amp` is the amp level of the training: O0 is float32, on a CPU unless --run.amp is given. With
--torch the same network in PyTorch alternates with MindSpore: eager in PyTorch's default memory
layout and with the channels last, and compiled by `torch.compile` (for minutes at first; evaluation
with frozen weights). `_over_torch` is the ratio of clips/s, MindSpore over the fastest of the
three. `memory`: the peak memory of compiling, training and evaluation, GB; of the host (framework
and compiler included), and of a device that has its own. Each graph has a new process; --part train
or eval measures only one. It also gives the seconds of the last of two steps.
`data`: clips/s and clips per CPU-second of the pipeline alone, compared with only decoding the same
frames; it takes up to two times --seconds. `eval`: videos/s of an evaluation, data and network; of
several data sets, the first one of eval.sets; peak memory of this process. With --torch, TSM and
X3D with one or three crops are then evaluated in PyTorch, whole lists by decord and a DataLoader:
give --seconds enough for the list.

`step` and `eval` evaluate with `run.engine`, a file of --checkpoint_path or else random weights.
--out writes the result to a file, --overwrite over an older one; --against compares with the file
of an earlier run, and prints now / before. --network is not needed if the config file is in the
network's folder. The last line of stdout is one JSON object.
"""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

ENVIRONMENT = dict(os.environ)  # PyTorch gets the user's variables only
prepare_process(__name__)

import atexit
import contextlib
import json
import platform
import re
import shutil
import tempfile
import time
from functools import partial
from typing import Any, Callable, Literal, Optional

import mindspore as ms
import numpy as np
import psutil
from mindspore import Tensor, nn, ops

from benchmarks.torch import baseline
from scripts.analysis import build_networks
from scripts.finetuning.own_commands import run_command
from utils import cli, log, runtime
from utils.complexity import count_layers
from utils.cores import count_usable_cores, count_workers
from utils.data.rows import TrainRows, TrainVideoRows
from utils.data.sampler import sample_rng
from utils.evaluate.scorer import CellScorer, Scorer, video_scores
from utils.files import check_target, read_text, report_write_errors, write_text
from utils.inference import load
from utils.inference.engines import choose_engine
from utils.networks import Network
from utils.processes import pass_on_signals, read_peak_memory
from utils.settings import NetworkConfig
from utils.video.reader import VideoError
from utils.weights import checkpoint
from utils.weights.checkpoint_file import open_weights

PARTS = ("train", "eval")
STEPS = 2  # of a graph whose memory is measured
MATMUL = 2048  # the size of the matrices of a product
MOST_CLIPS = 64  # that are only decoded
READ_CLIPS = 16  # whose bytes are counted
NO_VIDEO = "data.root: no video can be read; scripts/data/check_videos.py says why"
# Circumstances in a result; two results that are compared should have equal ones.
FACTS = ("batch", "clip", "views", "reader", "workers", "processes", "torch")


def main(
    network: Network,
    cfg: NetworkConfig,
    kind: Literal["step", "memory", "data", "eval"],
    *,
    torch: bool = False,
    repeats: cli.PositiveInt = 7,
    seconds: cli.PositiveInt = 20,
    out: Optional[Path] = None,
    against: Optional[Path] = None,
    part: Optional[Literal[PARTS]] = None,
    checkpoint_path: str = "",
    overwrite: bool = False,
) -> None:
    if out:
        check_target(out, [against or "", checkpoint_path], "--out", overwrite)
    result = {"benchmark": kind, "config": str(cfg.run.out.name)}
    before = read_result(against, **result) if against else None
    if torch:
        baseline.check_torch(kind, cfg.run)
    if part and kind != "memory":
        raise ValueError(f"--part goes with memory, not with {kind}")
    if kind == "memory" and not part:
        # This command, once for each part: the peak memory of a process never falls.
        result["batch"] = cfg.data.batch
        with pass_on_signals() as add:
            for name in PARTS:
                costs = run_command(
                    ["benchmarks/benchmark.py", *sys.argv[1:], f"--part={name}"], add
                )
                result.update({f"{name}_{key}": value for key, value in costs.items()})
    else:
        rt = runtime.start(cfg.run)
        without_pretrained = build_networks.drop_pretrained(cfg)
        log.start_log(rt)
        if part:
            print(json.dumps(measure_graph(network, cfg=without_pretrained, rt=rt, part=part)))
            return
        if kind == "eval":
            scorer = open_scorer(network, cfg, checkpoint_path)
            result.update(measure_eval(network, cfg, rt, seconds, scorer, torch))
        elif kind == "step":
            result.update(
                measure_step(network, without_pretrained, rt, repeats, checkpoint_path, torch)
            )
        else:
            result.update(measure_data(network, cfg=cfg, rt=rt, seconds=seconds))
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    result["machine"] = {
        "processor": processor[1] if processor else platform.machine(),
        "cores": count_usable_cores(),
        "device": cfg.run.device,
        "python": platform.python_version(),
        "mindspore": ms.__version__,
    }
    if before:
        result.update(against=str(against), ratios=compare_results(before, result))
    print(json.dumps(result))
    if out:
        with report_write_errors(out, "--out"):
            write_text(out, json.dumps(result) + "\n")


def read_result(path: Path, benchmark: str, config: str) -> dict:
    """The earlier result in the last line of a file; ValueError if kind or recipe differ."""
    try:
        result = json.loads(read_text(path, f"--against: {path}").strip().splitlines()[-1])
        own = {"benchmark": result["benchmark"], "config": result["config"]}
    except (IndexError, KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(f"--against: the last line of {path} is no result") from None
    if own != {"benchmark": benchmark, "config": config}:
        raise ValueError(f"--against: {path} has {own}, this run has {benchmark} of {config}")
    return result


def compare_results(before: dict, now: dict) -> dict[str, float]:
    """Now over before, of each measured number that both have and that was not 0.

    Prints them as a table, and warns on stderr of circumstances in which the results differ.
    """
    old, new = ({**result, **result.get("machine", {})} for result in (before, now))
    for name in (*FACTS, *now["machine"]):
        if old.get(name) != new.get(name):
            text = f"{name} was {old.get(name, 'unknown')}, now it is {new.get(name, 'unknown')}"
            print(f"warning: {text}", file=sys.stderr)
    ratios = {
        name: round(value / before[name], 3)
        for name, value in now.items()
        if type(value) in (int, float) and name not in FACTS and before.get(name)
    }
    print("| name | before | now | now / before |\n| --- | --- | --- | --- |")
    for name, ratio in ratios.items():
        print(f"| {name} | {before[name]:g} | {now[name]:g} | {ratio:.3f} |")
    return ratios


def measure_step(
    network: Network,
    cfg: NetworkConfig,
    rt: runtime.Runtime,
    repeats: int,
    checkpoint_path: str,
    torch: bool = False,
) -> dict:
    """Training and evaluation steps on synthetic clips of the config file's shape and batch.

    `torch`: also the same steps in PyTorch.
    """
    step, inputs = build_networks.build_cell(network.name, cfg, rt, mode="train")
    shape = network.get_input_shape(cfg)
    clip = inputs[0]
    batch = clip.size // int(np.prod(shape))  # several clips of a video count as several
    references = [
        baseline.TorchReference(network.name, cfg, (batch, *shape), variant, ENVIRONMENT)
        for variant in (baseline.VARIANTS.values() if torch else ())
    ]
    # In float32: a GPU's batch norm, operator by operator, has no float16 weights.
    layers = count_layers(network.build_model(**cfg.model_arguments()), shape)
    macs = sum(layer.macs for layer in layers)
    log.log.info("compiling the training graph ...")
    compiled = measure_compile_seconds(step, *inputs)
    train_once = lambda: step(*inputs).asnumpy()  # noqa: E731
    train = baseline.measure_medians(train_once, repeats, references, "train")
    on_device = rt.device != "CPU"
    peak_gb = ms.runtime.max_memory_allocated() / 1e9 if on_device else read_peak_memory()
    scorer = open_scorer(network, cfg, checkpoint_path)
    evaluate = partial(scorer, clip.asnumpy().reshape(batch, *shape))
    log.log.info("compiling the evaluation graph ...")
    eval_compiled = baseline.measure_median_seconds(evaluate, 1, warm_up=0)
    evaluation = baseline.measure_medians(evaluate, repeats, references, "evaluate")
    a = Tensor(np.random.RandomState(0).standard_normal((MATMUL, MATMUL)).astype(np.float32))
    multiply = ops.MatMul()
    product = baseline.measure_median_seconds(lambda: multiply(a, a).asnumpy(), repeats)
    peak = 2 * MATMUL**3 / product / 1e9
    # A training step counts three forward passes: forward, and gradients of inputs and weights.
    rate = 2 * 3 * macs * batch / train[0] / 1e9
    result = {
        "batch": batch,
        "clip": list(shape),
        "amp": cfg.run.amp_level,
        "engine": scorer.engine,
        "engine_precision": cfg.run.engine_precision,
        "train_clips_per_second": round(batch / train[0], 3),
        "eval_clips_per_second": round(batch / evaluation[0], 3),
        "compile_seconds": round(compiled, 1),
        "eval_compile_seconds": round(eval_compiled, 1),
        "train_peak_gb": round(peak_gb, 2),
        "gmacs_per_clip": round(macs / 1e9, 3),
        "train_gflops": round(rate, 1),
        "eval_gflops": round(2 * macs * batch / evaluation[0] / 1e9, 1),
        "matmul_gflops": round(peak, 1),
        "train_share_of_matmul": round(rate / peak, 3),
    }
    if references:
        result["torch"] = references[0].version
        for k, (name, reference) in enumerate(zip(baseline.VARIANTS, references), 1):
            result[f"{name}_train_clips_per_second"] = round(batch / train[k], 3)
            result[f"{name}_eval_clips_per_second"] = round(batch / evaluation[k], 3)
            result[f"{name}_train_peak_gb"] = round(reference.train_peak_gb, 2)
            reference.close()
        result["train_over_torch"] = round(min(train[1:]) / train[0], 2)
        result["eval_over_torch"] = round(min(evaluation[1:]) / evaluation[0], 2)
    return result


def open_scorer(network: Network, cfg: NetworkConfig, checkpoint_path: str) -> Scorer:
    """The network that `run.engine` computes, of a checkpoint or with random weights."""
    if checkpoint_path:
        return load.open_scorer(network, cfg, open_weights(Path(checkpoint_path)))
    if choose_engine(cfg.run) == "mindspore":
        return CellScorer(build_networks.build_eval_network(network.name, cfg))
    path = Path(tempfile.mkdtemp()) / "random.ckpt"
    atexit.register(shutil.rmtree, path.parent)
    net = network.build_model(**cfg.model_arguments())
    checkpoint.save(path, checkpoint.weights_of(net))
    return load.open_scorer(network, cfg, open_weights(path))


def measure_graph(network: Network, cfg: NetworkConfig, rt: runtime.Runtime, part: str) -> dict:
    """Compiles the training or the evaluation graph of a batch of random clips, and runs it.

    The most memory of this process after each, `compile_peak_gb` and `peak_gb`; `device_peak_gb`
    of a device that has its own; `step_seconds` of the last run.
    """
    cell, inputs = build_networks.build_cell(network.name, cfg=cfg, rt=rt, mode=part)
    log.log.info("%s ...", part)
    result = {}
    measure_compile_seconds(cell, *inputs)
    result["compile_peak_gb"] = round(read_peak_memory(), 3)
    for _ in range(STEPS):
        start = time.monotonic()
        outputs = cell(*inputs)
        (outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()
    result["step_seconds"] = round(time.monotonic() - start, 4)
    result["peak_gb"] = round(read_peak_memory(), 3)
    if rt.device != "CPU":
        result["device_peak_gb"] = round(ms.runtime.max_memory_allocated() / 1e9, 3)
    return result


def measure_compile_seconds(cell: nn.Cell, *inputs: Tensor) -> float:
    """Compiles a graph, releases the compiler's memory, and returns the seconds."""
    cell.check_names_and_refresh_name()  # as the first call does; fused norms have a new weight
    began = time.monotonic()
    cell.compile(*inputs)
    runtime.release_memory()
    return time.monotonic() - began


def measure_eval(
    network: Network,
    cfg: NetworkConfig,
    rt: runtime.Runtime,
    seconds: int,
    scorer: Scorer,
    torch: bool = False,
) -> dict:
    """Whole evaluation, data and network, of the first videos; the first batch is not timed.

    Of several data sets, the first one is evaluated. `torch`: then also in PyTorch.
    """
    index, rows = next(iter(network.build_eval_rows(cfg, rt).items()))
    data = network.create_dataset(cfg, rows, cfg.data.workers)
    if data.get_dataset_size() < 2:
        raise ValueError("eval.batch: all test videos fit into one batch, which is not timed")
    head = network.list_label_spaces(cfg)[index]
    score = partial(video_scores, columns=head.columns)
    batches = iter(data.create_tuple_iterator(num_epochs=1, output_numpy=True))
    clips, _, _ = next(batches)
    score(scorer, clips)  # compiles
    began = time.monotonic()
    computed = 0.0
    done = 0
    for clips, _, valid in batches:
        since = time.monotonic()
        score(scorer, clips)
        computed += time.monotonic() - since
        done += int(valid.sum())
        if time.monotonic() - began > seconds:
            break
    elapsed = time.monotonic() - began
    rate = done / elapsed
    peak_gb = read_peak_memory()
    ratio = {}
    if torch:
        ratio = baseline.measure_files(network, cfg, rows, head, rate, ENVIRONMENT)
    return {
        "batch": cfg.eval.batch,
        "engine": scorer.engine,
        "engine_precision": cfg.run.engine_precision,
        **ratio,
        "views": int(clips.shape[1]),
        "videos": done,
        "videos_per_second": round(rate, 2),
        "peak_gb": round(peak_gb, 2),
        "waiting": round(1 - computed / elapsed, 3),
    }


def measure_data(network: Network, cfg: NetworkConfig, rt: runtime.Runtime, seconds: int) -> dict:
    """Decodes single clips, then runs the training pipeline for some seconds."""
    records = network.read_records(cfg, "train")
    order = network.build_train_sampler(cfg, records, rt)
    epochs = 10**6 // order.samples + 1
    clips = network.train_rows(records, cfg=cfg, sampler=order, epochs=epochs, skip=0)
    floor = measure_decoding(partial(decode_row, clips), len(clips), seconds)
    used = cfg.data.source  # or the reader that `data.reader: auto` chooses
    for record in clips.records if network.list_annotation_files(cfg) else ():
        with contextlib.suppress(VideoError), clips.open_video(record) as video:
            used = video.reader
            break
    batches = network.create_dataset(cfg, clips, cfg.data.workers)
    reader = batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    next(reader)  # workers start
    began = time.monotonic()
    before = read_cpu_seconds()
    done = 0
    while time.monotonic() - began < seconds:
        next(reader)
        done += cfg.data.batch
    wall = time.monotonic() - began
    after = read_cpu_seconds()
    cpu = sum(now - before.get(process, 0.0) for process, now in after.items())
    read = psutil.Process().io_counters().read_chars  # from a disk or from the system's cache of it
    for index in range(READ_CLIPS):
        with contextlib.suppress(VideoError):
            decode_row(clips, index)
    read = psutil.Process().io_counters().read_chars - read
    return {
        "clips": done,
        "reader": used,
        "workers": count_workers(cfg.data.workers),
        "processes": cfg.data.processes,
        "clips_per_second": round(done / wall, 2),
        "clips_per_cpu_second": round(done / cpu, 2),
        "bare_decoding_per_cpu_second": round(1 / floor, 2),
        "cost_over_bare_decoding": round(cpu / done / floor, 2),
        "floor_milliseconds": round(1000 * floor, 3),
        "bytes_read": round(read / READ_CLIPS),
    }


def decode_row(clips: TrainRows, index: int) -> np.ndarray:
    """Only decodes the frames of a row."""
    sample, epoch = clips.sampler.sample_at(clips.start + index)
    rng = sample_rng(clips.sampler.seed, epoch, sample)
    record = clips.records[sample]
    if not isinstance(clips, TrainVideoRows):
        return record.read()
    with clips.open_video(record) as video:
        return video.frames(clips.choose_frames(video, record, rng))


def measure_decoding(decode: Callable[[int], Any], count: int, seconds: float) -> float:
    """Mean seconds of processor time in which `decode(k)` decodes one of `count` clips.

    Videos that cannot be read are left out. The time of a decoder's threads is included.
    """
    with contextlib.suppress(VideoError):
        decode(0)  # not timed: it imports the reader
    spent = []
    start_time = time.monotonic()
    for index in range(min(MOST_CLIPS, count)):
        if spent and time.monotonic() - start_time > seconds:
            break
        before = time.process_time()
        with contextlib.suppress(VideoError):
            decode(index)
            spent.append(time.process_time() - before)
    if not spent:
        raise ValueError(NO_VIDEO)
    return float(np.mean(spent))


def read_cpu_seconds() -> dict[int, float]:
    """Processor time by process: this one, its threads included, and its workers."""
    main = psutil.Process()
    times = {}
    for process in [main, *main.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a worker that has ended
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
    return times


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
