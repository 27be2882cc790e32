"""Commands that make a record of each video: in this process, on Dask, or in parts.

A finished record is a line in a file of its part, so a command that was killed continues there.
"""

import contextlib
import functools
import hashlib
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from scripts.executors.process_pool import PROCESSES, CrashError, Part, run_all
from utils.files import compute_sha256, lock_folder, report_write_errors
from utils.networks import find_network
from utils.predict.model import build_model
from utils.progress import Progress
from utils.settings import NetworkConfig
from utils.video.media_files import compute_stamp
from utils.weights.checkpoint_file import check_kind

PART_FILE = "{}.part-{}.jsonl"
LOCK = threading.Lock()  # a runner is for one thread; a Dask worker may have several
JobT = TypeVar("JobT")  # a tuple that begins with the path of a video
Results = Iterator[tuple[JobT, dict]]  # a record; for a broken video it has `video` and `error`
RunJobs = Callable[[list[JobT]], Results[JobT]]


class JobSettings(NamedTuple):
    """A network with its weights, and what a command does with it; pickled for other processes.

    `runner(model, options).run_jobs(jobs)` yields (job, record) in any order.
    """

    network: str
    cfg: NetworkConfig
    checkpoint_path: str
    runner: Callable
    options: Any
    labels: str = ""

    def compute_digest(self) -> str:
        """Changes with every setting, and with the content of the files that they name.

        Raises ValueError if there is no checkpoint.
        """
        if not os.path.isfile(self.checkpoint_path):
            check_kind(Path(self.checkpoint_path))
        files = [compute_sha256(Path(p)) for p in (self.checkpoint_path, self.labels) if p]
        return hashlib.sha256(repr((self, files)).encode()).hexdigest()

    def run_jobs(self, executor: str, jobs: list[JobT]) -> Results[JobT]:
        """Loads the network if there is a job. A job that crashes a process is a broken video."""
        if executor == PROCESSES:
            yield from self.build_runner().run_jobs(jobs) if jobs else ()
            return
        data = pickle.dumps(self)
        tasks = [(data, job) for job in jobs]
        results = run_all(run_job, jobs=tasks, workers=1, executor=executor)
        for (_, job), result in results:
            crashed = isinstance(result, CrashError)
            yield job, {"video": job[0], "error": f"{job[0]}: {result}"} if crashed else result

    def build_runner(self) -> Any:
        network = find_network(self.network)
        path = self.checkpoint_path
        try:
            model = build_model(network, cfg=self.cfg, checkpoint=path, labels=self.labels)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        return self.runner(model, self.options)


def run_job(task: tuple[bytes, Any]) -> dict:
    data, job = task
    with LOCK:
        ((_, record),) = load_runner(data).run_jobs([job])
    return record


@functools.lru_cache(1)
def load_runner(data: bytes) -> Any:
    return pickle.loads(data).build_runner()


def make_key(settings: str, video: str, *job: Any) -> str:
    """The settings, the job, and the stamp of the video: a record is valid for one key."""
    return json.dumps([settings, video, *job, compute_stamp(video)])


def write_records(
    jobs: Sequence[JobT],
    key: Callable[[JobT], str],
    run_jobs: RunJobs[JobT],
    writer: AbstractContextManager[Callable[[JobT, dict], None]],
    folder: Path,
    name: str,
    part: Optional[Part] = None,
    hidden: bool = False,
) -> dict:
    """Gives `writer` the record of each of the jobs, in their order; `key` returns their keys.

    Returns the numbers of videos and failed ones, the folder and the seconds. The records of a
    `part` go to its file, `name`.part-I-of-N.jsonl. Records that such files have are not computed
    again; without `part` the files are removed at the end. A broken video is a line on stderr.
    Raises ValueError if no video can be read, or if another process writes into the folder.
    """
    start = time.monotonic()
    errors = []
    keys = {job: key(job) for job in (part.select(jobs) if part else jobs)}
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        with lock_parts(folder, name, part):
            with writer as write:
                for job, record in complete(keys, run_jobs, folder, name, part, hidden):
                    write(job, record)
                    if "error" in record:
                        errors.append(record["error"])
                        if len(jobs) > 1:
                            print(f"error: {errors[-1]}", file=sys.stderr)
                if len(errors) == len(jobs):
                    delete_part_files(folder, name)
                    raise ValueError(errors[0] if len(jobs) == 1 else "none of the videos was read")
            if not part:
                delete_part_files(folder, name)
    seconds = round(time.monotonic() - start, 2)
    result = {"videos": len(keys), "failed": len(errors), "out": str(folder), "seconds": seconds}
    return {"part": str(part), **result} if part else result


@contextlib.contextmanager
def lock_parts(folder: Path, name: str, part: Optional[Part]) -> Iterator[None]:
    """Locks the folder for one part, or for all; ValueError if another process holds the lock.

    The lock of a part is that of its file, which shows from the start whose folder it is.
    """
    locks = [lock_folder(folder, shared=part is not None)]
    if locks[0]:
        locks.append(lock_folder(folder, name_part_file(name, part)))
    try:
        if None in locks:
            raise ValueError(
                f"--out: another process writes into {folder}; wait for it, or use another folder"
            )
        yield
    finally:
        for lock in filter(None, locks):
            lock.close()


def complete(
    keys: Mapping[JobT, str],
    run_jobs: RunJobs[JobT],
    folder: Path,
    name: str,
    part: Optional[Part],
    hidden: bool,
) -> Results[JobT]:
    """(job, record) in the order of `keys`; `run_jobs` does the jobs whose keys no file has.

    A finished record is a line in the file of this part: the key of its job, and the record.
    """
    lines = find_lines(folder, name)
    missing = [*{key: job for job, key in keys.items() if key not in lines}.values()]
    file = folder / name_part_file(name, part)
    results = run_jobs(missing)
    with contextlib.closing(Progress(len(missing), name=name, unit="videos", hidden=hidden)) as bar:
        for job, key in keys.items():
            while key not in lines:
                other, record = next(results)
                bar.update()
                with open(file, "ab") as notes:
                    lines[keys[other]] = (file, notes.tell() + 1)
                    # A kill may have cut the last line
                    notes.write(f"\n{json.dumps([keys[other], record])}\n".encode())
            path, position = lines[key]
            with open(path, "rb") as content:
                content.seek(position)
                yield job, json.loads(content.readline())[1]


def find_lines(folder: Path, name: str) -> dict[str, tuple[Path, int]]:
    """{key: (file, position of its line)}; skips a line that a kill has cut."""
    lines = {}
    for path in sorted(folder.glob(PART_FILE.format(name, "*-of-*"))):
        position = 0
        with open(path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    key, record = json.loads(line)
                    if isinstance(key, str) and isinstance(record, dict):
                        lines[key] = (path, position)
                position += len(line)
    return lines


def name_part_file(name: str, part: Optional[Part]) -> str:
    return PART_FILE.format(name, (part or Part(1, 1)).file_name)


def delete_part_files(folder: Path, name: str) -> None:
    for path in folder.glob(PART_FILE.format(name, "*-of-*")):
        path.unlink()
