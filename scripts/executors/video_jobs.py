"""Commands that make a record of each video: in this process, on Dask, or in parts.

A finished record is a line in a file of its part, so a command that was killed continues there.
"""

import contextlib
import functools
import hashlib
import json
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from scripts.executors.process_pool import PROCESSES, CrashError, Part, run_all
from utils.files import compute_sha256, lock_folder
from utils.inference.model import build_model
from utils.log import Progress
from utils.networks import find_network
from utils.settings import NetworkConfig
from utils.video.media_files import compute_stamp

PART_FILE = "{}.part-{}.jsonl"
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

        A finished one is a line `[key, record]` in the file of this part. Those that such files in
        `folder` have are not computed again, unless a setting, the content of the weights or the
        labels, or the video has changed. An error of one of several videos is a line on stderr.
        """
        files = [compute_sha256(path) for path in (self.checkpoint_path, self.labels) if path]
        settings = hashlib.sha256(repr((self, files)).encode()).hexdigest()
        chosen = part.select(jobs) if part else jobs
        keys = {job: json.dumps([settings, *job, compute_stamp(job[0])]) for job in chosen}
        lines = {}  # {key: (file, position of its line)}
        for path in sorted(folder.glob(PART_FILE.format(name, "*-of-*"))):
            position = 0
            with open(path, "rb") as file:
                for line in file:
                    # A kill may have cut it
                    with contextlib.suppress(ValueError, TypeError, RecursionError):
                        key, record = json.loads(line)
                        if isinstance(key, str) and isinstance(record, dict):
                            lines[key] = (path, position)
                    position += len(line)
        missing = [job for job, key in keys.items() if key not in lines]
        results = self.run(missing, executor)
        target = folder / name_part_file(name, part)
        with contextlib.closing(Progress(len(missing), name, "videos", hidden=hidden)) as bar:
            for job in chosen:
                while keys[job] not in lines:
                    other, record = next(results)
                    bar.update()
                    with open(target, "ab") as notes:
                        lines[keys[other]] = (target, notes.tell() + 1)
                        # A kill may have cut the last line
                        notes.write(f"\n{json.dumps([keys[other], record])}\n".encode())
                path, position = lines[keys[job]]
                with open(path, "rb") as content:
                    content.seek(position)
                    record = json.loads(content.readline())[1]
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


@contextlib.contextmanager
def lock_parts(folder: Path, name: str, part: Optional[Part]) -> Iterator[None]:
    """Locks the folder for one part, or for all; ValueError if another process holds the lock.

    The file of the part, which is locked too, shows from the start whose folder it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    locks = [lock_folder(folder, shared=part is not None)]
    if locks[0]:
        locks.append(lock_folder(folder, name_part_file(name, part)))
    with contextlib.ExitStack() as stack:
        for lock in filter(None, locks):
            stack.enter_context(lock)
        if None in locks:
            raise ValueError(
                f"--out: another process writes into {folder}; wait for it, or use another folder"
            )
        yield


def name_part_file(name: str, part: Optional[Part]) -> str:
    return PART_FILE.format(name, (part or Part(1, 1)).file_name)


def delete_part_files(folder: Path, name: str) -> None:
    for path in folder.glob(PART_FILE.format(name, "*-of-*")):
        path.unlink()


def check_errors(errors: Sequence[str], jobs: Sequence, folder: Path, name: str) -> None:
    """Deletes the files of the parts and raises ValueError if no video could be read."""
    if len(errors) == len(jobs):
        delete_part_files(folder, name)
        raise ValueError(errors[0] if len(jobs) == 1 else "none of the videos was read")
