"""Jobs that may crash their process, as decoders of broken files do: here, on Dask, or in parts.

`run_all` has two executors. `processes`: worker processes of this host. `dask:ADDRESS`: the workers
of a Dask cluster, which Dask's nannies start again when a job has ended them. A Dask worker needs
Dask and the folder of the zoo, at the same path as here; its `sys.path` need not contain it.
"""

import argparse
import logging
import multiprocessing
import os
import pickle
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Annotated, Any, Callable, NamedTuple, Optional

from utils import signals
from utils.cores import count_workers
from utils.files import ROOT
from utils.messages import MachineError
from utils.processes import exit_when_parent_dies

JOBS_IN_FLIGHT = 4  # per process
DASK_JOBS = 4096  # at one time
CONNECT_TIMEOUT = 20  # seconds, to the scheduler of Dask
PROCESSES = "processes"
DASK = "dask:"
TRACKER_IS_QUIET = "ignore:resource_tracker:UserWarning"
LOGGERS = ("distributed", "distributed.client", "tornado.application")  # they log tracebacks


class Part(NamedTuple):
    """`--part I/N`: a command does every N-th job, the first one is job I, counted from 1."""

    number: int
    parts: int

    def select(self, jobs: Iterable) -> list:
        return list(jobs)[self.number - 1 :: self.parts]

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"


def parse_part(text: str) -> Part:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    part = Part(*map(int, match.groups())) if match else Part(0, 0)
    if 1 <= part.number <= part.parts:
        return part
    raise argparse.ArgumentTypeError(f"must be I/N, with I from 1 to N, such as 1/64, not {text}")


def choose_workers(workers: Optional[int], executor: str) -> int:
    """`workers`, or one for each core, at most 64. Raises ValueError if it has no effect."""
    if workers and executor != PROCESSES:
        raise ValueError(f"--workers goes with --executor {PROCESSES}; Dask has its own")
    return workers or count_workers("auto")


def parse_executor(text: str) -> str:
    if text == PROCESSES or (text.startswith(DASK) and text != DASK):
        return text
    raise argparse.ArgumentTypeError(f"must be {PROCESSES} or {DASK}ADDRESS, not {text}")


PartOption = Annotated[Part, parse_part]
Executor = Annotated[str, parse_executor]


class CrashError(Exception):
    """The result of a job that crashed its worker process twice, the second time alone."""


def run_all(
    work: Callable, jobs: Iterable, workers: int, executor: str = PROCESSES
) -> Iterator[tuple[Any, Any]]:
    """Yields (job, result) in the order of completion; the result of a fatal job is a CrashError.

    `work` is a function of a module, with one argument. An error that it raises is raised here.
    `workers` is the number of processes on this host.
    """
    if executor != PROCESSES:
        yield from run_on_dask(work, jobs, executor.removeprefix(DASK))
        return
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
            return CrashError("it ended the process that decoded it")


def start_process_pool(workers: int) -> ProcessPoolExecutor:
    """Starts new processes: a forked one would inherit the locks of MindSpore's threads.

    Python's tracker of semaphores, which starts too, unblocks the signals of `utils.signals`, and
    would warn if one of them ends this process.
    """
    if TRACKER_IS_QUIET not in sys.warnoptions:
        sys.warnoptions.append(TRACKER_IS_QUIET)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, prepare_worker, (os.getpid(),))
    signals.block()
    return pool


def prepare_worker(parent: int) -> None:
    """In a process of the pool, which ends by SIGTERM or with its parent, not by ctrl-C itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    exit_when_parent_dies(parent)


def run_on_dask(work: Callable, jobs: Iterable, address: str) -> Iterator[tuple[Any, Any]]:
    """`run_all` on a Dask cluster.

    Dask repeats the jobs of a worker that has ended. It gives a job up that was on four of them
    (`distributed.scheduler.allowed-failures`); that job runs here then, alone.
    """
    try:
        from distributed import CancelledError, Client, KilledWorker, as_completed
        from distributed.comm import CommClosedError
    except ImportError:
        advice = "pip install '.[cluster]', or pip install distributed"
        raise ValueError(f"--executor dask needs a package: {advice}") from None
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client: Any = Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:  # TypeError: TLS without certificates
        raise ValueError(f"--executor: no Dask scheduler at {address}: {error}") from None
    root, folder = str(ROOT), os.getcwd()

    def run_job(data: bytes) -> Any:
        """A pickled job, in the folder of the command.

        Dask sends the code of an inner function, so a worker needs no module to receive it.
        """
        import os
        import pickle
        import sys

        os.chdir(folder)  # paths may be relative
        if root not in sys.path:
            sys.path.insert(0, root)
        work, job = pickle.loads(data)
        return work(job)

    jobs = iter(jobs)
    running: dict[Future, Any] = {}
    completed = as_completed(loop=client.loop, with_results=True, raise_errors=False)
    with client:
        try:
            while True:
                more = list(islice(jobs, DASK_JOBS - len(running)))
                tasks = [pickle.dumps((work, job)) for job in more]
                futures = client.map(run_job, tasks, pure=False)
                running.update(zip(futures, more))
                completed.update(futures)
                if not running:
                    return
                for future, result in completed.next_batch():
                    job = running.pop(future)
                    if isinstance(result, CancelledError):
                        raise result
                    if future.status == "error":
                        if not isinstance(result[1], KilledWorker):
                            raise result[1]
                        result = run_alone(work, job)
                    yield job, result
        except (CancelledError, CommClosedError):
            reason = f"the Dask scheduler at {address} has ended; run this again"
            raise MachineError(reason) from None
