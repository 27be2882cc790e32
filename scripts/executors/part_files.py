"""The records of finished jobs, so that a command continues, or joins what its parts have done."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from scripts.executors.process_pool import Part
from utils.progress import Progress

JobT = TypeVar("JobT")
RunJobs = Callable[[list[JobT]], Iterator[tuple[JobT, dict]]]


def job_key(settings: str, video: str, *job: Any) -> str:
    """The settings, the job, and size and time of the video: a record is valid for one key."""
    stat = os.stat(video)
    return json.dumps([settings, video, *job, stat.st_size, stat.st_mtime_ns])


class PartFiles:
    """The files in `folder` with the records of finished jobs: one file for each part of a command.

    A line is the key of a job and its record. `part` is that of this process; without it, no file
    is written.
    """

    def __init__(self, folder: Path, name: str, part: Optional[Part]):
        self.folder = folder
        self.pattern = f"{name}.part-{{}}.jsonl"
        self.part = part

    def complete(
        self, keys: Mapping[JobT, str], run_jobs: RunJobs, name: str, hidden: bool = False
    ) -> Iterator[tuple[JobT, dict]]:
        """(job, record) in the order of `keys`, {job: its key}.

        `run_jobs` yields (job, record) in any order, for the jobs whose keys no file has. `name` is
        that of the progress bar.
        """
        lines = self.find_lines()
        missing = [job for job, key in keys.items() if key not in lines]
        results = run_jobs(missing)
        ready: dict[JobT, dict] = {}
        progress = Progress(len(missing), name=name, unit="videos", hidden=hidden)
        file = self.part and self.folder / self.pattern.format(self.part.file_name)
        notes = None
        with contextlib.ExitStack() as stack:
            stack.callback(progress.close)
            for job, key in keys.items():
                if key in lines:
                    yield job, read_record(*lines[key])
                    continue
                while job not in ready:
                    other, ready[other] = next(results)
                    progress.update()
                    if file and notes is None:
                        notes = stack.enter_context(open(file, "a"))
                        notes.write("\n")  # ends a line that a kill has cut
                    if notes:
                        notes.write(f"{json.dumps([keys[other], ready[other]])}\n")
                        notes.flush()
                yield job, ready.pop(job)

    def find_lines(self) -> dict[str, tuple[Path, int]]:
        """{key: (file, position of its line)}; skips a line that a kill has cut."""
        lines = {}
        for path in sorted(self.folder.glob(self.pattern.format("*"))):
            position = 0
            with open(path, "rb") as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        key, _ = json.loads(line)
                        lines[key] = (path, position)
                    position += len(line)
        return lines

    def delete(self) -> None:
        for file in self.folder.glob(self.pattern.format("*")):
            file.unlink()


def read_record(file: Path, position: int) -> dict:
    """The record in the line of a part's file."""
    with open(file, "rb") as lines:
        lines.seek(position)
        return json.loads(lines.readline())[1]
