"""Measures the training pipeline of a network alone, and only decoding the same frames."""

import contextlib
import time
from functools import partial
from typing import Any, Callable

import numpy as np
import psutil

from utils.cores import count_workers
from utils.data.rows import TrainRows, TrainVideoRows
from utils.data.sampler import sample_rng
from utils.networks import Network
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.reader import VideoError

MOST_CLIPS = 64  # that are only decoded
READ_CLIPS = 16  # whose bytes are counted
NO_VIDEO = "data.root: no video can be read; scripts/data/check_videos.py says why"


def measure_data(network: Network, cfg: NetworkConfig, rt: Runtime, seconds: int) -> dict:
    """Decodes single clips, then runs the training pipeline for some seconds."""
    records = network.read_records(cfg, "train")
    order = network.build_train_sampler(cfg, records, rt)
    epochs = 10**6 // order.samples + 1
    clips = network.train_rows(records, cfg=cfg, sampler=order, epochs=epochs, skip=0)
    floor = measure_decoding(partial(decode_row, clips), len(clips), seconds)
    is_video = bool(network.list_annotation_files(cfg))
    batches = network.create_dataset(cfg, clips, cfg.data.workers)
    done, wall, cpu = measure_throughput(batches, cfg.data.batch, seconds)
    return {
        "clips": done,
        "reader": find_reader(clips) if is_video else cfg.data.source,
        "workers": count_workers(cfg.data.workers),
        "processes": cfg.data.processes,
        "clips_per_second": round(done / wall, 2),
        "clips_per_cpu_second": round(done / cpu, 2),
        "bare_decoding_per_cpu_second": round(1 / floor, 2),
        "cost_over_bare_decoding": round(cpu / done / floor, 2),
        "floor_milliseconds": round(1000 * floor, 3),
        "bytes_read": round(measure_bytes(clips)),
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


def find_reader(clips: TrainRows) -> str:
    """The reader of the first readable video: the one that `data.reader: auto` chooses."""
    for record in clips.records:
        with contextlib.suppress(VideoError), clips.open_video(record) as video:
            return video.reader
    raise ValueError(NO_VIDEO)


def measure_throughput(batches: Any, batch: int, seconds: float) -> tuple[int, float, float]:
    """Takes batches as fast as they come: clips, seconds, seconds of processor time."""
    reader = batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    next(reader)  # workers start
    start_time = time.monotonic()
    before = read_cpu_seconds()
    clips = 0
    while time.monotonic() - start_time < seconds:
        next(reader)
        clips += batch
    wall = time.monotonic() - start_time
    after = read_cpu_seconds()
    return clips, wall, sum(now - before.get(process, 0.0) for process, now in after.items())


def measure_bytes(clips: TrainRows) -> float:
    """Mean bytes read for a clip, from a disk or from the system's cache of it."""
    before = psutil.Process().io_counters().read_chars
    for index in range(READ_CLIPS):
        with contextlib.suppress(VideoError):
            decode_row(clips, index)
    return (psutil.Process().io_counters().read_chars - before) / READ_CLIPS


def read_cpu_seconds() -> dict[int, float]:
    """Processor time by process: this one, its threads included, and its workers."""
    main = psutil.Process()
    times = {}
    for process in [main, *main.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a worker that has ended
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
    return times
