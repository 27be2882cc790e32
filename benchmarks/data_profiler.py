"""Where the time of a training clip goes: milliseconds by part, measured from outside.

What is measured has no timers: while single clips are made, in this process and one after the
other, the functions of `FUNCTIONS`, and a network's own, are wrapped. A part is processor time
without what a function of another part takes inside it, and with that of a decoder's own threads;
decord's runs ahead into whatever comes next.

    open      opening and closing files, reading what tells which packet is which frame
    seek      choosing and fetching packets; frames decoded in order only to be passed over
    decode    to pictures; where PyAV skips to a frame, also those that it is made from. decord,
              OpenCV and JPEG files give RGB in the same call
    convert   YUV to RGB, and to numpy
    geometry  crop, resize, flip; where one function does both, also the order of axes
    augment   RandAugment, erasing, how batches are mixed
    copy      frames to one array, channels first, and MindData's work: queues, batches
    other     the rest: the order of samples, chance, labels, memory given back

These add up to a clip, which is also timed unwatched. Where MindData's own operators make the rows,
reading (`open`) is told from the rest (`operators`: decode, crop, resize, flip, batch), no more.

`wait` is no work, but the time for each clip in which a worker of the pipeline, running as fast as
it can, held no processor: for want of one, for the lock of Python, the disk, or the other end of a
queue. Where a clip costs more among the workers than here, they disturb each other: caches, memory,
hyperthreads.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any, Callable

import psutil

from utils.networks import list_networks
from utils.video.reader import FrameSource, VideoError

PARTS = ("open", "seek", "decode", "convert", "geometry", "augment", "copy", "other")

# The part of each function, "module:function" or "module:Class.function". What it calls counts with
# it, unless that stands here too. A reader or a network adds a line for whatever takes its time.
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
MOST, BLOCK = 64, 8  # clips that are taken apart, and how many at a time


class Account:
    """Seconds by part; what is entered inside another part is taken off that one."""

    def __init__(self, clock: Callable[[], float] = time.process_time):
        self.clock, self.since = clock, 0.0
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.parts: list[str] = []  # those we are in, the innermost last

    @contextlib.contextmanager
    def inside(self, part: str) -> Iterator[None]:
        self.turn()
        self.parts.append(part)
        try:
            yield
        finally:
            self.turn()
            self.parts.pop()

    def turn(self) -> None:
        """Puts what has passed down to the innermost part."""
        now = self.clock()
        if self.parts:
            self.seconds[self.parts[-1]] += now - self.since
        self.since = now


def timed(function: Callable, part: str, account: Account) -> Callable:
    """The same function; inside a part its time is put down, a generator's step by step."""

    @functools.wraps(function)
    def call(*values, **options):
        if not account.parts:
            return function(*values, **options)
        passed_over = options.get("keep") is False  # as a `VideoFile` asks its `_read`
        with account.inside("seek" if passed_over else part):
            return function(*values, **options)

    @functools.wraps(function)
    def steps(*values, **options):
        following, end = functools.partial(next, function(*values, **options)), object()
        following = timed(following, part, account)
        while (item := following(end)) is not end:
            yield item

    return steps if inspect.isgeneratorfunction(function) else call


@contextlib.contextmanager
def watched(functions: dict[str, str], account: Account) -> Iterator[None]:
    """Everything in the table timed, by whatever name a module of ours calls it."""
    wrapped, positions = {}, []
    for name, part in functions.items():
        owner, attribute, function = find(name)
        wrapped[function] = timed(function, part, account)
        positions.append((owner, attribute, function))
    positions += [position for position in names_in_modules() if position[2] in wrapped]
    try:
        for owner, attribute, function in positions:
            setattr(owner, attribute, wrapped[function])
        yield
    finally:
        for position in positions:
            setattr(*position)


def find(name: str) -> tuple[Any, str, Callable]:
    """Where a function of the table stands: module or class, attribute, the function."""
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, attribute, vars(owner)[attribute]


def names_in_modules() -> list[tuple[Any, str, Callable]]:
    """The same of every function that a module of the zoo defines or imports."""
    zoo = {"utils", *list_networks()}
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in zoo]
    return [(m, *item) for m in modules for item in vars(m).items() if inspect.isfunction(item[1])]


def take_apart(clips, own: dict[str, str], seconds: float) -> tuple[float, float, dict]:
    """Milliseconds of processor time of a clip: bare decoding, all of it, and its parts.

    The same clips are decoded, made, and made again watched, some at a time, so that memory and
    caches are as another clip of the kind left them. `own` are the network's functions. What cannot
    be read is left out.
    """
    account, floor, whole, began = Account(), [], [], time.monotonic()
    with watched({**FUNCTIONS, **own}, account):
        for first in range(0, min(MOST, len(clips)), BLOCK):
            if floor and time.monotonic() - began > seconds:
                break
            readable = []
            for index in range(first, min(first + BLOCK, len(clips))):
                with contextlib.suppress(VideoError):
                    floor.append(cost(clips.decode, index))
                    readable.append(index)
            whole += [cost(clips.__getitem__, index) for index in readable]
            for index in readable:
                with account.inside("other"):
                    clips[index]
    if not floor:
        raise ValueError("data.root: no video can be read; scripts/data/check_videos.py says why")
    each = 1000 / len(floor)
    parts = {part: each * spent for part, spent in account.seconds.items()}
    return each * sum(floor), each * sum(whole), parts


def cost(work: Callable, *values: Any) -> float:
    """Seconds of processor time, all threads of the process together."""
    began = time.process_time()
    work(*values)
    return time.process_time() - began


def reader_of(clips) -> str:
    """By which reader the first clip is read: what `data.reader: auto` comes to."""
    names, begin = [], FrameSource.__init__

    def noted(source, path, reader):
        names.append(reader)
        begin(source, path, reader)

    FrameSource.__init__ = noted
    try:
        clips[0]
    finally:
        FrameSource.__init__ = begin
    return names[-1]


def flat_out(batches, batch: int, seconds: float) -> tuple[int, float, float]:
    """Takes batches as fast as they come: clips, seconds, seconds of processor time."""
    reader = batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    next(reader)  # workers start
    began, before, done = time.monotonic(), cpu_seconds(), 0
    while time.monotonic() - began < seconds:
        next(reader)
        done += batch
    passed, after = time.monotonic() - began, cpu_seconds()
    return done, passed, sum(now - before.get(pid, 0.0) for pid, now in after.items())


def bytes_read(clips, count: int = 16) -> float:
    """Bytes that a clip is read from, a mean; from a disk or from what the system kept of it."""
    before = psutil.Process().io_counters().read_chars
    for index in range(count):
        clips.decode(index)
    return (psutil.Process().io_counters().read_chars - before) / count


def cpu_seconds() -> dict[int, float]:
    """Processor time by process: this one, its threads included, and its workers."""
    me, times = psutil.Process(), {}
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a worker that has ended
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
    return times


def idle(clips):
    """The same source without work: every row, or batch, is the first one again.

    What its pipeline costs is MindData's: queues, copies, batches.
    """
    kind, same = type(clips), copy.copy(clips)
    if hasattr(kind, "__getitem__"):
        row = clips[0]
        own = {"__getitem__": lambda self, index: row}
    else:
        batch = next(iter(clips))
        own = {"__iter__": lambda self: itertools.repeat(batch)}
    same.__class__ = type(kind.__name__, (kind,), own)
    return same
