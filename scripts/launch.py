#!/usr/bin/env python3
"""Runs a script on several devices with msrun, and makes it behave like one process.

    python scripts/launch.py [--restarts=N] DEVICES SCRIPT [arguments]

DEVICES are those of this node. NODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, or RANK_TABLE_FILE,
name the other nodes. The first worker's log is shown on stderr, the result of rank 0 on stdout of
node 0; the logs of all workers stay in out/logs. SIGTERM and ctrl-C reach the workers as SIGTERM.

ASCEND_RT_VISIBLE_DEVICES=4,5,6,7, or CUDA_VISIBLE_DEVICES, chooses devices of this node. On Ascend
each worker is bound to its own part of the cores; ZOO_BIND_CORE=0 leaves them unbound.

A worker that fails ends the job on this node, and a line names the worker. MindSpore's scheduler
then ends the other nodes (docs/many_devices.md says when). With --restarts a job on one node begins
again, at most N times, each time with the logs in a folder of its own; a user error and an
interruption end it for good. Exit status: as that of one process.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import os
import signal
import time
from typing import Optional

from scripts.launcher.launch_config import Job, read_job, reserve_port
from scripts.launcher.worker_group import Failure, WorkerGroup
from utils import signals
from utils.cli import exit_on_broken_pipe, prepare_streams, show_usage
from utils.files import get_base_folder
from utils.messages import print_line
from utils.processes import adopt_orphans

GRACE = 2  # seconds for failures that follow the first one: they may be its cause


def main() -> int:
    prepare_streams()
    show_usage(__doc__)
    try:
        return Launcher(read_job(sys.argv[1:], os.environ)).run()
    except ValueError as error:
        print_line(f"error: {error}")
        return 2


class Launcher:
    """Runs attempt after attempt, until one ends well or no restart is left."""

    def __init__(self, job: Job):
        self.job = job
        self.signals: list[int] = []  # received
        self.last_signal = 0.0
        self.result = ""

    def run(self) -> int:
        adopt_orphans()
        for number in signals.list_watched():
            signal.signal(number, lambda number, _: self.receive_signal(number))
        signals.release()
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        name += f"-node-{self.job.node}" if self.job.nodes > 1 else ""
        for attempt in range(self.job.restarts + 1):
            if attempt:
                print_line(f"restart {attempt} of {self.job.restarts}, from the last checkpoint")
            failure = self.run_attempt(f"{name}-restart-{attempt}" if attempt else name)
            if failure:
                print_line(failure.line)
            if not failure or failure.status != 1 or self.signals:
                break
        if not failure and self.job.node == 0 and self.result:
            print(self.result, flush=True)
        if signal.SIGINT in self.signals:
            return 128 + signal.SIGINT
        return failure.status if failure else 0

    def receive_signal(self, number: int) -> None:
        if not self.signals or time.monotonic() - self.last_signal > signals.DEBOUNCE:
            self.signals.append(number)
            self.last_signal = time.monotonic()

    def run_attempt(self, name: str) -> Optional[Failure]:
        """Runs the job once. On a single node the scheduler has any free port."""
        holder = None if self.job.port else reserve_port()
        port = holder.getsockname()[1] if holder else self.job.port
        group = WorkerGroup(self.job, port, get_base_folder() / "out" / "logs" / name)
        try:
            return self.watch(group)
        finally:
            group.kill()
            group.show_log()
            self.result = group.result
            if holder:
                holder.close()

    def watch(self, group: WorkerGroup) -> Optional[Failure]:
        """Waits until the workers of this node have ended well, or returns why they cannot."""
        failures: list[Failure] = []
        deadline = float("inf")
        while not group.is_done() and time.monotonic() < deadline:
            time.sleep(0.1)
            group.show_log()
            own = group.poll()
            if self.signals:
                group.terminate()
                is_second = len(self.signals) > 1
                own = [self.describe_interruption()] if own or is_second else []
                deadline = 0 if is_second else deadline
            failures += own
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE)
        if not failures:
            return None
        return max(failures, key=lambda failure: failure.severity)  # the first of equal ones

    def describe_interruption(self) -> Failure:
        """However the workers end after a signal, it is not a failure of theirs."""
        how = "; ended at once" if len(self.signals) > 1 else ""
        return Failure(f"the job was interrupted{how}", 128 + self.signals[0], 4)


if __name__ == "__main__":
    with exit_on_broken_pipe():
        sys.exit(main())
