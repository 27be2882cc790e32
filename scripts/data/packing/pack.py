"""Packs annotation files into shards; an interrupted packing continues with the missing shards.

The folder of a list holds:
    shard-*.mindrecord: the shards, each with MindRecord's index (`.db`) and a note of its rows
        (`.json`);
    settings.json: the settings with which the packing was started;
    list.txt: a copy of the list; locations.npy: a row for each of its lines; bad.tsv: the videos
        that are left out; pack.json: the index. These four are written when all shards are
        complete, pack.json last. Readers need it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Optional, Union

import numpy as np

from scripts.data.integrity import Finding, make_job, table_row
from scripts.data.packing.encoder import EncodeOptions, pack_video
from scripts.data.packing.shard_writer import (
    UNFINISHED,
    Spool,
    choose_page_size,
    read_note,
    sync_file,
)
from scripts.executors.process_pool import CrashError, Part, run_all
from utils.data.annotation_file import AnnotationFile, Record, iterate_lines, name_record
from utils.data.packed.format import add_checksum
from utils.data.packed.reader import INDEX, LIST, LOCATION_DTYPE, NOWHERE
from utils.files import check_outputs, compute_sha256, lock_folder, report_write_errors, write_text
from utils.progress import track

BAD = "bad.tsv"
# How lines are read
LIST_SETTINGS = ("root", "source", "num_classes", "image_tmpl", "flow", "folder_fps")
LOCATIONS_FILE = "locations.npy"
MAX_SHARD_VIDEOS = 500  # about
MIN_SHARD_VIDEOS = 8
SHARD_MULTIPLE = 48  # large lists have a multiple of 48 shards: many numbers of ranks divide it


class PackPlan(NamedTuple):
    """One list to pack."""

    file: AnnotationFile
    folder: Path  # of its pack
    options: EncodeOptions
    shards: int  # their number; 0: by the number of videos
    lines: list[tuple[int, str, Union[Record, str]]]  # of `iterate_lines`
    known_bad: dict[str, Finding]  # of an earlier scan, by path; these videos are not tried

    def assign_shards(self) -> dict[str, list[int]]:
        """{name of a shard: its lines in random order}."""
        bad = self.find_bad_lines()
        good = [k for k in range(len(self.lines)) if k not in bad]
        if not good:
            raise ValueError(f"{self.file.path} has no video to pack")
        shuffled = np.random.RandomState(0).permutation(good).tolist()
        count = min(self.shards or choose_shard_count(len(shuffled)), len(shuffled))
        ends = [len(shuffled) * k // count for k in range(count + 1)]
        return {
            f"shard-{k:05d}-of-{count:05d}.mindrecord": shuffled[ends[k] : ends[k + 1]]
            for k in range(count)
        }

    def find_bad_lines(self) -> dict[int, Finding]:
        """The lines that are bad before any video is read."""
        result = {}
        for k, (*_, record) in enumerate(self.lines):
            if isinstance(record, str):
                result[k] = Finding("bad line", record)
            elif name_record(record) in self.known_bad:
                result[k] = self.known_bad[name_record(record)]
        return result

    def record(self, line: int) -> Record:
        """The record of a line that is not bad."""
        record = self.lines[line][2]
        assert isinstance(record, Record), record
        return record


def plan_packing(
    file: AnnotationFile, folder: Path, options: EncodeOptions, shards: int, known_bad: dict
) -> PackPlan:
    """Reads a list; the arguments are fields of PackPlan."""
    return PackPlan(
        file,
        folder=folder,
        options=options,
        shards=shards,
        lines=list(iterate_lines(file)),
        known_bad=known_bad,
    )


def choose_shard_count(videos: int) -> int:
    """A power of two of shards with 8 to 16 videos; for larger lists, a multiple of 48."""
    if videos < MIN_SHARD_VIDEOS * SHARD_MULTIPLE:
        return 2 ** max(0, (videos // MIN_SHARD_VIDEOS).bit_length() - 1)
    return SHARD_MULTIPLE * -(-videos // (SHARD_MULTIPLE * MAX_SHARD_VIDEOS))


def pack_lists(
    plans: list[PackPlan], reader: str, workers: int, executor: str, part: Optional[Part] = None
) -> list[dict]:
    """Packs all shards that are not complete; returns the counts of each list.

    `packed` counts the videos of this run, the other counts are of the whole pack. With
    `part`, packs only its shards, and the counts are `shards` and `packed` of this run.
    """
    locks = []  # held until the end, so that no other process writes into these folders
    for plan in plans:
        with report_write_errors(plan.folder, "--out"):
            locks += start_packing(plan, part)
    shards = [plan.assign_shards() for plan in plans]
    missing = [
        {
            name: own[name]
            for name in (part.select(own) if part else own)
            if not is_complete(plan, name)
        }
        for plan, own in zip(plans, shards)
    ]
    pack_shards(plans, missing=missing, reader=reader, workers=workers, executor=executor)
    results = []
    for plan, own, written in zip(plans, shards, missing):
        packed = sum(map(len, written.values()))
        if part:
            results.append({"shards": len(written), "packed": packed})
            continue
        with report_write_errors(plan.folder, "--out"):
            shutil.rmtree(plan.folder / UNFINISHED, ignore_errors=True)
            results.append({**finish_packing(plan, list(own)), "packed": packed})
    return results


def is_complete(plan: PackPlan, name: str) -> bool:
    """Whether a shard is complete, and its videos are the same: none of another size exists now."""
    note = read_note(plan.folder / name)
    if note is None:
        return False
    sizes = {line: original_bytes(plan.record(line)) for line, _ in note.get("sizes", ())}
    return not any(sizes[line] not in (0, size) for line, size in note.get("sizes", ()))


def start_packing(plan: PackPlan, part: Optional[Part]) -> list[IO]:
    """Locks the folder and writes settings.json; returns the locks.

    Parts may lock it together. Raises ValueError if the folder is locked or was started with other
    settings.
    """
    settings = {"codec": "video", **plan.options._asdict(), "shards": plan.shards}
    settings["list"] = compute_sha256(plan.file.path)
    settings.update({name: str(getattr(plan.file, name)) for name in LIST_SETTINGS})
    bad = repr(sorted(plan.known_bad)).encode("utf-8", "replace")
    settings["bad"] = hashlib.sha256(bad).hexdigest()
    plan.folder.mkdir(parents=True, exist_ok=True)
    locks = [lock_folder(plan.folder, shared=part is not None)]
    drafts = plan.folder / UNFINISHED
    if part:
        drafts.mkdir(exist_ok=True)
        locks.append(lock_folder(drafts, f".lock.{part.file_name}"))
    if None in locks:
        raise ValueError(f"--out: {plan.folder} is being packed by another process")
    path = plan.folder / "settings.json"
    if not path.exists():
        check_outputs([plan.folder / name for name in (BAD, LIST, LOCATIONS_FILE, INDEX)])
        if any(file.suffix != ".json" and file.name[0] != "." for file in list_files(drafts)):
            raise ValueError(f"--out: {drafts} is not of a pack: move it away")
    if path.is_file():
        for key, value in read_settings(path).items():
            if settings.get(key) != value:
                raise ValueError(
                    f"--out: {plan.folder} was begun with another {key} ({value}, now "
                    f"{settings[key]}); remove the folder or choose another"
                )
    if part:  # others may write it at the same time
        draft = drafts / f"settings.{part.file_name}.json"
        write_text(draft, json.dumps(settings))
        os.replace(draft, path)
    else:
        shutil.rmtree(drafts, ignore_errors=True)
        write_text(path, json.dumps(settings))
    return locks


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def read_settings(path: Path) -> dict:
    """Reads settings.json; ValueError if it is damaged."""
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
    plans: list[PackPlan],
    missing: list[dict[str, list[int]]],
    reader: str,
    workers: int,
    executor: str,
) -> None:
    """Encodes videos in parallel; writes a shard as soon as its last video is encoded."""
    jobs = [
        ((which, name, line), make_job(plan.record(line), plan.file, reader), plan.options)
        for which, plan in enumerate(plans)
        for name, lines in missing[which].items()
        for line in lines
    ]
    spools: dict[tuple, Spool] = {}
    originals = [[r for *_, r in plan.lines if isinstance(r, Record)] for plan in plans]
    pages = [choose_page_size(map(original_bytes, own)) for own in originals]
    results = run_all(pack_video, jobs=jobs, workers=workers, executor=executor)
    for ((which, name, line), *_), result in track(results, "packing", len(jobs)):
        plan = plans[which]
        lines = missing[which][name]
        with report_write_errors(plan.folder, "--out"):
            spool = spools.get((which, name)) or Spool(plan.folder, name, pages[which])
            spools[which, name] = spool
            crashed = isinstance(result, CrashError)
            spool.add(line, Finding("broken", str(result)) if crashed else result)
            if len(spool) == len(lines):
                records = {line: plan.record(line) for line in lines}
                sizes = [(line, original_bytes(record)) for line, record in records.items()]
                spools.pop((which, name)).write_shard(records, sizes)


def finish_packing(plan: PackPlan, names: list[str]) -> dict:
    """Writes the files that readers need, the index last; returns the counts of the pack."""
    folder = plan.folder
    bad = plan.find_bad_lines()
    locations = np.zeros(len(plan.lines), LOCATION_DTYPE)
    locations["shard"] = NOWHERE
    shards = []
    for shard, name in enumerate(names):
        note = read_note(folder / name)
        shards.append((name, note["bytes"]))
        bad.update({line: Finding(*finding) for line, finding in note["bad"]})
        for line, *row in note["rows"]:
            locations[line] = (shard, *row)
    write_text(folder / BAD, "".join(f"{row}\n" for row in list_bad_rows(plan, bad)))
    is_packed = locations["shard"] != NOWHERE
    missing_lines = [k for k in np.flatnonzero(~is_packed) if k not in bad]
    list_sha256 = read_settings(folder / "settings.json")["list"]
    if missing_lines or compute_sha256(plan.file.path) != list_sha256:
        raise ValueError(f"{plan.file.path} has changed while it was packed; remove {folder}")
    good = locations[is_packed]
    if not len(good):
        raise ValueError(f"{plan.file.path} has no video that can be packed; see {folder / BAD}")
    shutil.copyfile(plan.file.path, folder / f"{LIST}.tmp")
    np.save(folder / f"tmp.{LOCATIONS_FILE}", locations)
    for temporary, name in ((f"{LIST}.tmp", LIST), (f"tmp.{LOCATIONS_FILE}", LOCATIONS_FILE)):
        sync_file(folder / temporary)
        os.replace(folder / temporary, folder / name)
    index = {"codec": "video", **plan.options._asdict(), "list": list_sha256, "shards": shards}
    records = [plan.record(k) for k in np.flatnonzero(is_packed)]
    index["segments"] = records[0].segment is not None
    index["locations"] = compute_sha256(folder / LOCATIONS_FILE)
    write_text(folder / INDEX, json.dumps(add_checksum(index)))
    return {
        "videos": len(good),
        "bad": len(bad),
        "shards": len(shards),
        "bytes": int(good["size"].sum(dtype=np.int64)),
        # Segments of one video count it once.
        "original_bytes": sum(map(original_bytes, {r.path: r for r in records}.values())),
        "psnr": good["psnr"],
    }


def list_bad_rows(plan: PackPlan, bad: dict[int, Finding]) -> Iterator[str]:
    """The rows of bad.tsv, in the format of `scripts/data/check_videos.py`."""
    for line in sorted(bad):
        number, text, record = plan.lines[line]
        name = name_record(record) if isinstance(record, Record) else text
        yield table_row(number, bad[line], name)


def original_bytes(record: Record) -> int:
    """Bytes of a video file; of a frame folder by its first frame: all would take hours."""
    if not os.path.isdir(record.path):
        return os.path.getsize(record.path) if os.path.isfile(record.path) else 0
    frame = next((entry for entry in os.scandir(record.path) if entry.name[0] != "."), None)
    return frame.stat().st_size * (record.num_frames or 1) if frame else 0
