#!/usr/bin/env python3
"""Reads every video of a network's lists; writes lists of the good and tables of the bad ones.

    python scripts/data/check_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--frames all|ends] [--workers N] [--keep_damaged] [--network x3d]
        [--executor processes|dask:ADDRESS] [--part I/N]

`all` decodes every frame with `data.reader`. `ends` decodes the first, one in the middle and the
last one, and does not find damage elsewhere. It is several times as fast for MP4 and Matroska, and
not faster for files that have to be decoded from their start. For every list
the command writes into DIR: a list of its good lines under the same name, for the config file; and
`NAME.bad.tsv`: line number, kind, path, reason. Lists with the same name keep the folders in which
they differ, and `labels.txt` is copied. An interrupted scan, even a killed one, continues when the
command is run again; it reads a file again if the file has changed. The last line of stdout is one
JSON object: videos, good, bad, kinds, lists, read (in this run), seconds.

`--executor dask:ADDRESS` reads the videos on a Dask cluster. `--part I/N` reads part I of N, from 1
to N, and writes no list. When all parts have ended, run the command without `--part`: it writes the
lists, and reads what a part has left. Docs: docs/many_machines.md.

The command also names videos that are equal, in one list or in two, with one label or with several;
it leaves them in the lists.

Videos of the kind `damaged` can be decoded, but FFmpeg marks some of their frames as damaged. They
are left out like all bad ones; with `--keep_damaged` they stay in the list, and are in
`NAME.bad.tsv` as well.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import contextlib
import glob
import itertools
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, Optional

from scripts.data.prepare.class_folders import find_equal_files
from scripts.data.prepare.integrity import (
    DAMAGED,
    GOOD,
    Finding,
    VideoJob,
    examine,
    make_job,
    write_list,
)
from scripts.executors.process_pool import (
    PROCESSES,
    CrashError,
    Executor,
    PartOption,
    choose_workers,
    run_all,
)
from utils import cli
from utils.data.annotation_file import Record, choose_output_names, iterate_lines, name_record
from utils.files import JOURNAL, check_folder, check_inputs, report_write_errors
from utils.log import Progress
from utils.messages import join_names, print_line
from utils.networks import Network
from utils.settings import NetworkConfig
from utils.video.media_files import compute_stamp

SCAN = ".scan.jsonl"  # ending of its name; the number of a part follows
MAX_SHOWN = 5  # names in a line


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    keep_damaged: bool = False,
    frames: Literal["all", "ends"] = "all",
    workers: Optional[cli.PositiveInt] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
) -> None:
    workers = choose_workers(workers, executor)
    start = time.monotonic()
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos; there is nothing to scan")
    targets = [out / name for name in choose_output_names(files)]
    check_inputs(targets, [file.path for file in files])
    check_folder(out, {f"*{SCAN}*": JOURNAL, f"*/*{SCAN}*": JOURNAL})
    kinds: Counter[str] = Counter()
    read = 0
    kept = (GOOD, DAMAGED) if keep_damaged else (GOOD,)
    # Lists of several data sets are in several folders; only those of one folder are compared, and
    # a copy of another list than the first is not.
    folders: dict[Path, dict[str, list[Record]]] = {}
    with report_write_errors(out, "--out"):
        for file, target in zip(files, targets):
            target.parent.mkdir(parents=True, exist_ok=True)
            lines = list(iterate_lines(file))
            records = [record for *_, record in lines if isinstance(record, Record)]
            of_folder = folders.setdefault(file.path.parent, {})
            if records not in [*of_folder.values()][1:]:
                of_folder[file.name] = records
            job_of = {record: make_job(record, file, cfg.data.reader, frames) for record in records}
            jobs = list(dict.fromkeys(job_of.values()))
            chosen = part.select(jobs) if part else jobs
            findings, count = scan(chosen, target, part, workers, executor)
            read += count
            if part:
                continue
            texts = []
            bad = []
            for number, text, record in lines:
                if isinstance(record, Record):
                    name, finding = name_record(record), findings[job_of[record]]
                else:
                    name, finding = text, Finding("bad line", record)
                kinds[finding.kind] += 1
                texts += [text] if finding.kind in kept else []
                bad += [(number, name, finding)] if finding.kind != GOOD else []
            write_list(file, target, texts, bad, kept)
    seconds = round(time.monotonic() - start, 1)
    if part:
        print(json.dumps({"part": str(part), "read": read, "seconds": seconds}))
        return
    for of_folder in folders.values():
        for line in describe_repeats(of_folder):
            print_line(line)
    good = kinds.pop(GOOD, 0)
    bad = sum(kinds.values())
    result = {"videos": good + bad, "good": good, "bad": bad, "kinds": kinds}
    print(json.dumps({**result, "lists": [*map(str, targets)], "read": read, "seconds": seconds}))


def scan(
    jobs: Sequence[VideoJob], target: Path, part: Optional[PartOption], workers: int, executor: str
) -> tuple[dict[VideoJob, Finding], int]:
    """{job: its finding}, and the number of videos that were read now, not in an earlier run."""
    # Of earlier runs and of all parts, without lines that are no finding, as a kill cuts them
    earlier = {}
    for path in sorted(target.parent.glob(f"{glob.escape(target.name)}{SCAN}*")):
        for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            try:
                key, values = json.loads(line)
                earlier[key] = Finding(*values)
            except (RecursionError, TypeError, ValueError):
                continue
    findings = {}
    keys = {}  # a finding is valid until the job or the stamp of its video changes
    for job in jobs:
        stamp = None
        with contextlib.suppress(OSError):
            stamp = compute_stamp(job.path)
        keys[job] = json.dumps([*job, stamp])
        if keys[job] in earlier:
            findings[job] = earlier[keys[job]]
    pending = [job for job in jobs if job not in findings]
    suffix = f".{part.number}-of-{part.parts}" if part else ""
    journal = target.with_name(f"{target.name}{SCAN}{suffix}")
    with open(journal, "a", encoding="utf-8", errors="surrogateescape") as notes:
        notes.write("\n")  # ends a line that a kill has cut
        results = run_all(examine, jobs=pending, workers=workers, executor=executor)
        for job, result in Progress(results, target.name, len(pending)):
            if isinstance(result, CrashError):
                result = Finding("broken", str(result))
            notes.write(json.dumps([keys[job], result]) + "\n")
            notes.flush()
            findings[job] = result
    return findings, len(pending)


def describe_repeats(lists: Mapping[str, Sequence[Record]]) -> list[str]:
    """A line each about videos that a list has twice, with two labels, or that two lists have.

    The same segment of equal files is the same sample.
    """
    paths = [record.path for records in lists.values() for record in records]
    first = {path: group[0] for group in find_equal_files(paths) for path in group}
    found: dict[str, list[list[Record]]] = {}
    samples: dict[str, dict[Hashable, list[Record]]] = {}
    for name, records in lists.items():
        samples[name] = defaultdict(list)
        for record in records:
            path = os.path.normpath(first.get(record.path, record.path))
            samples[name][record.dataset_index, path, record.segment].append(record)
        repeated = [group for group in samples[name].values() if len(group) > 1]
        contrary = [group for group in repeated if any(r.label != group[0].label for r in group)]
        found[f"{name} has samples more than once"] = repeated
        found[f"{name} has equal samples with different labels"] = contrary
    for (a, of_a), (b, of_b) in itertools.combinations(samples.items(), 2):
        both = [[of_a[key][0], *group] for key, group in of_b.items() if key in of_a]
        found[f"{a} and {b} have the same samples"] = both
    return [
        f"{what} ({len(groups)}), for example "
        + join_names([*dict.fromkeys(record.path for record in groups[0])], MAX_SHOWN)
        for what, groups in found.items()
        if groups
    ]


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
