"""Workers that make the rows of batches ahead: threads, or forked processes.

They take the numbers of rows from one pipe, write the rows into memory that all share and put the
numbers into another pipe: eight bytes at a time, which the system neither splits nor mixes. So
there is no lock that a killed process could hold, and nothing lies in /dev/shm, which is small in
containers.

A pipe holds 8,192 numbers, or 512 where a user has many. The parent never waits for room in one: it
keeps the numbers that do not fit, and writes them as it reads results.

A fork copies locks as they are: of OpenCV and the decoders, where other threads use these at that
moment. So threads and processes do not go together in one process. For the same reason nothing is
forked once an Ascend or a GPU is open: utils/data/loader.py refuses it. Processes that do not fork
(forkserver, spawn) would have to unpickle the source, whose counter of bad videos and whose rows
lie in memory that only a fork inherits, and to import MindSpore each.
"""

import atexit
import collections
import contextlib
import gc
import mmap
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from utils.cli import Failed
from utils.processes import exit_when_parent_dies

NUMBER = struct.Struct("q")
AT_ONCE = 512 * NUMBER.size  # bytes


class Batches:
    """The batches of a random-access source, in its order; an iterable with a length.

    `ahead` of them are ready or being made. `blank` is a row: its shapes and types are those of
    all. Memory is taken where rows are written, once for all batches.
    """

    def __init__(
        self, source: Any, blank: Sequence, batch: int, workers: int, processes: bool, ahead: int
    ):
        self.source, self.batch, self.ahead = source, batch, ahead
        self.blank = [np.asarray(value) for value in blank]
        self.workers, self.processes = workers, processes

    def __len__(self) -> int:
        return len(self.source) // self.batch

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        count, ahead = self.batch, self.batch * self.ahead
        rows = range(len(self) * count)
        places = [[shared_rows(count, value) for value in self.blank] for _ in range(self.ahead)]
        crew = Crew(self.source, places, self.workers, self.processes)
        done: set[int] = set()
        try:
            crew.give(rows[:ahead])
            for first in rows[::count]:
                batch = set(rows[first : first + count])
                missing, done = batch - done, done - batch
                while missing:
                    taken = crew.take()
                    if crew.closed:
                        return
                    done |= taken - missing
                    missing -= taken
                columns = tuple(map(np.copy, places[first // count % self.ahead]))
                crew.give(rows[first + ahead : first + ahead + count])
                yield columns
        finally:
            crew.close()


def shared_rows(count: int, value: np.ndarray) -> np.ndarray:
    """Memory for a column of a batch, which forked processes share."""
    size = max(count * value.nbytes, 1)
    memory = np.frombuffer(mmap.mmap(-1, size), value.dtype, count * value.size)
    return memory.reshape(count, *value.shape)


class Crew:
    """`give` numbers of rows; `take` those of the rows that are in their places."""

    def __init__(self, source: Any, places: list, workers: int, processes: bool):
        self.source, self.places, self.processes = source, places, processes
        self.closed = False
        self.unsent: collections.deque[int] = collections.deque()
        (self.orders, self.to_do), (self.results, self.done) = (
            multiprocessing.Pipe(duplex=False) for _ in range(2)
        )
        for end in (self.to_do, self.results):  # the parent's
            os.set_blocking(end.fileno(), False)
        self.members = [self.member() for _ in range(workers)]
        one_thread_each()
        for member in self.members:
            member.start()
        atexit.register(self.close)

    def member(self) -> Any:
        if not self.processes:
            return threading.Thread(target=self.work, daemon=True)
        context = multiprocessing.get_context("fork")
        return context.Process(target=self.work_apart, args=(os.getpid(),), daemon=True)

    def work_apart(self, parent: int) -> None:
        gc.freeze()  # what was inherited is not freed here: it may be memory of the device
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the parent
        exit_when_parent_dies(parent)
        self.work()

    def work(self) -> None:
        """Until closed. A row that fails is left to the parent: its number is sent as -1 - it."""
        while True:
            number = os.read(self.orders.fileno(), NUMBER.size)
            if self.closed:
                return
            (row,) = NUMBER.unpack(number)
            try:
                self.make(row)
            except Exception:
                number = NUMBER.pack(-1 - row)
            os.write(self.done.fileno(), number)

    def make(self, row: int) -> None:
        batch = len(self.places[0][0])
        columns = self.places[row // batch % len(self.places)]
        for column, value in zip(columns, self.source[row]):
            if np.shape(value) != column.shape[1:]:
                raise ValueError(f"row {row}: {np.shape(value)} instead of {column.shape[1:]}")
            column[row % batch] = value

    def give(self, rows: Iterable[int]) -> None:
        self.unsent.extend(rows)
        self.send()

    def send(self) -> None:
        """Writes as many of the numbers as the pipe has room for.

        Where some are left, the pipe is not empty, so there will be a result, and `take` sends on.
        """
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                os.write(self.to_do.fileno(), NUMBER.pack(self.unsent[0]))
                self.unsent.popleft()

    def take(self) -> set[int]:
        """Waits for a row at least, or for the end, when there is none.

        A row that failed is made here, and raises what it raised. Raises Failed where a worker
        process has ended.
        """
        ends = {member.sentinel: member for member in self.members} if self.processes else {}
        ready = set(wait([self.results, *ends]))
        if self.closed:
            return set()
        for ended in ready & set(ends):
            ends[ended].join()
            how = describe_end(ends[ended].exitcode)
            raise Failed(f"data.processes: a worker process {how}")
        found = self.read()
        self.send()
        for row in found:
            if row < 0:
                self.make(-1 - row)
        return {max(row, -1 - row) for row in found}

    def read(self) -> list[int]:
        """The numbers that are in the pipe of results, at most some hundreds."""
        try:
            data = os.read(self.results.fileno(), AT_ONCE)
        except BlockingIOError:  # `close`, in another thread, has read them
            return []
        return [row for (row,) in NUMBER.iter_unpack(data)]

    def close(self) -> None:
        """Ends all members and waits for them: no thread may be in a decoder when Python ends."""
        atexit.unregister(self.close)
        self.closed = True
        for member in self.members if self.processes else ():
            member.kill()
        while any(member.is_alive() for member in self.members):
            # A thread ends when it reads a number; it may need room to write the one before.
            with contextlib.suppress(BlockingIOError):
                os.write(self.to_do.fileno(), NUMBER.pack(0))
            self.read()
            time.sleep(0.001)
        # Python ends while somebody takes: MindData's thread, for which MindData waits at the end.
        os.write(self.done.fileno(), NUMBER.pack(0))


def describe_end(status: int) -> str:
    """How a worker process ended, by its exit code, which is negative for a signal; what to do."""
    if status >= 0:
        return f"ended with status {status}; run the same command again"
    advice = ""
    if status == -signal.SIGKILL:
        advice = "where memory runs out the system does that: lower data.workers; "
    return f"was killed by {signal.Signals(-status).name}; {advice}run the same command again"


def one_thread_each() -> None:
    """OpenCV would share each row out to all cores, which the other workers have filled.

    What decodes is told the same where it is opened; no row calls NumPy's BLAS.
    """
    with contextlib.suppress(ImportError):
        import cv2

        cv2.setNumThreads(0)
