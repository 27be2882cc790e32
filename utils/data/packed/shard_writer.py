"""Writes the shards of packed lists: MindRecord files, each whole or not there at all."""

import json
import mmap
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from mindspore.mindrecord import FileWriter

from utils.data.packed.encoder import Packed
from utils.data.packed.reader import sealed
from utils.files import write_text
from utils.video.integrity import Finding

SCHEMA = {
    "path": {"type": "string"},
    "label": {"type": "int32"},
    "frames": {"type": "int32"},
    "video": {"type": "bytes"},  # utils/data/packed/format.py
}
HEADER = 2**20  # bytes before the first page
PAGES = 2**25, 2**28  # bytes: MindRecord's usual page, and the largest; what is unused is a hole
UNFINISHED = "unfinished"  # a folder


class Row(NamedTuple):
    """One packed video in a shard; `line` counts the lines of the list from 0."""

    line: int
    offset: int
    head: int
    size: int
    crc: int
    frames: int
    psnr: float


class Waiting(NamedTuple):
    """A packed video in the spool, where its payload is."""

    offset: int
    size: int  # of the payload
    crc: int
    head: bytes
    frames: int
    psnr: float


class Spool:
    """The videos of one shard, in the order in which they are done, until all are there."""

    def __init__(self, folder: Path, name: str, page: int):
        self.folder, self.name, self.page = folder, name, page
        self.videos: dict[int, Waiting] = {}  # by line
        self.bad: dict[int, Finding] = {}
        (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
        self.file = open(folder / UNFINISHED / f"{name}.spool", "w+b")  # noqa: SIM115 - held open

    @property
    def done(self) -> int:
        return len(self.videos) + len(self.bad)

    def add(self, line: int, result: Union[Packed, Finding]) -> None:
        network = self.page - 1024  # MindRecord has something to note too
        if isinstance(result, Packed) and len(result.head) + len(result.payload) > network:
            size = len(result.payload)
            result = Finding("too large", f"{size} bytes packed, and there is room for {network}")
        if isinstance(result, Finding):
            self.bad[line] = result
            return
        offset = self.file.seek(0, os.SEEK_END)
        self.file.write(result.payload)
        of_file = offset, len(result.payload), result.crc
        self.videos[line] = Waiting(*of_file, result.head, result.frames, result.psnr)

    def write_shard(self, lines: Sequence[int], described: dict[int, dict[str, Any]]) -> None:
        """Writes the videos, in the order of `lines`, and last a note that the shard is done."""
        lines = [line for line in lines if line in self.videos]
        temporary, target = self.folder / UNFINISHED / self.name, self.folder / self.name
        for old in (temporary, Path(f"{temporary}.db")):
            old.unlink(missing_ok=True)
        try:
            self.write(temporary, lines, described)
        except RuntimeError as error:  # what MindRecord raises
            raise OSError(str(error).splitlines()[0]) from None
        rows = self.located(temporary, lines)
        note_of(target).unlink(missing_ok=True)
        for end in (".db", ""):
            settle(f"{temporary}{end}")
            os.replace(f"{temporary}{end}", f"{target}{end}")
        note = {"bytes": target.stat().st_size, "rows": rows, "bad": list(self.bad.items())}
        write_text(note_of(target), json.dumps(sealed(note)))
        self.file.close()
        os.remove(self.file.name)

    def write(self, path: Path, lines: Sequence[int], described: dict[int, dict[str, Any]]) -> None:
        writer = FileWriter(str(path))
        writer.set_header_size(HEADER)
        writer.set_page_size(self.page)
        writer.add_schema(SCHEMA, "packed videos")
        for line in lines:
            video = self.videos[line]
            self.file.seek(video.offset)
            data = video.head + self.file.read(video.size)
            writer.write_raw_data([{**described[line], "frames": video.frames, "video": data}])
        writer.commit()

    def located(self, path: Path, lines: list[int]) -> list[Row]:
        """Where each video is, found by its head; it must be there to the last byte."""
        rows, position = [], 0
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for line in lines:
                video = self.videos[line]
                position, size = data.find(video.head, position), len(video.head) + video.size
                if position < 0 or zlib.crc32(data[position : position + size]) != video.crc:
                    raise OSError(f"{path} does not hold what was written to it")
                about = len(video.head), size, video.crc, video.frames, video.psnr
                rows.append(Row(line, position, *about))
                position += size
        return rows


def settle(path: str) -> None:
    """On the disk before anything says so; and for all to read: MindRecord keeps files private."""
    os.chmod(path, 0o644)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def page_size(originals: Iterable[int]) -> int:
    """A power of two with room for the largest of a list's videos, once packed.

    It must be the same in all shards, so it goes by the sizes of the originals.
    """
    size, wanted = PAGES[0], min(8 * max(originals, default=0), PAGES[1])
    while size < wanted:
        size *= 2
    return size


def note_of(shard: Path) -> Path:
    return shard.with_name(f"{shard.name}.json")


def read_note(shard: Path) -> Optional[dict]:
    """What was noted of a shard, where it is as long as noted; else None: to be written anew."""
    try:
        note = json.loads(note_of(shard).read_bytes())
        sound = set(note) == {"bytes", "rows", "bad"} or sealed(note) == note
        return note if sound and shard.stat().st_size == note["bytes"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
