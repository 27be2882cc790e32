"""Measures a network, or its data pipeline, on this machine.

    python scripts/benchmark.py step --config_path Y [--section.key=value ...]
    python scripts/benchmark.py data --config_path Y [--section.key=value ...]
    python scripts/benchmark.py eval --config_path Y [--section.key=value ...]
        [--repeats 7] [--seconds 20] [--network tsm]

`step`: clips/s of training and evaluation, compile seconds, peak memory, GFLOP/s, and that as a
share of this machine's own matrix products, timed in the same run. `data`: clips/s and clips per
CPU-second of the pipeline alone, against bare decoding of the same frames. `eval`: videos/s of an
evaluation, data and network. --network may be left out where the yaml lies in the network's folder.
The last line of stdout is one JSON object.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import psutil
from mindspore import Tensor, nn, ops

from utils import amp, command, run_log, runtime
from utils.counting import multiply_adds
from utils.folding import fold
from utils.metrics import video_scores
from utils.testing import evaluation as scores_of
from utils.trial import build_step, made_up_batch, median_seconds, one_clip, without_checkpoint


def main(room: str, cfg, kind: str, repeats: str = "7", seconds: str = "20") -> None:
    repeats = command.whole_number("repeats", repeats)
    seconds = command.whole_number("seconds", seconds)
    rt = runtime.start(cfg.run)
    run_log.start_log(rt)
    if kind == "eval":
        result = measure_eval(room, cfg, rt, seconds)
    elif kind == "step":
        result = measure_step(room, without_checkpoint(cfg), rt, repeats)
    else:
        result = measure_data(room, cfg, rt, seconds)
    print(json.dumps({"benchmark": kind, "config": str(cfg.run.out.name), **result}))


def measure_step(room: str, cfg, rt: runtime.Runtime, repeats: int) -> dict:
    """Training and evaluation steps on made-up clips of the yaml's shape and batch."""
    step, one = build_step(room, cfg, rt), one_clip(room, cfg.data)
    clip, label = made_up_batch(room, cfg)
    batch = clip.size // int(np.prod(one))  # several clips of a video count as several
    macs = multiply_adds(step.net, one)
    run_log.log.info("compiling the training graph ...")
    began = time.monotonic()
    step.compile(clip, label)
    runtime.give_back_memory()
    compiled = time.monotonic() - began
    training = median_seconds(lambda: step(clip, label)[0].asnumpy(), repeats)
    peak_memory = peak_gb()
    net, clip = evaluated(room, cfg), clip.reshape(batch, *one)
    run_log.log.info("compiling the evaluation graph ...")
    evaluation = median_seconds(lambda: scores_of(net, clip), repeats)
    peak = matmul_rate(repeats)
    # A training step counts three forward passes: forward, and gradients of inputs and weights.
    rate = 2 * 3 * macs * batch / training / 1e9
    return {
        "batch": batch,
        "clip": list(one),
        "train_clips_per_second": round(batch / training, 2),
        "eval_clips_per_second": round(batch / evaluation, 2),
        "compile_seconds": round(compiled, 1),
        "train_peak_gb": round(peak_memory, 2),
        "gmacs_per_clip": round(macs / 1e9, 3),
        "train_gflops": round(rate, 1),
        "eval_gflops": round(2 * macs * batch / evaluation / 1e9, 1),
        "matmul_gflops": round(peak, 1),
        "train_share_of_matmul": round(rate / peak, 3),
    }


def evaluated(room: str, cfg) -> nn.Cell:
    """The network as eval.py runs it."""
    model = importlib.import_module(f"{room}.model")
    return amp.cast(fold(model.build_network(**cfg.network())), cfg.run.amp).set_train(False)


class Product(nn.Cell):
    def construct(self, a, b):
        return ops.matmul(a, b)


def matmul_rate(repeats: int, size: int = 2048) -> float:
    """GFLOP/s of a float32 matrix product in MindSpore on this machine."""
    a = Tensor(np.random.RandomState(0).standard_normal((size, size)).astype(np.float32))
    product = Product()
    return 2 * size**3 / median_seconds(lambda: product(a, a).asnumpy(), repeats) / 1e9


def measure_data(room: str, cfg, rt: runtime.Runtime, seconds: int) -> dict:
    """The training pipeline for some seconds, then bare decoding of the same clips."""
    dataset = importlib.import_module(f"{room}.dataset")
    records = dataset.read_records(cfg, "train")
    order = dataset.train_order(cfg, records, rt)
    clips = dataset.TrainSource(records, cfg, order, 10**6 // order.samples + 1, 0)
    batches, batch = clips.dataset(), cfg.data.batch
    reader = batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    next(reader)  # workers start
    began, cpu, done = time.monotonic(), cpu_seconds(), 0
    while time.monotonic() - began < seconds:
        next(reader)
        done += batch
    wall, cpu = time.monotonic() - began, cpu_seconds() - cpu
    del reader, batches
    clips.decode(0)  # opens what it needs
    floor, count = time.process_time(), min(done, 64)
    for index in range(count):
        clips.decode(index)
    floor = (time.process_time() - floor) / count
    return {
        "clips": done,
        "workers": cfg.data.workers,
        "processes": getattr(cfg.data, "processes", False),
        "clips_per_second": round(done / wall, 2),
        "clips_per_cpu_second": round(done / cpu, 2),
        "bare_decoding_per_cpu_second": round(1 / floor, 2),
        "cost_over_bare_decoding": round(cpu / done / floor, 2),
    }


def measure_eval(room: str, cfg, rt: runtime.Runtime, seconds: int) -> dict:
    """Whole evaluation, data and network, of the first videos; the first batch is not timed."""
    net = evaluated(room, cfg)
    data = importlib.import_module(f"{room}.dataset").eval_data(cfg, rt)
    if data.get_dataset_size() < 2:
        raise ValueError("eval.batch: all test videos fit into one batch, which is not timed")
    batches = iter(data.create_tuple_iterator(num_epochs=1, output_numpy=True))
    clips, _, _ = next(batches)
    video_scores(net, clips)  # compiles
    began, computed, done = time.monotonic(), 0.0, 0
    for clips, _, valid in batches:
        since = time.monotonic()
        video_scores(net, clips)
        computed += time.monotonic() - since
        done += int(valid.sum())
        if time.monotonic() - began > seconds:
            break
    passed = time.monotonic() - began
    return {
        "batch": cfg.eval.batch,
        "views": int(clips.shape[1]),
        "videos": done,
        "videos_per_second": round(done / passed, 2),
        "waiting": round(1 - computed / passed, 3),
    }


def peak_gb() -> float:
    """The most memory this process has held at once, framework and compiler included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux counts in KiB


def cpu_seconds() -> float:
    """Processor time of this process, its threads and its workers."""
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)]]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    command.run_room(
        main, __doc__, optional=["repeats", "seconds"], words={"kind": ("step", "data", "eval")}
    )
