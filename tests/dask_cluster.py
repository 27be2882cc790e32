"""A Dask cluster on this host, started by the commands of docs/many_machines.md."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class DaskCluster(NamedTuple):
    """A scheduler and four workers of a thread; a nanny starts a worker again that has ended."""

    executor: str
    scheduler: subprocess.Popen
    nannies: list[subprocess.Popen]

    def kill_worker(self) -> None:
        """Kills the process of one worker, not its nanny."""
        children = psutil.Process(self.nannies[0].pid).children()
        next(child for child in children if "resource_tracker" not in str(child.cmdline())).kill()


@contextmanager
def start_dask_cluster(folder: Path, **variables: str) -> Iterator[DaskCluster]:
    """Starts it in `folder`, from which the workers cannot import the checkout."""
    environment = {**os.environ, "PYTHONPATH": "", **variables}
    dask = [sys.executable, "-m", "dask"]
    host = ["--no-dashboard", "--host", "127.0.0.1"]
    file = folder / "scheduler.json"
    scheduler = ["scheduler", "--port", "0", "--scheduler-file", str(file)]
    scheduler += ["--dashboard-address", "127.0.0.1:0"]
    worker = ["worker", "--scheduler-file", str(file), "--nworkers", "2"]
    worker += ["--nthreads", "1", "--memory-limit", "0"]
    worker += ["--local-directory", str(folder), "--death-timeout", "600"]
    with open(folder / "dask.log", "w") as log:
        options = {"cwd": folder, "env": environment, "stdout": log, "stderr": log}
        processes = [
            subprocess.Popen([*dask, *command, *host], **options)
            for command in (scheduler, worker, worker)
        ]
        try:
            deadline = time.monotonic() + 600
            while not file.exists() or not file.read_text():
                assert time.monotonic() < deadline, (folder / "dask.log").read_text()
                time.sleep(0.1)
            address = json.loads(file.read_text())["address"]
            yield DaskCluster(f"dask:{address}", processes[0], processes[1:])
        finally:
            for process in reversed(processes):
                stop_process(process)


def stop_process(process: subprocess.Popen) -> None:
    """Ends it and its children; a Dask worker without a scheduler would take minutes."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
