"""Writes the shards of packed lists: complete MindRecord files, or none."""

import json
import mmap
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional, Union

from mindspore.mindrecord import FileWriter

from scripts.data.integrity import Finding
from scripts.data.packing.encoder import EncodedVideo
from utils.data.annotation_file import Record, format_label, name_record
from utils.data.packed.format import add_checksum
from utils.files import set_default_mode, write_text

SCHEMA = {
    "path": {"type": "string"},
    "label": {"type": "int32"},
    "frames": {"type": "int32"},
    "video": {"type": "bytes"},  # utils/data/packed/format.py
}
HEADER_BYTES = 2**20  # before the first page
# Bytes: MindRecord's default and its limit; unused: a hole
MIN_PAGE = 2**25
MAX_PAGE = 2**28
PAGE_OVERHEAD = 1024  # bytes of a page that MindRecord uses itself
UNFINISHED = "unfinished"  # a folder


class ShardRow(NamedTuple):
    """One packed video in a shard; `line` counts the lines of the list from 0; sizes in bytes."""

    line: int
    offset: int
    head: int
    size: int
    crc: int
    frames: int
    psnr: float


class Spool:
    """Collects the videos of one shard in a temporary file, in any order, until all are there."""

    def __init__(self, folder: Path, name: str, page: int):
        self.folder = folder
        self.name = name
        self.page = page
        # By line: a row with the offset of the payload in the temporary file; the header.
        self.videos: dict[int, tuple[ShardRow, bytes]] = {}
        self.bad: dict[int, Finding] = {}
        (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
        self.file = open(folder / UNFINISHED / f"{name}.spool", "w+b")  # noqa: SIM115 - held open

    def __len__(self) -> int:
        return len(self.videos) + len(self.bad)

    def add(self, line: int, result: Union[EncodedVideo, Finding]) -> None:
        if isinstance(result, Finding):
            self.bad[line] = result
            return
        head, payload, frames, psnr = result
        size = len(head) + len(payload)
        limit = self.page - PAGE_OVERHEAD
        if size > limit:
            reason = f"{len(payload)} bytes packed, and a page has {limit}"
            self.bad[line] = Finding("too large", reason)
            return
        offset = self.file.seek(0, os.SEEK_END)
        self.file.write(payload)
        self.videos[line] = (
            ShardRow(
                line,
                offset=offset,
                head=len(head),
                size=size,
                crc=result.crc,
                frames=frames,
                psnr=psnr,
            ),
            head,
        )

    def write_shard(self, records: dict[int, Record], sizes: list[tuple[int, int]]) -> None:
        """Writes the videos in the order of `records`, then the note that the shard is complete.

        `sizes` are (line, bytes of the original video), for the note.
        """
        records = {line: record for line, record in records.items() if line in self.videos}
        temporary = self.folder / UNFINISHED / self.name
        target = self.folder / self.name
        for old in (temporary, Path(f"{temporary}.db")):
            old.unlink(missing_ok=True)
        try:
            self.write_mindrecord(temporary, records)
        except RuntimeError as error:  # of MindRecord
            raise OSError(str(error).splitlines()[0]) from None
        rows = self.locate_videos(temporary, records)
        note_path(target).unlink(missing_ok=True)
        for end in (".db", ""):
            sync_file(f"{temporary}{end}")
            os.replace(f"{temporary}{end}", f"{target}{end}")
        note = {"bytes": target.stat().st_size, "rows": rows, "bad": list(self.bad.items())}
        note["sizes"] = sizes
        write_text(note_path(target), json.dumps(add_checksum(note)))
        self.file.close()
        os.remove(self.file.name)

    def write_mindrecord(self, path: Path, records: dict[int, Record]) -> None:
        writer = FileWriter(str(path))
        writer.set_header_size(HEADER_BYTES)
        writer.set_page_size(self.page)
        several = any(isinstance(record.label, tuple) for record in records.values())
        label_type = {"label": {"type": "string"}} if several else {}
        writer.add_schema({**SCHEMA, **label_type}, "packed videos")
        for line, record in records.items():
            row, head = self.videos[line]
            self.file.seek(row.offset)
            data = head + self.file.read(row.size - row.head)
            name = os.fsencode(name_record(record)).decode(errors="replace")
            label = format_label(record.label) if several else record.label
            values = {"path": name, "label": label, "frames": row.frames, "video": data}
            writer.write_raw_data([values])
        writer.commit()

    def locate_videos(self, path: Path, lines: Iterable[int]) -> list[ShardRow]:
        """The rows with their offsets in a MindRecord file.

        MindRecord does not report offsets, so this searches for the head of each video. It then
        compares the checksum of all bytes of the video.
        """
        rows = []
        position = 0
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for line in lines:
                row, head = self.videos[line]
                position = data.find(head, position)
                if position < 0 or zlib.crc32(data[position : position + row.size]) != row.crc:
                    raise OSError(f"{path} does not hold what was written to it")
                rows.append(row._replace(offset=position))
                position += row.size
        return rows


def sync_file(path: Union[str, Path]) -> None:
    """Makes a file durable; the umask decides who may read it: MindRecord makes files private."""
    set_default_mode(Path(path))
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def choose_page_size(originals: Iterable[int]) -> int:
    """A power of two, in bytes, that holds the largest video of a list once it is packed.

    It must be the same in all shards, so it is chosen by the sizes of the original files.
    """
    needed = min(8 * max(originals, default=0), MAX_PAGE)
    return max(MIN_PAGE, 2 ** (needed - 1).bit_length())


def note_path(shard: Path) -> Path:
    return shard.with_name(f"{shard.name}.json")


def read_note(shard: Path) -> Optional[dict]:
    """The note of a complete shard; None if the shard must be written again."""
    try:
        note = json.loads(note_path(shard).read_bytes())
        valid = add_checksum(note) == note
        return note if valid and shard.stat().st_size == note["bytes"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
