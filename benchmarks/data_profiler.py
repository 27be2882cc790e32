"""Profiles where the time of a training clip goes: milliseconds of each part.

Single clips are made in this process, one after the other. Meanwhile Python reports each call
(`sys.setprofile`), and the functions of `FUNCTIONS`, and those of a network, are timed by part. The
code that is measured has no timers. A part is processor time without the functions of other parts
that are called inside it. The time of a decoder's threads is included; decord's threads already
decode while the next part runs.

    open      opening and closing files, reading the index of packets and frames
    seek      choosing and reading packets; frames that are decoded only to be skipped
    decode    compressed data to pictures; if PyAV seeks to a frame, also the frames it depends on.
              decord, OpenCV and JPEG files give RGB in the same call
    convert   YUV to RGB, and to numpy
    geometry  crop, resize, flip; if one function does both, also the order of axes
    augment   RandAugment, erasing, how batches are mixed
    copy      frames to one array, channels first, and MindData's work: queues, batches
    other     the rest: the order of samples, random numbers, labels, release of memory

The parts add up to a clip, which is also timed without the profile. If MindData's own operators
make the rows, only two parts are measured: reading (`open`) and the rest (`operators`: decode,
crop, resize, flip, batch).

`wait` is the time for each clip in which a worker of the pipeline, running as fast as it can, held
no processor: it waited for a processor, Python's lock, the disk, or the other end of a queue. If a
clip costs more among the workers than here, the workers slow each other down: caches, memory,
hyperthreads.

cProfile cannot give this table. It adds up calls by caller and callee, not by the part around them:
a numpy function that two parts call through one helper has no part. And it does not see arguments:
the same function decodes a frame that is kept (`decode`) or skipped (`seek`).
"""

import contextlib
import copy
import importlib
import inspect
import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Callable
from unittest import mock

import numpy as np
import psutil

from utils.data.loader import count_workers
from utils.networks import Network
from utils.runtime import Runtime
from utils.video.reader import FrameSource, VideoError

PARTS = ("open", "seek", "decode", "convert", "geometry", "augment", "copy", "other")

# The part of each function, "module:function" or "module:Class.function". The functions it calls
# count with it, unless they are in the table too. To measure a new reader or network, add a line
# for each function that takes time.
FUNCTIONS = {
    "utils.video.decoders:open_video": "open",
    "utils.video.reader:FrameSource.close": "open",
    "utils.video.reader:FrameSource.frames": "copy",
    "utils.video.pyav_reader:ExactVideo._open": "open",
    "utils.video.pyav_reader:ExactVideo.close": "open",
    "utils.video.pyav_reader:ExactVideo._parts": "seek",
    "utils.video.pyav_reader:ExactVideo._decode_parts": "decode",
    "utils.video.pyav_reader:ExactVideo._read": "decode",
    "utils.video.decoders:_DecordVideo._open": "open",
    "utils.video.decoders:_DecordVideo._read": "decode",
    "utils.video.decoders:_OpenCVVideo._open": "open",
    "utils.video.decoders:_OpenCVVideo._read": "decode",
    "utils.video.decoders:FrameFolder.__init__": "open",
    "utils.video.decoders:FrameFolder._flow": "copy",
    "utils.video.decoders:FrameFolder._image": "open",
    "utils.video.decoders:read_jpeg": "decode",
    "PIL.Image:open": "open",
    "PIL.ImageFile:ImageFile.load": "decode",
    "utils.data.packed.reader:PackedVideo.__init__": "open",
    "utils.data.packed.reader:PackedVideo._needed": "seek",
    "utils.data.packed.reader:PackedVideo._packets": "seek",
    "utils.video.pyav_reader:decode_h264": "decode",
    "utils.video.pyav_reader:to_array": "convert",
    "utils.video.decoders:resize": "geometry",
    "utils.video.transforms:cut_clips": "geometry",
}
# The part of functions of the networks, besides `FUNCTIONS`.
NETWORK_FUNCTIONS = {
    "tsm": {"tsm.transforms:make_train_clip": "geometry", "tsm.transforms:stack_frames": "copy"},
    "x3d": {"x3d.transforms:make_train_clip": "geometry"},
    "mvit_multi": {
        "mvit_multi.transforms:make_train_clip": "augment",
        "mvit_multi.dataset:TrainSource.draw_batch_mix": "augment",
        "mvit_multi.dataset:TrainSource.make_row": "copy",
    },
}
MOST_CLIPS, CLIPS_PER_TURN = 64, 8  # that are profiled; that are made before the next way


class PartTimer:
    """Seconds of each part. The time of a part inside another one counts only for the inner."""

    def __init__(self, clock: Callable[[], float] = time.process_time):
        self.clock, self.since = clock, 0.0
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.parts: list[str] = []  # entered and not left, the innermost last

    @contextlib.contextmanager
    def inside(self, part: str) -> Iterator[None]:
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def enter(self, part: str) -> None:
        self.charge()
        self.parts.append(part)

    def leave(self) -> None:
        self.charge()
        self.parts.pop()

    def charge(self) -> None:
        """Adds the time since the last change to the innermost part."""
        now = self.clock()
        if self.parts:
            self.seconds[self.parts[-1]] += now - self.since
        self.since = now


@contextlib.contextmanager
def time_functions(functions: Mapping[str, str], timer: PartTimer) -> Iterator[None]:
    """Times the functions of a table that this thread calls inside a part of `timer`.

    A generator is timed while it computes an item. An exception leaves the part, too.
    """
    parts = {find_code(name): part for name, part in functions.items()}
    entered: list[FrameType] = []

    def report(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and timer.parts and frame.f_code in parts:
            entered.append(frame)
            # `VideoFile` calls its `_read` with `keep=False` for a frame that it skips.
            skips = frame.f_locals.get("keep") is False
            timer.enter("seek" if skips else parts[frame.f_code])
        elif event == "return" and entered and entered[-1] is frame:
            entered.pop()
            timer.leave()

    sys.setprofile(report)
    try:
        yield
    finally:
        sys.setprofile(None)


def find_code(name: str) -> CodeType:
    """The code of a function of the table."""
    module, _, path = name.partition(":")
    function: Any = importlib.import_module(module)
    for attribute in path.split("."):
        function = getattr(function, attribute)
    return inspect.unwrap(function).__code__


def profile_clips(clips, functions: Mapping[str, str], seconds: float) -> tuple[float, float, dict]:
    """Milliseconds of processor time of a clip: decoding alone, all of it, and its parts.

    Some clips at a time are decoded, made, and made again with the profile, so that memory and
    caches are as another clip of the same kind left them. `functions` are those of the network.
    Videos that cannot be read are left out.
    """
    timer, decoding, whole, began = PartTimer(), [], [], time.monotonic()
    for start in range(0, min(MOST_CLIPS, len(clips)), CLIPS_PER_TURN):
        if decoding and time.monotonic() - began > seconds:
            break
        readable = []
        for index in range(start, min(start + CLIPS_PER_TURN, len(clips))):
            with contextlib.suppress(VideoError):
                decoding.append(measure_cpu_seconds(clips.decode, index))
                readable.append(index)
        whole += [measure_cpu_seconds(clips.__getitem__, index) for index in readable]
        with time_functions({**FUNCTIONS, **functions}, timer):
            for index in readable:
                with timer.inside("other"):
                    clips[index]
    if not decoding:
        raise ValueError("data.root: no video can be read; scripts/data/check_videos.py says why")
    scale = 1000 / len(decoding)
    parts = {part: scale * spent for part, spent in timer.seconds.items()}
    return scale * sum(decoding), scale * sum(whole), parts


def measure_cpu_seconds(work: Callable, *arguments: Any) -> float:
    """Seconds of processor time of a call, all threads of the process together."""
    began = time.process_time()
    work(*arguments)
    return time.process_time() - began


def find_reader(clips) -> str:
    """The name of the reader of the first clip: the one that `data.reader: auto` chooses."""
    begin = FrameSource.__init__
    with mock.patch.object(FrameSource, "__init__", autospec=True, side_effect=begin) as opened:
        clips[0]
    _, _, reader = opened.call_args.args
    return reader


def measure_throughput(batches, batch: int, seconds: float) -> tuple[int, float, float]:
    """Takes batches as fast as they come: clips, seconds, seconds of processor time."""
    reader = batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    next(reader)  # workers start
    began, before, clips = time.monotonic(), read_cpu_seconds(), 0
    while time.monotonic() - began < seconds:
        next(reader)
        clips += batch
    passed, after = time.monotonic() - began, read_cpu_seconds()
    return clips, passed, sum(now - before.get(pid, 0.0) for pid, now in after.items())


def measure_bytes(clips, count: int = 16) -> float:
    """Mean bytes read for a clip, from a disk or from the system's cache of it."""
    before = psutil.Process().io_counters().read_chars
    for index in range(count):
        clips.decode(index)
    return (psutil.Process().io_counters().read_chars - before) / count


def read_cpu_seconds() -> dict[int, float]:
    """Processor time by process: this one, its threads included, and its workers."""
    main, times = psutil.Process(), {}
    for process in [main, *main.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a worker that has ended
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
    return times


def build_idle_source(clips):
    """The same source without work: every row, or batch, is the first one again.

    Its pipeline costs only MindData's work: queues, copies, batches.
    """
    kind, idle = type(clips), copy.copy(clips)
    if hasattr(kind, "__getitem__"):
        row = clips[0]
        own = {"__getitem__": lambda self, index: row}
    else:
        batch = next(iter(clips))
        own = {"__iter__": lambda self: itertools.repeat(batch)}
    idle.__class__ = type(kind.__name__, (kind,), own)
    return idle


def measure_data(network: Network, cfg, rt: Runtime, seconds: int) -> dict:
    """Profiles single clips, then runs the training pipeline for some seconds."""
    dataset = network.dataset
    records = dataset.read_records(cfg, "train")
    order = dataset.build_train_sampler(cfg, records, rt)
    clips = dataset.TrainSource(records, cfg, order, 10**6 // order.samples + 1, 0)
    if dataset.list_annotation_files(cfg):
        reader, read = find_reader(clips), round(measure_bytes(clips))
        own = NETWORK_FUNCTIONS.get(network.name, {})
        floor, clip, parts = profile_clips(clips, own, seconds)
    else:  # images, which MindData's own operators transform
        reader, read = cfg.data.source, None
        floor, clip, parts = measure_operators(dataset, cfg, order, clips, seconds)
    batch, workers = cfg.data.batch, count_workers(cfg.data.workers)
    done, _, cpu = measure_throughput(build_idle_source(clips).dataset(), batch, seconds / 4)
    parts["copy"] += 1000 * cpu / done
    clip += 1000 * cpu / done
    done, wall, cpu = measure_throughput(clips.dataset(), batch, seconds)
    parts["wait"] = max(1000 * (workers * wall - cpu) / done, 0)
    return {
        "clips": done,
        "reader": reader,
        "workers": workers,
        "processes": getattr(cfg.data, "processes", False),
        "clips_per_second": round(done / wall, 2),
        "clips_per_cpu_second": round(done / cpu, 2),
        "bare_decoding_per_cpu_second": round(1000 / floor, 2),
        "cost_over_bare_decoding": round(1000 * cpu / done / floor, 2),
        "floor_milliseconds": round(floor, 3),
        "clip_milliseconds": round(clip, 3),
        "clip_over_floor": round(clip / floor, 2),
        "bytes_read": read,
        "milliseconds": {part: round(value, 3) for part, value in parts.items()},
    }


def measure_operators(dataset, cfg, order, clips, seconds: int) -> tuple[float, float, dict]:
    """As `profile_clips`, for images that MindData's own operators transform.

    Only two parts are known: the time to read is that of a pipeline that drops the images.
    """
    data, spent = cfg.data, []
    whole = dataset.build_epoch_pipeline(data, order, 0)  # sets how far pipelines work ahead
    samples, workers = order.epoch(0).tolist(), count_workers(data.workers)
    read = dataset.open_reader(data, "train", samples, workers).project(["label"])
    for pipeline in (read.batch(data.batch, True), whole):
        try:
            done, _, cpu = measure_throughput(pipeline.repeat(), data.batch, seconds / 2)
        except RuntimeError as error:
            raise ValueError(dataset.reason_of(error)) from None
        spent.append(1000 * cpu / done)
    clips.decode(0)  # reads the first images
    floor = np.mean([measure_cpu_seconds(clips.decode, index) for index in range(MOST_CLIPS)])
    parts = {"open": spent[0], "operators": max(spent[1] - spent[0], 0), "copy": 0.0}
    return 1000 * floor, spent[1], parts
