"""Commands that make a record of each video: in this process, on Dask, or in parts.

A finished record is a file, so a command that was killed continues there.
"""

import contextlib
import functools
import hashlib
import json
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Callable, NamedTuple, Optional

from scripts.executors.process_pool import PROCESSES, CrashError, Part, run_all
from utils.files import compute_sha256, lock_folder
from utils.inference.model import build_model
from utils.log import Progress
from utils.networks import find_network
from utils.settings import NetworkConfig
from utils.video.media_files import compute_stamp

RECORDS = "{}.records"  # the folder of finished records, in that of the results
STARTED = "{}.records/started"  # an empty file, which shows whose folder it is
LOCK = threading.Lock()  # a runner is for one thread; a Dask worker may have several
Results = Iterator[tuple[Any, dict]]  # (job, record); a broken video has `video` and `error`


class VideoJobs(NamedTuple):
    """A network with its weights, and what a command does with it; pickled for other processes.

    `runner(model, options).run_jobs(jobs)` yields (job, record) in any order. A job is a tuple that
    begins with the path of a video.
    """

    network: str
    cfg: NetworkConfig
    checkpoint_path: str
    runner: Callable
    options: Any
    labels: str = ""

    def compute_records(
        self,
        jobs: Sequence[tuple],
        executor: str,
        folder: Path,
        name: str,
        part: Optional[Part] = None,
        hidden: bool = False,
    ) -> Iterator[dict]:
        """The records of the jobs, or of a part of them, in their order.

        The name of a record's file is a checksum of the settings, the content of the weights and of
        the labels, and the video. A record that exists is not computed again. An error of one of
        several videos is a line on stderr.
        """
        contents = [compute_sha256(path) for path in (self.checkpoint_path, self.labels) if path]
        chosen = part.select(jobs) if part else jobs
        files = {}
        for job in chosen:
            key = repr((self, contents, job, compute_stamp(job[0])))
            checksum = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
            files[job] = folder / RECORDS.format(name) / f"{checksum}.json"
        missing = [job for job, file in files.items() if not file.exists()]
        results = self.run(missing, executor)
        with contextlib.closing(Progress(None, name, len(missing), hidden=hidden)) as bar:
            for job in chosen:
                while not files[job].exists():
                    other, record = next(results)
                    bar.update()
                    draft = files[other].with_suffix(f".{os.getpid()}")
                    draft.write_text(json.dumps(record))
                    os.replace(draft, files[other])
                record = json.loads(files[job].read_text())
                if "error" in record and len(jobs) > 1:
                    print(f"error: {record['error']}", file=sys.stderr)
                yield record

    def run(self, jobs: list[tuple], executor: str) -> Results:
        """Loads the network if there is a job. A job that crashes a process is a broken video."""
        if executor == PROCESSES:
            yield from self.build_runner().run_jobs(jobs) if jobs else ()
            return
        data = pickle.dumps(self)
        tasks = [(data, job) for job in jobs]
        for (_, job), record in run_all(run_job, tasks, workers=1, executor=executor):
            if isinstance(record, CrashError):
                record = {"video": job[0], "error": f"{job[0]}: {record}"}
            yield job, record

    def build_runner(self) -> Any:
        network = find_network(self.network)
        model = build_model(network, self.cfg, self.checkpoint_path, self.labels)
        return self.runner(model, self.options)


def run_job(task: tuple[bytes, Any]) -> dict:
    data, job = task
    with LOCK:
        ((_, record),) = load_runner(data).run_jobs([job])
    return record


@functools.lru_cache(1)
def load_runner(data: bytes) -> Any:
    return pickle.loads(data).build_runner()


def lock_records(folder: Path, name: str, part: Optional[Part]) -> IO:
    """Locks the folder for a command, or for parts; ValueError if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(folder, shared=part is not None)
    if lock is None:
        raise ValueError(f"--out: another process writes into {folder}; use another one")
    (folder / RECORDS.format(name)).mkdir(exist_ok=True)
    (folder / STARTED.format(name)).touch()
    return lock


def check_errors(errors: Sequence[str], jobs: Sequence, folder: Path, name: str) -> None:
    """Deletes the records and raises ValueError if no video could be read."""
    if len(errors) == len(jobs):
        shutil.rmtree(folder / RECORDS.format(name))
        raise ValueError(errors[0] if len(jobs) == 1 else "none of the videos was read")
