"""Copies listed videos, each to a file or a folder: a folder that has the lists of `data.root`."""

import glob
import os
import time
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
    choose_output_names,
    format_label,
    iterate_lines,
    name_record,
)
from utils.files import (
    check_folder,
    check_inputs,
    make_drafts,
    read_text,
    report_write_errors,
    write_text,
)
from utils.log import track
from utils.networks import Network
from utils.settings import NetworkConfig


class Line(NamedTuple):
    number: int
    name: str  # of the video; a bad line itself
    job: Any  # of a bad line, a Finding
    copy: str = ""  # the path in the new list
    label: str = ""


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
    cfg: NetworkConfig,
    files: list[AnnotationFile],
    out: Path,
    *,
    build_job: Callable[[VideoJob, Path], Any],
    work: Callable[..., Finding],
    title: str,
    workers: int,
    executor: str = PROCESSES,
    part: Optional[Part] = None,
    suffix: str = "",
) -> tuple[dict[str, Any], dict[Any, Finding]]:
    """Copies the listed videos and, unless it is a part, writes new lists and tables of bad lines.

    `build_job(video, path)` returns a job with `video` and `target`, the copy `out`/path, and
    `work(job, drafts)` writes it, by way of the folder `drafts`. Its finding has the number of
    frames if the copy is a folder. `title` is that of the progress, `suffix` that of the copies.

    Returns the counts, and {job: finding}. Raises ValueError if two videos would have one copy, a
    list has no good video, or the folder is of somebody else.
    """
    start = time.monotonic()
    data: Any = cfg.data
    # The names in the config file, unless one of these is absolute or begins with `..`
    names = [Path(os.path.normpath(file.name)) for file in files]
    is_below = all(not name.is_absolute() and name.parts[0] != ".." for name in names)
    targets = [out / name for name in (names if is_below else choose_output_names(files))]
    tables = [target.with_name(f"{target.name}.bad.tsv") for target in targets]
    lists: list[list[Line]] = []
    jobs: dict[str, Any] = {}  # by target; a video may be in several lists
    for file in files:
        below = get_path_below(data.root, file.root)
        lists.append([])
        for number, text, record in iterate_lines(file):
            if isinstance(record, str):
                lists[-1].append(Line(number, name=text, job=Finding("bad line", record)))
                continue
            # The path of the video, of a segment PATH_START_END
            segment = str(record.segment).split() if record.segment else []
            copy = str(get_path_below(file.root, "_".join([record.path, *segment])))
            copy = copy if copy.endswith(suffix) and not segment else f"{copy}{suffix}"
            own = build_job(make_job(record, file, data.reader), below / copy)
            job = jobs.setdefault(own.target, own)
            if job.video.path != own.video.path:
                both = f"{job.video.path} and {own.video.path}"
                raise ValueError(f"--out: {both} would both become {job.target}: rename one")
            label = format_label(record.label)
            lists[-1].append(Line(number, name_record(record), job, copy, label))

    check_inputs(targets, [file.path for file in files])
    check_folder(out, {glob.escape(str(table.relative_to(out))): BAD_LINE for table in tables})
    chosen = part.select(jobs.values()) if part else list(jobs.values())
    findings: dict[Any, Finding] = {}
    with report_write_errors(out, "--out"), make_drafts(out) as drafts:
        for table in tables:  # empty ones show whose folder it is
            table.parent.mkdir(parents=True, exist_ok=True)
            table.touch()
        results = run_all(partial(work, drafts=str(drafts)), chosen, workers, executor)
        for job, result in track(results, title, len(chosen)):
            crashed = isinstance(result, CrashError)
            findings[job] = Finding("broken", str(result)) if crashed else result
    good = sum(finding.kind == GOOD for finding in findings.values())
    counts: dict[str, Any] = {"out": str(out), "videos": good, "bad": len(chosen) - good}
    counts["seconds"] = round(time.monotonic() - start, 1)
    if part:
        return {**counts, "part": str(part)}, findings

    for file, target, table, lines in zip(files, targets, tables, lists):
        checked = [(line, findings.get(line.job, line.job)) for line in lines]
        bad = [(line, finding) for line, finding in checked if finding.kind != GOOD]
        write_table(table, [(line.number, line.name, finding) for line, finding in bad])
        print_left_out([(line.name, finding) for line, finding in bad])
        texts = [
            " ".join([line.copy, *([str(found.frames)] if found.frames else []), line.label])
            for line, found in checked
            if found.kind == GOOD
        ]
        if not texts:
            raise ValueError(f"{file.path} has no video that can be read")
        write_text(target, "".join(f"{text}\n" for text in texts))
        class_names = file.path.with_name("labels.txt")
        if class_names.is_file():
            text = read_text(class_names, str(class_names), "surrogateescape")
            write_text(target.with_name("labels.txt"), text)
    return {**counts, "lists": [str(target) for target in targets]}, findings


def get_path_below(folder: Path, path: Union[str, Path]) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))
