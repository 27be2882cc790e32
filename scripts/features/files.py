"""The source of features and the files that they are written to."""

import base64
import contextlib
import csv
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Optional

import numpy as np

from scripts.executors.part_files import PartFiles, RunJobs, job_key
from scripts.executors.process_pool import Part
from scripts.features.jobs import DTYPE
from scripts.prediction.files import list_videos
from utils.config import NetworkConfig, VideoData
from utils.data.annotation_file import AnnotationFile, Record, format_label
from utils.data.records import read_records
from utils.evaluate.predict import Head
from utils.files import lock_folder, open_replacement, report_write_errors
from utils.networks import Network

LISTS = (".txt", ".csv")  # of annotation files
FEATURES = "features"
PART_LOCK = ".lock-{}"
HEADER_BYTES = 128  # of any shape with up to 20 digits: NumPy pads to a multiple of 64
COLUMNS = ("path", "start", "end", "label")


class Item(NamedTuple):
    """A video of the source; `path` and `label` are those of the index, `label` may be empty."""

    record: Record
    path: str
    label: str


def find_list(network: Network, cfg: NetworkConfig, sources: Sequence[str]) -> Optional[Path]:
    """The annotation file if it is the source; None for videos and folders.

    Raises ValueError for a list beside other sources, or for a network of images.
    """
    lists = [Path(source) for source in sources if Path(source).suffix.lower() in LISTS]
    if not lists:
        return None
    if len(sources) > 1:
        raise ValueError(f"SOURCE: the list {lists[0]} must be the only one")
    if not network.list_annotation_files(cfg):
        raise ValueError(f"SOURCE: {network.name} reads images or folders of images, not a list")
    return lists[0]


def list_items(sources: Sequence[str], suffixes: Sequence[str]) -> list[Item]:
    """The items of videos and folders, without labels."""
    videos = enumerate(list_videos(sources, suffixes), 1)
    return [
        Item(Record(path, num_frames=None, label=0, line=k), path=path, label="")
        for k, path in videos
    ]


def read_items(path: Path, files: Sequence[AnnotationFile], cfg: NetworkConfig) -> list[Item]:
    """The items of a list; labels may be any integer that is not negative.

    A list of the config file has the folder of its videos, and its pack; another list has the
    folder of the first one. Raises ValueError for bad lines.
    """
    assert isinstance(cfg.data, VideoData)
    own = [file for file in files if file.path.resolve() == path.resolve()]
    file = (own or files)[0]._replace(path=path, num_classes=sys.maxsize)
    records = read_records(file, cfg.data.packed if own else None)
    paths = [record.path.removeprefix(f"{file.root}/") for record in records]
    return [Item(record, path, format_label(record.label)) for record, path in zip(records, paths)]


def choose_head(path: Optional[Path], heads: Sequence[Head]) -> int:
    """The index of the head in whose folder the list is, else 0."""
    folders = [head.names_file.parent.resolve() for head in heads if head.names_file]
    return folders.index(path.resolve().parent) if path and path.resolve().parent in folders else 0


def make_key(settings: str, record: Record) -> str:
    """A key as `job_key` makes it; of a packed video, with size and time of its shard."""
    path = record.location.shard if record.location else record.path
    values = (record.path, record.num_frames, record.location, record.segment)
    return job_key(settings, path, *values)


class FeatureFiles:
    """Writes features.npy and index.csv row by row."""

    def __init__(self, array: IO[bytes], table: IO[str]):
        self.array = array
        self.table = csv.writer(table)
        self.table.writerow(COLUMNS)
        self.shape = (0, 0)

    def add(self, item: Item, record: dict) -> None:
        """Adds the rows of a video."""
        if self.shape == (0, 0):
            self.write_header()
        self.array.write(base64.b64decode(record["features"]))
        self.table.writerows([item.path, *times, item.label] for times in record["times"])
        self.shape = (self.shape[0] + len(record["times"]), record["width"])

    def write_header(self) -> None:
        """Writes the header, again when the number of rows is known."""
        self.array.seek(0)
        header = {"descr": DTYPE, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self.array, header)
        assert self.array.tell() == HEADER_BYTES


@contextlib.contextmanager
def open_feature_files(folder: Path) -> Iterator[FeatureFiles]:
    """The files, which replace those in `folder` when they are complete.

    index.csv is the last one: if it exists, it is that of features.npy.
    """
    array = folder / f"{FEATURES}.npy"
    table = folder / "index.csv"
    temporary = array.with_name(f"{array.name}.tmp")
    try:
        with open(temporary, "wb") as data, open_replacement(table, newline="") as text:
            files = FeatureFiles(data, text)
            yield files
            files.write_header()
            data.flush()
            os.fsync(data.fileno())
            table.unlink(missing_ok=True)
            os.replace(temporary, array)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_parts(folder: Path, part: Optional[Part]) -> Iterator[None]:
    """Locks the folder for one part, or for all; ValueError if another process holds the lock."""
    locks = [lock_folder(folder, shared=part is not None)]
    if part:
        locks.append(lock_folder(folder, PART_LOCK.format(part.file_name)))
    try:
        if None in locks:
            raise ValueError(
                f"--out: another process writes into {folder}; wait for it, or use another folder"
            )
        yield
        if not part:
            for path in folder.glob(PART_LOCK.format("*")):
                path.unlink()
    finally:
        for lock in filter(None, locks):
            lock.close()


def write_features(
    items: Sequence[Item],
    folder: Path,
    run_jobs: RunJobs[Record],
    settings: str,
    part: Optional[Part] = None,
) -> dict:
    """Writes features.npy and index.csv; returns the result of the command.

    Each finished video is a line in the file of its part: a command that was killed continues
    there. With `part`, that is all. Without, the rows of all parts are joined, and their files are
    removed. A broken video is a line on stderr, and has no row. Raises ValueError if no video can
    be read, or if another process writes into the folder.
    """
    start = time.monotonic()
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        with lock_parts(folder, part):
            chosen = part.select(items) if part else items
            keys = {item.record: make_key(settings, item.record) for item in chosen}
            part_files = PartFiles(folder, FEATURES, part or Part(1, 1))
            records = part_files.complete(keys, run_jobs, name="extracting features")
            opened = contextlib.nullcontext() if part else open_feature_files(folder)
            errors = []
            with opened as files:
                for (_, record), item in zip(records, chosen):
                    if "error" in record:
                        errors.append(record["error"])
                        print(f"error: {errors[-1]}", file=sys.stderr)
                    elif files:
                        files.add(item, record)
                if files and not files.shape[0]:
                    part_files.delete()
                    raise ValueError("none of the videos was read")
            end = {"videos": len(chosen), "failed": len(errors), "out": str(folder)}
            end["seconds"] = round(time.monotonic() - start, 2)
            if part:
                return {"part": str(part), **end}
            part_files.delete()
    return {"features": [*files.shape], **end}
