"""Worker pool: threads or forked processes that make the rows of batches in advance (prefetch).

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
MindData's threads run; utils/data/loader.py refuses to fork after an Ascend or a GPU is opened.
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
import gc
import itertools
import mmap
import multiprocessing
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from utils.messages import MachineError
from utils.processes import describe_exit, exit_when_parent_dies

ROW_NUMBER = struct.Struct("q")
READ_SIZE = 512 * ROW_NUMBER.size  # bytes of results read at once
MOST_NUMBERS = 64  # in one message
# Seconds of a cheap row: of processor time, and in all
CHEAP_ROW = 0.00025
CHEAP_WAIT = 0.001


class PrefetchedBatches:
    """The batches of a random-access source, in its order; an iterable with a length.

    With processes, it can be iterated once; a second iteration raises RuntimeError.

    Args:
        source: `source[row]` is a tuple of arrays, one per column; `len(source)` is defined.
        blank: a row with the shapes and types of all rows.
        batch: rows of a batch; an incomplete last batch is left out.
        workers: number of threads or processes.
        processes: True for forked processes, False for threads.
        prefetch: batches that are ready or being made. Memory for all of them is allocated once.
    """

    def __init__(
        self, source: Any, blank: Sequence, batch: int, workers: int, processes: bool, prefetch: int
    ):
        self.source = source
        self.batch = batch
        self.prefetch = prefetch
        self.blank = [np.asarray(value) for value in blank]
        self.workers = workers
        self.processes = processes
        self.forked = self.create_pool() if processes else None

    def create_pool(self) -> "WorkerPool":
        buffers = [
            [allocate_shared_rows(self.batch, value) for value in self.blank]
            for _ in range(self.prefetch)
        ]
        return WorkerPool(
            self.source, buffers=buffers, workers=self.workers, processes=self.processes
        )

    def take_pool(self) -> "WorkerPool":
        """The workers of a new iteration: the processes that were forked, or new threads."""
        if not self.processes:
            return self.create_pool()
        pool = self.forked
        self.forked = None
        if not pool:
            raise RuntimeError("worker processes make the batches of one iteration only")
        return pool

    def __len__(self) -> int:
        return len(self.source) // self.batch

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        count = self.batch
        in_flight = self.batch * self.prefetch
        rows = range(len(self) * count)
        pool = self.take_pool()
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


def allocate_shared_rows(count: int, value: np.ndarray) -> np.ndarray:
    """Memory for `count` rows shaped like `value`, shared with forked processes."""
    size = max(count * value.nbytes, 1)
    memory = np.frombuffer(mmap.mmap(-1, size), value.dtype, count * value.size)
    return memory.reshape(count, *value.shape)


class WorkerPool:
    """Workers that copy rows of `source` into buffers.

    `buffers` holds one list of columns per prefetched batch: row r is written into batch
    `r // batch % len(buffers)`.
    """

    def __init__(self, source: Any, buffers: list, workers: int, processes: bool):
        self.source = source
        self.buffers = buffers
        self.processes = processes
        self.closed = False
        self.cheap_rows = threading.Lock()  # held by the thread that makes them
        self.unsent: collections.deque[int] = collections.deque()
        self.task_reader, self.task_writer = multiprocessing.Pipe(duplex=False)
        self.result_reader, self.result_writer = multiprocessing.Pipe(duplex=False)
        for end in (self.task_writer, self.result_reader):  # the parent's ends
            os.set_blocking(end.fileno(), False)
        self.workers = [self.create_worker() for _ in range(workers)]
        # OpenCV would split the work of a row over all cores, which the other workers use already.
        # Decoders are limited to one thread where they are opened. No row calls NumPy's BLAS.
        with contextlib.suppress(ImportError):
            import cv2

            cv2.setNumThreads(0)
        for worker in self.workers:
            worker.start()
        self.sentinels = {}
        if processes:
            self.sentinels = {worker.sentinel: worker for worker in self.workers}
        self.poll = select.poll()
        for file in (self.result_reader.fileno(), *self.sentinels):
            self.poll.register(file, select.POLLIN)
        atexit.register(self.close)

    def create_worker(self) -> Any:
        if not self.processes:
            return threading.Thread(target=self.run_tasks, daemon=True)
        context = multiprocessing.get_context("fork")
        return context.Process(target=self.run_process, args=(os.getpid(),), daemon=True)

    def run_process(self, parent: int) -> None:
        gc.freeze()  # never free inherited objects here: they may be memory of the device
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles ctrl-C
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # and a closed terminal
        exit_when_parent_dies(parent)
        self.run_tasks()

    def run_tasks(self) -> None:
        """Makes rows until the pool is closed."""
        count = 1
        most = MOST_NUMBERS
        while True:
            numbers = os.read(self.task_reader.fileno(), count * ROW_NUMBER.size)
            if self.closed:
                return
            with self.cheap_rows if count > 1 else contextlib.nullcontext():
                start_time = time.monotonic()
                cpu_start_time = time.thread_time()
                results = [self.try_row(row) for (row,) in ROW_NUMBER.iter_unpack(numbers)]
                cpu_seconds = (time.thread_time() - cpu_start_time) / len(results)
                seconds = (time.monotonic() - start_time) / len(results)
            os.write(self.result_writer.fileno(), b"".join(results))
            if count > 1 and seconds > CHEAP_WAIT:
                most = 1
            count = most if cpu_seconds < CHEAP_ROW else 1

    def try_row(self, row: int) -> bytes:
        """Makes a row; returns its number as a result, -1 - row if that fails."""
        try:
            self.make_row(row)
        except Exception:
            row = -1 - row
        return ROW_NUMBER.pack(row)

    def make_row(self, row: int) -> None:
        batch = len(self.buffers[0][0])
        columns = self.buffers[row // batch % len(self.buffers)]
        for column, value in zip(columns, self.source[row]):
            if np.shape(value) != column.shape[1:]:
                raise ValueError(f"row {row}: {np.shape(value)} instead of {column.shape[1:]}")
            column[row % batch] = value

    def submit(self, rows: Iterable[int]) -> None:
        self.unsent.extend(rows)
        self.send_unsent()

    def send_unsent(self) -> None:
        """Writes numbers into the task pipe until it is full; a result makes `collect` go on."""
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
            advice = "run the same command again"
            if status == -signal.SIGKILL:
                advice = f"the system does this if memory runs out: lower data.workers; {advice}"
            raise MachineError(
                f"data.processes: a worker process {describe_exit(status)}; {advice}"
            )
        numbers = self.read_results()
        self.send_unsent()
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
