"""A pool of worker processes for jobs that may crash them, as decoders of broken files do."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Callable

from utils.processes import exit_when_parent_dies

JOBS_IN_FLIGHT = 4  # per worker


class Crashed(Exception):
    """The result of a job that crashed its worker process twice, the second time alone."""


def run_all(work: Callable, jobs: Iterable, workers: int) -> Iterator[tuple[Any, Any]]:
    """Yields (job, result) in the order of completion; the result of a fatal job is a Crashed.

    `work` is a function of a module, with one argument. An error that it raises is raised here.
    """
    jobs = iter(jobs)
    while True:
        running: dict[Future, Any] = {}
        try:
            with start_process_pool(workers) as pool:
                while True:
                    for job in islice(jobs, workers * JOBS_IN_FLIGHT - len(running)):
                        try:
                            running[pool.submit(work, job)] = job
                        except BrokenProcessPool:
                            jobs = chain([job], jobs)
                            raise
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield running.pop(future), result
        except BrokenProcessPool:
            for job in running.values():  # one of them crashed it; each gets its own process
                yield job, run_alone(work, job)


def run_alone(work: Callable, job: Any) -> Any:
    with start_process_pool(1) as pool:
        try:
            return pool.submit(work, job).result()
        except BrokenProcessPool:
            return Crashed("it ended the process that decoded it")


def start_process_pool(workers: int) -> ProcessPoolExecutor:
    """Starts new processes: a forked one would inherit the locks of the framework's threads."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, exit_when_parent_dies, (os.getpid(),))
