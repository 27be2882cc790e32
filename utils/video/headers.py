"""What the first bytes and the headers of files tell: MP4 and playlists.

FFmpeg makes an index of all samples when it opens a file. An MP4 of a few hundred bytes may declare
2**31 samples, by a number alone or by edits that repeat the same samples. FFmpeg would then fill
the memory, or be busy for hours. So `check_header` compares the declared numbers first.
"""

import os
import string
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Union

from utils.video.reader import VideoError, WrongContentError, reading

PARENTS = {"moov", "edts", "mdia", "minf", "stbl", "moof", "traf"}
COUNT_OFFSETS = {"stsz": 8, "stz2": 8, "elst": 4, "trun": 4}  # of the number of entries in a box
ENTRIES_PER_BYTE = 2  # a sample has at least a byte of data; edits may repeat some samples
MIN_LIMIT = 2**16  # entries that any file may declare
# The first bytes of playlists; ID3 is a tag that may precede one. decord would open the
# files that a playlist names, and wait for the files of a live one.
PLAYLISTS = (b"#EXTM3U", b"ffconcat", b"ID3")
CHARACTERS = set(string.ascii_letters + string.digits + " ")


class Mp4Box(NamedTuple):
    """A box with its content in the bytes [start, end) of the file, which may be shorter."""

    kind: str
    start: int
    end: int


def check_header(path: Union[str, Path], reader: str) -> None:
    """Raises WrongContentError for a playlist, VideoError for an MP4 too small for its index."""
    with reading(path, reader), open(path, "rb") as file:
        if file.read(max(map(len, PLAYLISTS))).startswith(PLAYLISTS):
            raise WrongContentError(path, reader, "its content is a playlist or a song")
        size = os.fstat(file.fileno()).st_size
        entries = count_entries(file, size)
    if entries > max(MIN_LIMIT, ENTRIES_PER_BYTE * size):
        raise VideoError(path, reader, f"its index has {entries} entries for {size} bytes")


def count_entries(file: BinaryIO, size: int) -> int:
    """Samples times edits of all tracks, and samples of all fragments; 0 if it is not an MP4."""
    entries = 0
    for box in find_boxes(file, Mp4Box("", 0, size), {"trak", "trun"}):
        tables = [box] if box.kind == "trun" else find_boxes(file, box, {"stsz", "stz2", "elst"})
        samples, edits = 0, 1
        for table in tables:
            file.seek(table.start + COUNT_OFFSETS[table.kind])
            count = int.from_bytes(file.read(4), "big")
            if table.kind == "elst":
                edits = max(edits, count)
            else:
                samples = max(samples, count)
        entries += samples * edits
    return entries


def find_boxes(file: BinaryIO, parent: Mp4Box, kinds: set[str]) -> Iterator[Mp4Box]:
    """All boxes of these kinds below `parent`."""
    for box in read_boxes(file, parent.start, parent.end):
        box = box._replace(end=min(box.end, parent.end))
        if box.kind in kinds:
            yield box
        elif box.kind in PARENTS:
            yield from find_boxes(file, box, kinds)


def read_boxes(file: BinaryIO, start: int, end: int) -> Iterator[Mp4Box]:
    """The boxes of the bytes [start, end), up to the first bytes that are not a box."""
    while start < end:
        file.seek(start)
        head = file.read(16)
        if len(head) < 8:
            return
        size, kind = struct.unpack(">I4s", head[:8])
        name = kind.decode("latin-1")
        length = 8
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
            length = 16
        elif size == 0:  # to the end
            size = end - start
        if not set(name) <= CHARACTERS or size < length:
            return
        yield Mp4Box(name, start + length, start + size)
        start += size
