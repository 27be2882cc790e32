"""Reads every video of a network's lists, and writes lists of the good and of the bad ones.

    python scripts/data/check_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--frames all|ends] [--workers N] [--keep_damaged] [--network x3d]

`all` decodes every frame with the reader of the yaml; `ends` the first, one in the middle and the
last ones: several times as fast, and blind to damage elsewhere. For every list there will be, in
DIR: the list of its good lines, under its own name, to be named in the yaml in its place; and
`NAME.bad.tsv`: line number, kind, path, reason. Lists of one name keep the folders in which they
differ, and `labels.txt` goes along. An interrupted scan, even a killed one, goes on where it was; a
file that has changed is read again. The last line of stdout is one JSON object: videos, good, bad,
kinds, lists, read (in this run), seconds.

Videos of the kind `damaged` can be decoded, and FFmpeg marks some of their frames as damaged. They
are left out as all bad ones are; `--keep_damaged` leaves them in the list, and in `NAME.bad.tsv`.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Literal, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tqdm import tqdm

from utils import cli
from utils.data.annotation_file import AnnotationFile, choose_output_names, iterate_lines
from utils.files import report_write_errors, write_text
from utils.messages import escape_control
from utils.networks import Network
from utils.process_pool import Crashed, run_all
from utils.video.integrity import DAMAGED, GOOD, Finding, Job, examine, table_row

SHOWN = 5  # bad videos named on stderr


def main(
    network: Network,
    cfg,
    *,
    out: Path,
    keep_damaged: bool = False,
    frames: Literal["all", "ends"] = "all",
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    workers = workers or os.cpu_count() or 1
    began, files = time.monotonic(), network.dataset.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos; there is nothing to scan")
    kinds, read = Counter(), 0
    for file, name in zip(files, choose_output_names(files)):
        if file.path.resolve() == (out / name).resolve():
            raise ValueError(f"--out {out} is the folder of {file.path}, which would be replaced")
    with report_write_errors(out, "--out"):
        targets = [out / name for name in choose_output_names(files)]
        for file, target in zip(files, targets):
            target.parent.mkdir(parents=True, exist_ok=True)
            lines, new = scan(file, cfg.data.reader, frames, workers, target)
            left_out = write_lists(target, lines, {GOOD, DAMAGED} if keep_damaged else {GOOD})
            tell_bad(target, left_out, len(lines))
            copy_names(file.path, target)
            kinds.update(finding.kind for _, _, _, finding in lines)
            read += new
    good = kinds.pop(GOOD, 0)
    result = {"videos": good + sum(kinds.values()), "good": good, "bad": sum(kinds.values())}
    lists = [str(target) for target in targets]
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**result, "kinds": kinds, "lists": lists, "read": read, "seconds": seconds}))


def scan(
    file: AnnotationFile, reader: str, depth: str, workers: int, target: Path
) -> tuple[list[tuple[int, str, str, Finding]], int]:
    """(line number, line, path, finding) of every line, and how many videos were read for it."""
    matches, jobs, lines = {}, {}, list(iterate_lines(file))
    journal = target.with_name(f"{target.name}.scan.jsonl")
    known = read_journal(journal)
    for number, _, record in lines:
        if isinstance(record, str):
            matches[number] = Finding("bad line", record)
            continue
        frames = record.num_frames if file.source == "frames" else 0
        form = (frames, file.image_tmpl, file.flow, file.max_pixels)
        job = Job(record.path, reader, depth, *form)
        if (key := state_of(job)) in known:
            matches[number] = known[key]
        else:
            jobs.setdefault(job, []).append(number)
    with open(journal, "a", encoding="utf-8", errors="surrogateescape") as notes:
        notes.write("\n")  # what a kill has cut stays a line of its own
        results = run_all(examine, jobs, workers)
        for job, result in tqdm(results, file.path.name, len(jobs), disable=None):
            if isinstance(result, Crashed):
                result = Finding("broken", str(result))
            notes.write(json.dumps([state_of(job), result]) + "\n")
            notes.flush()
            matches.update(dict.fromkeys(jobs[job], result))
    paths = {number: getattr(record, "path", "") for number, _, record in lines}
    return [(n, text, paths[n], matches[n]) for n, text, _ in lines], len(jobs)


def state_of(job: Job) -> str:
    """What a finding holds for: the job, and the size and age of the file."""
    try:
        stat = os.stat(job.path)
        return json.dumps([*job, stat.st_size, stat.st_mtime_ns])
    except OSError:
        return json.dumps([*job, None, None])


def read_journal(path: Path) -> dict[str, Finding]:
    """What earlier runs found; the last line may have been cut by a kill."""
    known = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            try:
                key, finding = json.loads(line)
            except ValueError:  # cut
                continue
            known[key] = Finding(*finding)
    return known


def write_lists(target: Path, lines: list, kept: set) -> list[tuple[str, Finding]]:
    """Writes the list of the lines of the kinds to keep, and the table of all that are not good.

    Returns (path or line, finding) of those left out.
    """
    good = [text for _, text, _, finding in lines if finding.kind in kept]
    rows = [
        table_row(number, finding, path or text)
        for number, text, path, finding in lines
        if finding.kind != GOOD
    ]
    write_text(target, "".join(line + "\n" for line in good))
    write_text(target.with_name(f"{target.name}.bad.tsv"), "".join(row + "\n" for row in rows))
    return [(path or text, finding) for _, text, path, finding in lines if finding.kind not in kept]


def tell_bad(target: Path, bad: list[tuple[str, Finding]], lines: int) -> None:
    for path, finding in bad[:SHOWN]:
        text = escape_control(f"left out: {path}: {finding.kind}, {finding.reason}")
        print(text, file=sys.stderr)
    if bad:
        print(f"{len(bad)} of {lines} left out, all in {target}.bad.tsv", file=sys.stderr)


def copy_names(source: Path, target: Path) -> None:
    """The names of the classes beside a list stay beside it."""
    names = source.with_name("labels.txt")
    if names.is_file():
        text = names.read_text(encoding="utf-8", errors="surrogateescape")
        write_text(target.with_name("labels.txt"), text)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
