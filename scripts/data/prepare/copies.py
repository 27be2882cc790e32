"""Copies listed videos, each to a file or a folder: a folder that has the lists of `data.root`."""

import glob
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional, Union

from scripts.data.prepare.encoder import Copy
from scripts.data.prepare.integrity import BAD_LINE, GOOD, Finding, make_job, write_list
from scripts.executors.process_pool import PROCESSES, CrashError, Part, run_all
from utils.data.annotation_file import choose_output_names, format_label, iterate_lines, name_record
from utils.files import check_folder, check_inputs, make_drafts, report_write_errors
from utils.log import Progress
from utils.networks import Network
from utils.settings import NetworkConfig


def copy_lists(
    network: Network,
    cfg: NetworkConfig,
    out: Path,
    work: Callable[..., Finding],
    *,
    workers: int,
    executor: str = PROCESSES,
    part: Optional[Part] = None,
    suffix: str = "",
) -> tuple[dict[str, Any], dict[Copy, Finding]]:
    """Copies the listed videos and, unless it is a part, writes new lists and tables of bad lines.

    `work(job, drafts)` writes a copy, whose name ends in `suffix`, by way of the folder `drafts`.
    Its finding has the number of frames if the copy is a folder.

    Returns the counts, and {job: finding}. Raises ValueError if there are no lists of videos, two
    videos would have one copy, a list has no good video, or the folder is of somebody else.
    """
    start = time.monotonic()
    data: Any = cfg.data
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos; images are read as they are")
    if data.source == "frames":
        raise ValueError("data.source: the lists name folders already; take a recipe of videos")
    # The names in the config file, unless one of these is absolute or begins with `..`
    names = [Path(os.path.normpath(file.name)) for file in files]
    is_below = all(not name.is_absolute() and name.parts[0] != ".." for name in names)
    targets = [out / name for name in (names if is_below else choose_output_names(files))]
    tables = [target.with_name(f"{target.name}.bad.tsv") for target in targets]
    lists: list[list[tuple]] = []  # number, name, job or of a bad line its finding, path, label
    jobs: dict[str, Copy] = {}  # by target; a video may be in several lists
    for file in files:
        root = get_path_below(data.root, file.root)
        lists.append([])
        for number, text, record in iterate_lines(file):
            if isinstance(record, str):
                lists[-1].append((number, text, Finding("bad line", record), "", ""))
                continue
            # The path of the video, of a segment PATH_START_END
            segment = str(record.segment).split() if record.segment else []
            path = str(get_path_below(file.root, "_".join([record.path, *segment])))
            path = path if path.endswith(suffix) and not segment else f"{path}{suffix}"
            video = make_job(record, file, data.reader)
            job = jobs.setdefault(str(out / root / path), (video, str(out / root / path)))
            if job[0].path != video.path:
                both = f"{job[0].path} and {video.path}"
                raise ValueError(f"--out: {both} would both become {job[1]}: rename one")
            label = format_label(record.label)
            lists[-1].append((number, name_record(record), job, path, label))

    check_inputs(targets, [file.path for file in files])
    check_folder(out, {glob.escape(str(table.relative_to(out))): BAD_LINE for table in tables})
    chosen = part.select(jobs.values()) if part else list(jobs.values())
    findings: dict[Copy, Finding] = {}
    with report_write_errors(out, "--out"), make_drafts(out) as drafts:
        for table in tables:  # empty ones show whose folder it is
            table.parent.mkdir(parents=True, exist_ok=True)
            table.touch()
        results = run_all(partial(work, drafts=str(drafts)), chosen, workers, executor)
        for job, result in Progress(results, "copying", len(chosen)):
            crashed = isinstance(result, CrashError)
            findings[job] = Finding("broken", str(result)) if crashed else result
    good = sum(finding.kind == GOOD for finding in findings.values())
    counts: dict[str, Any] = {"out": str(out), "videos": good, "bad": len(chosen) - good}
    counts["seconds"] = round(time.monotonic() - start, 1)
    if part:
        return {**counts, "part": str(part)}, findings

    for file, target, lines in zip(files, targets, lists):
        bad = []
        texts = []
        for number, name, job, path, label in lines:
            finding = findings.get(job, job)
            if finding.kind != GOOD:
                bad.append((number, name, finding))
                continue
            count = f" {finding.frames}" if finding.frames else ""
            texts.append(f"{path}{count} {label}")
        write_list(file, target, texts, bad)
        if not texts:
            raise ValueError(f"{file.path} has no video that can be read")
    return {**counts, "lists": [str(target) for target in targets]}, findings


def get_path_below(folder: Path, path: Union[str, Path]) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))
