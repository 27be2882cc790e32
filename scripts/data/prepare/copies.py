"""Copies listed videos, each to a file or a folder: a folder that has the lists of `data.root`."""

import glob
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

from scripts.data.prepare.integrity import (
    BAD_LINE,
    GOOD,
    Finding,
    VideoJob,
    make_job,
    print_left_out,
    write_table,
)
from scripts.executors.process_pool import PROCESSES, CrashError, Part, run_all
from utils.data.annotation_file import (
    AnnotationFile,
    Record,
    choose_output_names,
    format_label,
    iterate_lines,
    name_record,
)
from utils.files import (
    check_folder,
    check_inputs,
    copy_file,
    make_drafts,
    report_write_errors,
    write_text,
)
from utils.networks import Network
from utils.progress import track
from utils.settings import NetworkConfig


class Copying(NamedTuple):
    """Where and how all videos are copied.

    `build_job(video, path)` returns a job with `video` and `target`, the copy `out`/path, and
    `work(job, drafts)` writes it, by way of the folder `drafts`. Its finding has the number of
    frames if the copy is a folder.
    """

    out: Path
    build_job: Callable[[VideoJob, Path], Any]
    work: Callable[..., Finding]
    title: str  # of the progress
    workers: int
    executor: str = PROCESSES
    part: Optional[Part] = None
    suffix: str = ""  # of the copies


class Line(NamedTuple):
    """A line of a list, or a file of a folder."""

    number: int
    name: str  # of the video; a bad line itself
    work: Any  # a job or, of a bad line, a Finding
    copy: str = ""  # the path in the new list
    record: Optional[Record] = None


def find_lists(network: Network, cfg: NetworkConfig) -> list[AnnotationFile]:
    """The lists of videos of a network. Raises ValueError if there are none."""
    data: Any = cfg.data
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos; images are read as they are")
    if data.source == "frames":
        raise ValueError("data.source: the lists name folders already; take a recipe of videos")
    return files


def copy_lists(
    cfg: NetworkConfig, files: list[AnnotationFile], copying: Copying
) -> tuple[dict[str, Any], dict[Any, Finding]]:
    """Copies the videos of the lists, and writes the new lists unless it is a part.

    Returns what `copy_videos` does. Raises ValueError if a list has no good video.
    """
    data: Any = cfg.data
    # The names in the config file, unless one of these is absolute or begins with `..`
    names = [Path(os.path.normpath(file.name)) for file in files]
    is_below = all(not name.is_absolute() and name.parts[0] != ".." for name in names)
    targets = [copying.out / name for name in (names if is_below else choose_output_names(files))]
    tables = [target.with_name(f"{target.name}.bad.tsv") for target in targets]
    check_inputs(targets, [file.path for file in files])
    lists: list[list[Line]] = []
    for file in files:
        below = get_path_below(data.root, file.root)
        lists.append([])
        for number, text, record in iterate_lines(file):
            if isinstance(record, str):
                lists[-1].append(Line(number, name=text, work=Finding("bad line", record)))
                continue
            copy = name_copy(record, file, copying.suffix)
            job = copying.build_job(make_job(record, file, data.reader), below / copy)
            lists[-1].append(Line(number, name_record(record), job, copy, record))
    result, findings = copy_videos(copying, lists, tables)
    if not copying.part:
        for file, target, lines in zip(files, targets, lists):
            write_list(file, target, [(line, findings.get(line.work)) for line in lines])
        result["lists"] = [str(target) for target in targets]
    return result, findings


def copy_videos(
    copying: Copying, lists: Sequence[Sequence[Line]], tables: Sequence[Path]
) -> tuple[dict[str, Any], dict[Any, Finding]]:
    """Writes the copies of this part and, unless it is a part, the tables of bad lines.

    Empty tables at the start show whose folder it is. Returns the counts, and {job: finding}.
    Raises ValueError if two videos would have one copy, or the folder is of somebody else.
    """
    start = time.monotonic()
    jobs: dict[str, Any] = {}  # by target; a video may be in several lists
    for line in (line for lines in lists for line in lines if not isinstance(line.work, Finding)):
        job = jobs.setdefault(line.work.target, line.work)
        if job.video.path != line.work.video.path:
            names = f"{job.video.path} and {line.work.video.path}"
            raise ValueError(f"--out: {names} would both become {job.target}: rename one")
    names = [glob.escape(str(table.relative_to(copying.out))) for table in tables]
    check_folder(copying.out, dict.fromkeys(names, BAD_LINE))
    chosen = copying.part.select(jobs.values()) if copying.part else list(jobs.values())
    findings: dict[Any, Finding] = {}
    with report_write_errors(copying.out, "--out"), make_drafts(copying.out) as drafts:
        for table in tables:
            table.parent.mkdir(parents=True, exist_ok=True)
            table.touch()
        work = partial(copying.work, drafts=str(drafts))
        results = run_all(work, chosen, copying.workers, copying.executor)
        for job, result in track(results, copying.title, len(chosen)):
            crashed = isinstance(result, CrashError)
            findings[job] = Finding("broken", str(result)) if crashed else result
    good = sum(finding.kind == GOOD for finding in findings.values())
    counts = {"out": str(copying.out), "videos": good, "bad": len(chosen) - good}
    counts["seconds"] = round(time.monotonic() - start, 1)
    if copying.part:
        return {**counts, "part": str(copying.part)}, findings
    for lines, table in zip(lists, tables):
        checked = [(line.number, line.name, findings.get(line.work, line.work)) for line in lines]
        bad = [row for row in checked if row[-1].kind != GOOD]
        write_table(table, bad)
        print_left_out([(name, finding) for _, name, finding in bad])
    return counts, findings


def name_copy(record: Record, file: AnnotationFile, suffix: str) -> str:
    """The path in the new list: that of the video; a segment is `PATH_START_END`."""
    segment = str(record.segment).split() if record.segment else []
    copy = str(get_path_below(file.root, "_".join([record.path, *segment])))
    return copy if copy.endswith(suffix) and not segment else f"{copy}{suffix}"


def get_path_below(folder: Path, path: Union[str, Path]) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))


def write_list(
    file: AnnotationFile, target: Path, lines: Sequence[tuple[Line, Optional[Finding]]]
) -> None:
    """Writes the good ones of (line, finding); copies the class names beside the old list.

    Raises ValueError if there is none.
    """
    texts = []
    for line, finding in lines:
        if finding and finding.kind == GOOD:
            frames = [str(finding.frames)] if finding.frames else []
            texts.append(" ".join([line.copy, *frames, format_label(line.record.label)]))
    if not texts:
        raise ValueError(f"{file.path} has no video that can be read")
    write_text(target, "".join(f"{text}\n" for text in texts))
    class_names = file.path.with_name("labels.txt")
    if class_names.is_file():
        copy_file(class_names, target.with_name("labels.txt"))
