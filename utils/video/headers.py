"""What the first bytes and the headers of files tell: MP4, AVI, ASF, and playlists.

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
ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
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
        if box.kind == "trun":
            entries += read_count(file, box)
            continue
        counts = {"stsz": 0, "stz2": 0, "elst": 1}
        for table in find_boxes(file, box, set(counts)):
            counts[table.kind] = max(counts[table.kind], read_count(file, table))
        entries += max(counts["stsz"], counts["stz2"]) * counts["elst"]
    return entries


def read_count(file: BinaryIO, box: Mp4Box) -> int:
    """The number of entries of a box of COUNT_OFFSETS."""
    file.seek(box.start + COUNT_OFFSETS[box.kind])
    return int.from_bytes(file.read(4), "big")


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


def find_truncation(path: Path) -> str:
    """How an MP4, AVI or ASF is cut short, by the sizes of its outermost boxes; "" if it is not.

    Only this finds an MP4 that is cut before its index.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(16)
        if head[:4] == b"RIFF" and len(head) >= 8:
            declared = struct.unpack("<I", head[4:8])[0] + 8
            return f"{size} of {declared} bytes are there" if declared > size else ""
        if head == ASF_HEADER:
            declared = find_asf_end(file, size)
            return f"{size} of {declared} bytes are there" if declared > size else ""
        if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
            return ""
        boxes = list(read_boxes(file, 0, size))
    if boxes and boxes[-1].end > size:
        return f"{size} of at least {boxes[-1].end} bytes are there"
    has_index = {box.kind for box in boxes} & {"moov", "moof"}
    return "" if has_index else f"it ends after {size} bytes, before its index"


def find_asf_end(file: BinaryIO, size: int) -> int:
    """Where the last object of an ASF file ends; an object is an ID of 16 bytes, a size, content.

    The data of a broadcast, which has no end, have the size 0.
    """
    end = 0
    while end < size:
        file.seek(end + 16)
        length = int.from_bytes(file.read(8), "little")
        if length < 24:
            break
        end += length
    return end
