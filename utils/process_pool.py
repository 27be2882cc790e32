"""Worker processes for jobs that may kill them: decoders of broken files do."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Callable

from utils.processes import exit_when_parent_dies

WAITING = 4  # jobs in flight per worker


class Crashed(Exception):
    """A job that ended its worker process, twice, the second time alone."""


def run_all(work: Callable, jobs: Iterable, workers: int) -> Iterator[tuple[Any, Any]]:
    """Yields (job, result) in the order in which they are done; of a fatal job, (job, Crashed).

    `work` is a function of a module, of one argument. An error it raises is raised here.
    """
    jobs = iter(jobs)
    while True:
        flying: dict[Future, Any] = {}
        try:
            with executor(workers) as pool:
                while True:
                    for job in islice(jobs, workers * WAITING - len(flying)):
                        try:
                            flying[pool.submit(work, job)] = job
                        except BrokenProcessPool:
                            jobs = chain([job], jobs)
                            raise
                    if not flying:
                        return
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield flying.pop(future), result
        except BrokenProcessPool:
            for job in flying.values():  # one of them did it; each gets a process of its own
                yield job, alone(work, job)


def alone(work: Callable, job: Any) -> Any:
    with executor(1) as pool:
        try:
            return pool.submit(work, job).result()
        except BrokenProcessPool:
            return Crashed("it ended the process that decoded it")


def executor(workers: int) -> ProcessPoolExecutor:
    """Fresh processes: a forked one would inherit the locks of the framework's threads."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, exit_when_parent_dies, (os.getpid(),))
