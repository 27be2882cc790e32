"""The batches that a network's `create_dataset` gives to MindData: chooses workers and prefetch.

The worker pool is our own, and MindData takes its batches. By threads of
MindData, images get 0.1 to 0.2 of the rows a second: it looks every 0.1 s whether a row is there.
Each thread keeps up to 17 rows, whatever its prefetch size. As processes, its workers would need
workers * (prefetch size + 2) rows of /dev/shm; without it they end in a bus error. The figures:
docs/measured/data_path.md.

Threads or processes. A row of any network here holds Python's global lock (GIL) for 4 to 8 % of its
time: decoding, resizing and copying release it. So 8 threads wait for the lock 1 to 7 % of their
time, and 16 threads 5 to 26 %. Processes do not wait, but each is a copy of this process that grows
while it touches the records. So `auto` takes processes only for more than 8 workers.

It takes processes only on a CPU. A process that has opened an Ascend or a GPU has many threads of
ACL, HCCL or CUDA. A fork copies the locks that they hold at that moment, and may hang. So there
`auto` takes threads, at most 16: with 4 to 8 % of each row under the lock, more would gain little.

The pool: threads or forked processes make the rows of batches in advance (prefetch).

Protocol. The parent writes row numbers into a task pipe. A worker reads one, writes the row into a
buffer in shared memory and writes the number into a result pipe. A number has eight bytes, and one
write at most 512, so the system neither splits nor mixes them. Therefore the pool needs no lock,
which a killed process could hold for ever, and it needs nothing in /dev/shm, which is small in
containers.

Cheap rows. An image of CIFAR takes 0.04 ms. Two threads that make such rows take Python's global
lock (GIL) from each other ten times a row, and together make 5,000 a second; one makes 19,000. So
while rows are cheap, one thread at a time makes them, 64 for a message. Rows that wait, such as
for a slow disk, are not cheap.

A pipe holds 8,192 numbers, or 512 if its user has many pipes. The parent never blocks on a full
pipe: it keeps the numbers that do not fit and writes them while it reads results.

Threads and processes are not used together in one process. A fork copies the state of locks; if
another thread uses OpenCV, a decoder or the C library at that moment, their locks stay locked in
the child. So `PrefetchedBatches` forks when it is built, by the program's main thread, before
MindData's threads run; `choose_workers` refuses to fork after an Ascend or a GPU is opened.
Processes that do not fork (forkserver, spawn) would have to import MindSpore and unpickle the
source, but its counter of unreadable videos and the rows lie in memory that only a fork inherits.

Why not concurrent.futures: both of its executors finish all submitted rows before Python exits.
With 512 rows of 0.1 s in flight and 8 workers, a program that ends in the middle exits after 5.7 s,
with this pool after 0.2 s. ProcessPoolExecutor also does not report the signal that killed a
worker, its queues need semaphores in /dev/shm, and up to Python 3.11 it forks while its own threads
run.
"""

import atexit
import collections
import contextlib
import functools
import gc
import itertools
import math
import mmap
import multiprocessing
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from utils import cores
from utils.data.rows import Rows
from utils.log import log
from utils.messages import MachineError
from utils.processes import describe_exit, exit_when_parent_dies
from utils.settings import ImageData

if TYPE_CHECKING:
    import mindspore.dataset as ds

MAX_THREADS = 8  # by `auto` on a CPU; above it, workers are processes
MAX_DEVICE_THREADS = 16  # by `auto` on Ascend and GPU
# Batches, by `auto`
MIN_PREFETCH = 2
MAX_PREFETCH = 8
MEMORY_FRACTION = 1 / 4  # of the free memory, by `auto`: evaluation and the network need some too
MINDDATA_BUFFERED = 2  # batches that MindData holds
ROW_NUMBER = struct.Struct("q")
READ_SIZE = 512 * ROW_NUMBER.size  # bytes of results read at once
MOST_NUMBERS = 64  # in one message
# Seconds of a cheap row: of processor time, and in all
CHEAP_ROW = 0.00025
CHEAP_WAIT = 0.001

log_once = functools.cache(log.info)  # once a run and not at every evaluation


def build_pipeline(
    rows: Rows, data: ImageData, requested_workers: Union[int, str]
) -> "ds.GeneratorDataset":
    """The batches of rows in their order, made in advance by workers; MindData queues no others.

    `requested_workers` is as `data.workers`; `data` has the settings `processes` and `prefetch`.
    Raises ValueError if the batches do not fit into memory, or if worker processes are requested on
    a device.
    """
    import mindspore as ms  # here: who only reads videos does not load MindSpore
    import mindspore.dataset as ds

    ds.config.set_prefetch_size(1)
    like = rows.example()
    size = rows.batch * sum(np.asarray(value).nbytes for value in like)
    device = ms.get_context("device_target")  # CPU, GPU or Ascend
    workers, processes = choose_workers(requested_workers, data.processes, device)
    prefetch = choose_prefetch(data.prefetch, size, max(1, len(rows) // rows.batch))
    kind = "processes" if processes else "threads"
    bound = ", each bound to its own" if cores.is_bound() else ""
    log_once(
        f"data: worker {kind}: {workers} (data.workers {requested_workers}; cores: "
        f"{cores.count_usable_cores()}, ranks on this node: {cores.get_local_rank_size()}{bound}); "
        f"batches of {size / 1e6:.3g} MB, prefetched: {prefetch}"
    )
    batches = PrefetchedBatches(rows, like, rows.batch, workers, processes, prefetch)
    return ds.GeneratorDataset(batches, list(rows.columns), shuffle=False)


def choose_workers(
    setting: Union[int, str], processes: Union[bool, str], device: str
) -> tuple[int, bool]:
    """(number of workers, whether they are processes), for `data.workers` and `data.processes`.

    Raises ValueError for `data.processes: true` on Ascend and GPU.
    """
    workers = cores.count_workers(setting)
    if device == "CPU":
        return workers, workers > MAX_THREADS if processes == "auto" else bool(processes)
    if processes is True:
        raise ValueError(f"data.processes: true may hang on run.device {device}; set it to auto")
    return min(workers, MAX_DEVICE_THREADS) if setting == "auto" else workers, False


def choose_prefetch(setting: Union[int, str], size: int, total: float = math.inf) -> int:
    """The number of batches that the worker pool prefetches, for `data.prefetch`.

    `auto` takes as many as fit into MEMORY_FRACTION of the free memory, between MIN_PREFETCH and
    MAX_PREFETCH. `size` is the bytes of a batch, `total` the batches of the whole set; the result
    is not larger.

    Raises ValueError if these batches and MINDDATA_BUFFERED need more than the free memory.
    """
    free = cores.read_free_memory() / cores.get_local_rank_size()
    if isinstance(setting, int):
        prefetch = setting
    else:
        fitting = MEMORY_FRACTION * free // size - MINDDATA_BUFFERED
        prefetch = int(min(MAX_PREFETCH, max(MIN_PREFETCH, fitting)))
    batch_count = min(prefetch + MINDDATA_BUFFERED, total)
    if batch_count * size > free:
        raise ValueError(
            f"data.prefetch {setting}: {batch_count} batches of {size / 1e6:.0f} MB are more "
            f"than the {free / 1e6:.0f} MB that are free for each rank of this node; "
            "lower it, or data.batch and eval.batch"
        )
    return int(min(prefetch, total))


class PrefetchedBatches:
    """The batches of a random-access source, in its order; an iterable with a length.

    With processes, it can be iterated once; a second iteration raises RuntimeError.

    Args:
        source: `source[row]` is a tuple of arrays, one per column; `len(source)` is defined.
        like: a row with the shapes and types of all rows.
        batch: rows of a batch; an incomplete last batch is left out.
        workers: number of threads or processes.
        processes: True for forked processes, False for threads.
        prefetch: batches that are ready or being made. Memory for all of them is allocated once.
    """

    def __init__(
        self, source: Any, like: Sequence, batch: int, workers: int, processes: bool, prefetch: int
    ):
        self.count = len(source) // batch
        self.batch = batch
        self.prefetch = prefetch
        self.processes = processes
        arguments = source, like, batch, workers, processes, prefetch
        self.create_pool = functools.partial(WorkerPool, *arguments)
        self.forked = self.create_pool() if processes else None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        count = self.batch
        in_flight = count * self.prefetch
        rows = range(len(self) * count)
        pool, self.forked = self.forked, None  # the processes that were forked, or new threads
        if self.processes and not pool:
            raise RuntimeError("worker processes make the batches of one iteration only")
        pool = pool or self.create_pool()
        finished: set[int] = set()  # rows that are finished but belong to later batches
        try:
            pool.submit(rows[:in_flight])
            for start in rows[::count]:
                batch = set(rows[start : start + count])
                missing = batch - finished
                finished = finished - batch
                while missing:
                    collected = pool.collect()
                    if pool.closed:
                        return
                    finished |= collected - missing
                    missing -= collected
                columns = tuple(map(np.copy, pool.buffers[start // count % self.prefetch]))
                pool.submit(rows[start + in_flight : start + in_flight + count])
                yield columns
        finally:
            pool.close()


class WorkerPool:
    """Workers that copy rows of `source` into `buffers`, in memory shared with forked processes.

    `buffers` holds one list of columns per prefetched batch: row r is written into batch
    `r // batch % prefetch`. The arguments are those of `PrefetchedBatches`.
    """

    def __init__(
        self, source: Any, like: Sequence, batch: int, workers: int, processes: bool, prefetch: int
    ):
        self.source = source
        self.batch = batch
        self.buffers: list[list[np.ndarray]] = [[] for _ in range(prefetch)]
        for columns in self.buffers:
            for value in map(np.asarray, like):
                memory = mmap.mmap(-1, max(batch * value.nbytes, 1))
                flat = np.frombuffer(memory, value.dtype, batch * value.size)
                columns.append(flat.reshape(batch, *value.shape))
        self.processes = processes
        self.closed = False
        self.cheap_rows = threading.Lock()  # held by the thread that makes them
        self.unsent: collections.deque[int] = collections.deque()
        self.task_reader, self.task_writer = multiprocessing.Pipe(duplex=False)
        self.result_reader, self.result_writer = multiprocessing.Pipe(duplex=False)
        for end in (self.task_writer, self.result_reader):  # the parent's ends
            os.set_blocking(end.fileno(), False)
        kind: Any = multiprocessing.get_context("fork").Process if processes else threading.Thread
        arguments = (os.getpid(),) if processes else ()
        self.workers = [
            kind(target=self.run_tasks, args=arguments, daemon=True) for _ in range(workers)
        ]
        # OpenCV would split the work of a row over all cores, which the other workers use already.
        # Decoders are limited to one thread where they are opened. No row calls NumPy's BLAS.
        with contextlib.suppress(ImportError):
            import cv2

            cv2.setNumThreads(0)
        for worker in self.workers:
            worker.start()
        sentinels = [worker.sentinel for worker in self.workers] if processes else []
        self.sentinels = dict(zip(sentinels, self.workers))
        self.poll = select.poll()
        for file in (self.result_reader.fileno(), *sentinels):
            self.poll.register(file, select.POLLIN)
        atexit.register(self.close)

    def run_tasks(self, parent: int = 0) -> None:
        """Makes rows until the pool is closed; `parent` is the one of a process."""
        if parent:
            gc.freeze()  # never free inherited objects here: they may be memory of the device
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles ctrl-C
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # and a closed terminal
            exit_when_parent_dies(parent)
        count = 1
        most = MOST_NUMBERS
        while True:
            numbers = os.read(self.task_reader.fileno(), count * ROW_NUMBER.size)
            if self.closed:
                return
            with self.cheap_rows if count > 1 else contextlib.nullcontext():
                start_time = time.monotonic()
                cpu_start_time = time.thread_time()
                results = []
                for (row,) in ROW_NUMBER.iter_unpack(numbers):
                    try:
                        self.make_row(row)
                    except Exception:  # `collect` makes it again and raises
                        row = -1 - row
                    results.append(ROW_NUMBER.pack(row))
                cpu_seconds = (time.thread_time() - cpu_start_time) / len(results)
                seconds = (time.monotonic() - start_time) / len(results)
            os.write(self.result_writer.fileno(), b"".join(results))
            if count > 1 and seconds > CHEAP_WAIT:
                most = 1
            count = most if cpu_seconds < CHEAP_ROW else 1

    def make_row(self, row: int) -> None:
        columns = self.buffers[row // self.batch % len(self.buffers)]
        for column, value in zip(columns, self.source[row]):
            if np.shape(value) != column.shape[1:]:
                raise ValueError(f"row {row}: {np.shape(value)} instead of {column.shape[1:]}")
            column[row % self.batch] = value

    def submit(self, rows: Iterable[int] = ()) -> None:
        """Writes numbers into the task pipe until it is full; a result makes `collect` go on."""
        self.unsent.extend(rows)
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                numbers = list(itertools.islice(self.unsent, MOST_NUMBERS))
                os.write(self.task_writer.fileno(), b"".join(map(ROW_NUMBER.pack, numbers)))
                for _ in numbers:
                    self.unsent.popleft()

    def collect(self) -> set[int]:
        """Waits for at least one finished row; returns an empty set if the pool is closed.

        A row that failed in a worker is made again here, so its exception is raised here. Raises
        MachineError if a worker process has ended.
        """
        ready = [file for file, _ in self.poll.poll()]
        if self.closed:
            return set()
        for sentinel in set(ready) & set(self.sentinels):
            self.sentinels[sentinel].join()
            status = self.sentinels[sentinel].exitcode
            raise MachineError(
                f"data.processes: a worker process {describe_exit(status)}; run the same command "
                "again, and lower data.workers if memory has run out"
            )
        numbers = self.read_results()
        self.submit()
        for number in numbers:
            if number < 0:
                self.make_row(-1 - number)
        return {max(number, -1 - number) for number in numbers}

    def read_results(self) -> list[int]:
        """The numbers in the result pipe, at most 512; does not wait."""
        try:
            data = os.read(self.result_reader.fileno(), READ_SIZE)
        except BlockingIOError:  # `close` has read them in another thread
            return []
        return [number for (number,) in ROW_NUMBER.iter_unpack(data)]

    def close(self) -> None:
        """Ends all workers and waits: no thread may be inside a decoder when Python ends."""
        atexit.unregister(self.close)
        self.closed = True
        for worker in self.workers if self.processes else ():
            worker.kill()
        while any(worker.is_alive() for worker in self.workers):
            # A thread ends when it reads a number. It may first need space to write a result.
            with contextlib.suppress(BlockingIOError):
                os.write(self.task_writer.fileno(), ROW_NUMBER.pack(0))
            self.read_results()
            time.sleep(0.001)
        # Python may end while MindData's thread waits in `collect`, and MindData waits for that
        # thread. This number wakes it.
        os.write(self.result_writer.fileno(), ROW_NUMBER.pack(0))
