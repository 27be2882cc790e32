"""Runs a script on several devices with msrun, and makes it behave like one process.

    python scripts/launch.py [--restarts=N] DEVICES SCRIPT [arguments]

DEVICES are those of this node; NODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, or RANK_TABLE_FILE,
say the rest. The first worker's log is shown on stderr, the result of rank 0 on stdout of node 0;
the logs of all workers stay in out/logs. SIGTERM and ctrl-C reach the workers as SIGTERM.

ASCEND_RT_VISIBLE_DEVICES=4,5,6,7, or CUDA_VISIBLE_DEVICES, chooses devices of this node. On Ascend
each worker is bound to its own part of the cores; ZOO_BIND_CORE=0 leaves them unbound.

A worker that fails ends the job, on all nodes, and a line says which one it was. With --restarts
the job then begins again, at most N times, each time with the logs in a folder of its own; a
mistake of the user and an interruption end it for good. Exit status: as that of one process.
"""

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.cli import exit_on_broken_pipe, fill_closed_streams, show_usage
from utils.config import get_base_folder
from utils.distributed.launch_config import Job, read_job, script_file
from utils.distributed.rendezvous import Meeting
from utils.distributed.rendezvous import print_line as say
from utils.distributed.worker_group import Failure, Workers
from utils.messages import format_line
from utils.processes import adopt_orphans
from utils.signals import ECHO

GRACE = 2  # seconds for those that fail with the first one: they may know better why


def main() -> int:
    fill_closed_streams()
    show_usage(__doc__)
    try:
        job = read_job(sys.argv[1:], os.environ)
        job = dataclasses.replace(job, script=script_file(job.script))
        return Launcher(job).run()
    except ValueError as error:
        say(f"error: {error}")
        return 2


class Launcher:
    """Attempt after attempt, until one ends well or there are no restarts left."""

    def __init__(self, job: Job):
        self.job = job
        self.asked: list[int] = []  # the signals that came
        self.heard = 0.0  # when the last of them came
        self.name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.result = ""

    def run(self) -> int:
        adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.hear)
        for attempt in range(self.job.restarts + 1):
            failure = self.attempt(f"{self.name}-restart-{attempt}" if attempt else self.name)
            if failure:
                say(failure.line)
            if not failure or failure.status != 1 or self.asked:
                break
            if attempt < self.job.restarts:
                say(f"restart {attempt + 1} of {self.job.restarts}, from the last checkpoint")
        if not failure and self.job.node == 0 and self.result:
            print(self.result, flush=True)
        if signal.SIGINT in self.asked:
            return 128 + signal.SIGINT
        return failure.status if failure else 0

    def hear(self, number: int, _) -> None:
        if not self.asked or time.monotonic() - self.heard > ECHO:
            self.asked.append(number)
            self.heard = time.monotonic()

    def attempt(self, name: str) -> Optional[Failure]:
        """Runs the job once, from finding the other nodes to its end."""
        meeting = Meeting(self.job, lambda: bool(self.asked))
        try:
            plan = meeting.open(name)
            if plan is None:
                return self.interrupted()
            logs = get_base_folder() / "out" / "logs" / Path(plan["logs"]).name
            logs.mkdir(parents=True, exist_ok=True)
            return self.watch(Workers(self.job, plan["port"], logs), meeting)
        finally:
            meeting.close()

    def watch(self, workers: Workers, meeting: Meeting) -> Optional[Failure]:
        """Waits for the end of all nodes, or for the first failure on one of them."""
        try:
            finished: set[int] = set()  # nodes on which all workers have ended well
            while len(finished) < self.job.nodes:
                workers.first.show()
                if len(self.asked) > 1:
                    meeting.tell(dataclasses.asdict(self.interrupted()))
                    return self.interrupted()
                if self.asked:
                    workers.stop()
                failures = self.learn(workers, meeting, finished)
                if failures:
                    return self.conclude(failures, workers, meeting, finished)
                time.sleep(0.1)
            return None  # the scheduler would take four seconds to see that nobody is left
        finally:
            workers.end()
            workers.first.show()
            self.result = workers.first.result

    def learn(self, workers: Workers, meeting: Meeting, finished: set[int]) -> list[Failure]:
        """New failures here, which are told to the other nodes, and those that they have told."""
        here = f"node {self.job.node}: " if self.job.nodes > 1 else ""
        failures = workers.failures()
        if failures and self.asked:
            failures = [self.interrupted()]
        for failure in failures:
            meeting.tell(dataclasses.asdict(failure) | {"line": format_line(here + failure.line)})
        if self.job.node not in finished and workers.done():
            finished.add(self.job.node)
            meeting.tell({"finished": self.job.node})
        for message in meeting.hear():
            if "finished" in message:
                finished.add(message["finished"])
            elif "line" in message:
                failures.append(Failure(message["line"], message["status"], message["weight"]))
            elif "lost" in message and len(finished) < self.job.nodes:
                failures.append(Failure(f"{message['lost']} is gone: its launcher or host ended"))
        return failures

    def conclude(
        self, failures: list[Failure], workers: Workers, meeting: Meeting, finished: set[int]
    ) -> Failure:
        """The weightiest of the failures that come within a moment."""
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and len(self.asked) < 2:
            time.sleep(0.1)
            failures += self.learn(workers, meeting, finished)
        return max(failures, key=lambda failure: failure.weight)  # the first of equal ones

    def interrupted(self) -> Failure:
        """Whoever was asked to stop ends in one way or another; that is no failure of theirs."""
        how = "; ended at once" if len(self.asked) > 1 else ""
        return Failure(f"the job was interrupted{how}", 128 + self.asked[0], 4)


if __name__ == "__main__":
    with exit_on_broken_pipe():
        sys.exit(main())
