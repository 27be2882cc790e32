"""Packs a list, shard after shard; an interrupted packing goes on with the shards that are missing.

In the folder of a list: the shards, each with MindRecord's index (`.db`) and a note of what is in
it (`.json`); `settings.json`, by what it was begun; and, when all is there, the list, `places.npy`
with a row for each of its lines, `bad.tsv`, and last of all `pack.json`, without which nobody
reads it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Union

import numpy as np
from tqdm import tqdm

from utils.data.annotation_file import AnnotationFile, Record, iterate_lines
from utils.data.packed.encoder import Form, job_of, pack
from utils.data.packed.reader import (
    BAD,
    INDEX,
    LIST,
    LOCATION_DTYPE,
    LOCATIONS_FILE,
    NOWHERE,
    compute_sha256,
    sealed,
)
from utils.data.packed.shard_writer import UNFINISHED, Spool, page_size, read_note, settle
from utils.files import lock_folder, report_write_errors, write_text
from utils.process_pool import Crashed, run_all
from utils.video.integrity import Finding, table_row

READ_BY = ("root", "source", "num_classes", "image_tmpl", "flow")  # what says what lines mean
MOST = 500  # videos of a shard, about
FEWEST = 8
EVEN = 48  # where there are that many shards, their number is a multiple of this: it divides well


class Plan(NamedTuple):
    """What becomes of one list."""

    file: AnnotationFile
    folder: Path
    form: Form
    shards: int  # 0: by the number of videos
    texts: list[tuple[int, str]]  # the list's lines and their numbers
    lines: list[Union[Record, str]]  # what each says, or what is wrong with it
    known_bad: dict[str, Finding]  # by path; not even tried

    def dealt(self) -> dict[str, list[int]]:
        """The lines of every shard, in a drawn order, by the shard's name."""
        bad = self.bad()
        good = [k for k in range(len(self.lines)) if k not in bad]
        if not good:
            raise ValueError(f"{self.file.path} has no video to pack")
        drawn = np.random.RandomState(0).permutation(good).tolist()
        count = min(self.shards or usual_shards(len(drawn)), len(drawn))
        ends = [len(drawn) * k // count for k in range(count + 1)]
        return {
            f"shard-{k:05d}-of-{count:05d}.mindrecord": drawn[ends[k] : ends[k + 1]]
            for k in range(count)
        }

    def bad(self) -> dict[int, Finding]:
        """The lines that are bad before anything is read."""
        result = {}
        for k, record in enumerate(self.lines):
            if isinstance(record, str):
                result[k] = Finding("bad line", record)
            elif record.path in self.known_bad:
                result[k] = self.known_bad[record.path]
        return result

    def page_size(self) -> int:
        return page_size(size_of(says) for says in self.lines if isinstance(says, Record))

    def record(self, line: int) -> Record:
        """The record of a line that is not bad."""
        record = self.lines[line]
        assert isinstance(record, Record), record
        return record

    def described(self, lines: Sequence[int]) -> dict[int, dict]:
        """What a shard says of its videos besides their pixels."""
        return {
            line: {
                "path": os.fsencode(self.record(line).path).decode(errors="replace"),
                "label": self.record(line).label,
            }
            for line in lines
        }


def plan_of(file: AnnotationFile, folder: Path, form: Form, shards: int, known_bad: dict) -> Plan:
    read = list(iterate_lines(file))
    texts, lines = [(number, text) for number, text, _ in read], [says for *_, says in read]
    return Plan(file, folder, form, shards, texts, lines, known_bad)


def usual_shards(videos: int) -> int:
    """Numbers that divide well: of some hundred videos a shard or, of a few videos, some shards."""
    if videos < FEWEST * EVEN:
        return 2 ** max(0, (videos // FEWEST).bit_length() - 1)
    return EVEN * -(-videos // (EVEN * MOST))


def pack_lists(plans: list[Plan], reader: str, workers: int) -> list[dict]:
    """Packs what is not packed yet; says of each list what there is then.

    Of that, `packed` videos in this run.
    """
    locks = []  # held until the end: nobody else may write here
    for plan in plans:
        with report_write_errors(plan.folder, "--out"):
            locks.append(begin(plan))
    dealt = [plan.dealt() for plan in plans]
    missing = [
        {name: shards[name] for name in shards if not is_done(plan, name)}
        for plan, shards in zip(plans, dealt)
    ]
    pack_shards(plans, missing, reader, workers)
    results = []
    for plan, shards, made in zip(plans, dealt, missing):
        with report_write_errors(plan.folder, "--out"):
            shutil.rmtree(plan.folder / UNFINISHED, ignore_errors=True)
            packed = sum(map(len, made.values()))
            results.append({**finish(plan, list(shards)), "packed": packed})
    return results


def is_done(plan: Plan, name: str) -> bool:
    """Whether a shard is there, and nothing that was missing then is there now."""
    note = read_note(plan.folder / name)
    return note is not None and not any(
        kind == "missing" and os.path.exists(plan.lines[line].path)
        for line, (kind, *_) in note["bad"]
    )


def begin(plan: Plan) -> IO:
    """Notes what is being packed, so that nothing else goes on in the same folder; the lock."""
    settings = {
        **plan.form._asdict(),
        "shards": plan.shards,
        "list": compute_sha256(plan.file.path),
    }
    settings.update({name: str(getattr(plan.file, name)) for name in READ_BY})
    settings["bad"] = hashlib.sha256(
        repr(sorted(plan.known_bad)).encode("utf-8", "replace")
    ).hexdigest()
    plan.folder.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(plan.folder)
    if lock is None:
        raise ValueError(f"--out: {plan.folder} is being packed by another process")
    begun = plan.folder / "settings.json"
    if begun.is_file():
        for key, value in read_settings(begun).items():
            if settings.get(key) != value:
                raise ValueError(
                    f"--out: {plan.folder} was begun with another {key} ({value}, now "
                    f"{settings[key]}); remove the folder or choose another"
                )
    shutil.rmtree(plan.folder / UNFINISHED, ignore_errors=True)
    write_text(begun, json.dumps(settings))
    return lock


def read_settings(path: Path) -> dict:
    """What a folder was begun with; ValueError where the file is damaged."""
    try:
        result = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict) or not isinstance(result.get("list"), str):
        raise ValueError(
            f"--out: {path} is damaged; remove the folder, or choose another, and pack again"
        )
    return result


def pack_shards(
    plans: list[Plan], missing: list[dict[str, list[int]]], reader: str, workers: int
) -> None:
    """Packs in parallel; a shard is written when the last of its videos is done."""
    jobs = [
        ((which, name, line), job_of(plan.record(line), plan.file, reader), plan.form)
        for which, plan in enumerate(plans)
        for name, lines in missing[which].items()
        for line in lines
    ]
    spools: dict[tuple, Spool] = {}
    pages = [plan.page_size() for plan in plans]
    results = run_all(pack, jobs, workers)
    for ((which, name, line), *_), result in tqdm(results, "packing", len(jobs), disable=None):
        plan, lines = plans[which], missing[which][name]
        with report_write_errors(plan.folder, "--out"):
            spool = spools.get((which, name)) or Spool(plan.folder, name, pages[which])
            spools[which, name] = spool
            crashed = isinstance(result, Crashed)
            spool.add(line, Finding("broken", str(result)) if crashed else result)
            if spool.done == len(lines):
                spools.pop((which, name)).write_shard(lines, plan.described(lines))


def finish(plan: Plan, names: list[str]) -> dict:
    """Writes what readers need, the index last."""
    folder, bad = plan.folder, plan.bad()
    positions = np.zeros(len(plan.lines), LOCATION_DTYPE)
    positions["shard"] = NOWHERE
    shards = []
    for shard, name in enumerate(names):
        note = read_note(folder / name)
        shards.append((name, note["bytes"]))
        bad.update({line: Finding(*finding) for line, finding in note["bad"]})
        for line, *row in note["rows"]:
            positions[line] = (shard, *row)
    write_text(folder / BAD, "".join(f"{row}\n" for row in table_of(plan, bad)))
    lost = [k for k in np.flatnonzero(positions["shard"] == NOWHERE) if k not in bad]
    begun = read_settings(folder / "settings.json")["list"]
    if lost or compute_sha256(plan.file.path) != begun:
        raise ValueError(f"{plan.file.path} has changed while it was packed; remove {folder}")
    good = positions[positions["shard"] != NOWHERE]
    if not len(good):
        raise ValueError(f"{plan.file.path} has no video that can be packed; see {folder / BAD}")
    shutil.copyfile(plan.file.path, folder / f"{LIST}.tmp")
    np.save(folder / f"tmp.{LOCATIONS_FILE}", positions)
    for temporary, name in ((f"{LIST}.tmp", LIST), (f"tmp.{LOCATIONS_FILE}", LOCATIONS_FILE)):
        settle(str(folder / temporary))
        os.replace(folder / temporary, folder / name)
    index = {**plan.form._asdict(), "list": begun, "shards": shards}
    index["places"] = compute_sha256(folder / LOCATIONS_FILE)
    write_text(folder / INDEX, json.dumps(sealed(index)))
    original = np.flatnonzero(positions["shard"] != NOWHERE)
    return {
        "videos": len(good),
        "bad": len(bad),
        "shards": len(shards),
        "bytes": int(good["size"].sum(dtype=np.int64)),
        "original_bytes": sum(size_of(plan.lines[k]) for k in original),
        "psnr": good["psnr"],
    }


def table_of(plan: Plan, bad: dict[int, Finding]) -> Iterator[str]:
    """Rows as `scripts/data/check_videos.py` writes them."""
    for line in sorted(bad):
        number, text = plan.texts[line]
        record = plan.lines[line]
        yield table_row(number, bad[line], record.path if isinstance(record, Record) else text)


def size_of(record: Record) -> int:
    """Bytes of a video, or, about, of a folder of frames: looking at each takes hours."""
    if not os.path.isdir(record.path):
        return os.path.getsize(record.path) if os.path.isfile(record.path) else 0
    first = next(os.scandir(record.path), None)
    return first.stat().st_size * (record.num_frames or 1) if first else 0
