"""Reads packed lists, which `scripts/data/pack_videos.py` writes (setting `data.packed`: DIR).

DIR has a folder for every list: MindRecord shards, and the list with a row of `locations.npy` for
each of its lines. A row gives the location of a video. The reader reads the video's table first,
and then only the packets that the requested frames need. MindData can also read the shards
(`ds.MindDataset`).

All data have checksums. The reader compares the checksums of the index and of the files that it
names when it opens a list, of a video's header and table when it opens the video, and of packets
when it reads them.
"""

import contextlib
import functools
import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from utils.data.annotation_file import AnnotationFile, Record, iterate_lines
from utils.data.packed.format import HEAD, KEY, NON_REFERENCE, add_checksum, decode_table
from utils.files import compute_sha256
from utils.video.reader import MAX_PIXELS, FrameReader, VideoError, check_size

INDEX = "pack.json"
LIST = "list.txt"
log = logging.getLogger("zoo")
MAX_OPEN_SHARDS = 256  # files that a process keeps open
LOCATION_DTYPE = np.dtype(
    [("shard", "<i4"), ("offset", "<u8"), ("head", "<u4"), ("size", "<u4"), ("crc", "<u4")]
    + [("frames", "<u4"), ("psnr", "<f4")]
)
NOWHERE = -1  # shard of a line that could not be packed
USE_FOLDERS = "run scripts/data/extract_frames.py and set data.source to frames"
REPAIR = "copy it again, or run scripts/data/pack_videos.py"


class PackLocation(NamedTuple):
    """A packed video: bytes [offset, offset + size) of a shard; its head and table come first."""

    shard: str
    offset: int
    head: int  # bytes
    size: int  # bytes
    crc: int  # CRC-32 of all bytes of the video

    def read(self, start: int = 0, length: Optional[int] = None) -> bytes:
        """Bytes of the video from `start` on; OSError if the shard is too short."""
        length = self.size - start if length is None else length
        file = open_shard(self.shard)  # keep a reference: the cache of another thread may close it
        data = os.pread(file.fileno(), length, self.offset + start)
        if len(data) != length:
            raise OSError(f"{self.shard} is cut short")
        return data


@functools.lru_cache(MAX_OPEN_SHARDS)
def open_shard(shard: str):
    return open(shard, "rb", buffering=0)


class PackedVideo(FrameReader):
    """Frames of a packed video; `path` is the original file."""

    def __init__(self, path: str, location: PackLocation, max_pixels: int = MAX_PIXELS):
        super().__init__(Path(path), "packed")
        self._location = location
        self._max_pixels = max_pixels
        try:
            self._table = decode_table(location.read(0, location.head))
            if location.head + int(self._table.sizes.sum(dtype=np.int64)) != location.size:
                raise ValueError("the table is damaged: its packets are not as long as the video")
            check_size(self._table.width, self._table.height, max_pixels)
        except (OSError, ValueError) as error:
            raise self._damaged(error) from None
        self._length = self._table.frames
        self.fps = self._table.fps
        self._ends = location.head + np.cumsum(self._table.sizes, dtype=np.int64)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        try:
            from utils.video.pyav_reader import decode_h264  # which needs PyAV

            yield from decode_h264(self._needed(set(indices)), indices, self._max_pixels)
        except (OSError, ValueError) as error:
            raise error if isinstance(error, VideoError) else self._damaged(error) from None

    def _needed(self, frames: set[int]) -> Iterator[tuple[int, bytes]]:
        """(frame number, packet) of every group of pictures, up to its last requested frame."""
        numbers = self._table.numbers
        kinds = self._table.kinds
        keys = np.flatnonzero(kinds == KEY)
        requested = np.flatnonzero(np.isin(numbers, list(frames)))
        groups = np.searchsorted(keys, requested, "right") - 1
        for group in np.unique(groups):
            start = keys[group]
            last = requested[groups == group][-1]
            for i, data in enumerate(self._packets(start, last + 1), start):
                if kinds[i] != NON_REFERENCE or int(numbers[i]) in frames:
                    yield int(numbers[i]), data

    def _packets(self, start: int, end: int) -> list[bytes]:
        """The packets [start, end) in one read."""
        sizes = self._table.sizes[start:end].astype(np.int64)
        offset = int(self._ends[start] - sizes[0])
        data = self._location.read(offset, int(sizes.sum()))
        stops = np.cumsum(sizes)
        packets = [data[stop - size : stop] for stop, size in zip(stops, sizes)]
        self._table.check_packets(start, packets)
        return packets

    def _damaged(self, reason: object) -> VideoError:
        return self._error(f"its copy in {self._location.shard}: {reason}")


def read_packed(
    file: AnnotationFile, packed: Path, min_frames: int = 3
) -> tuple[list[Record], int]:
    """The records of a pack, and the number of lines that are left out.

    Checks that every shard exists. A pack does not need the original list; if that exists, it must
    not have changed. Raises ValueError for a pack that is missing, incomplete, damaged or of
    another list.
    """
    folder = pack_folder(packed, file)
    index = read_index(folder)
    if file.path.is_file() and compute_sha256(file.path) != index["list"]:
        raise ValueError(f"data.packed: {file.path} is not the list that {folder} was packed from")
    shards = check_shards(folder, index)
    if not (folder / LIST).is_file() or compute_sha256(folder / LIST) != index["list"]:
        raise ValueError(f"data.packed: {folder / LIST} is damaged; {REPAIR}")
    copy = file._replace(path=folder / LIST)
    lines = list(iterate_lines(copy, whole=not index.get("segments")))  # old packs have no segments
    records = []
    left_out = 0
    for row, (number, _, record) in zip(read_locations(folder, index, len(lines)), lines):
        if row["shard"] == NOWHERE:
            left_out += 1
        elif isinstance(record, str):
            raise ValueError(f"{folder / LIST}, line {number}: {record}")
        elif file.source == "frames" and row["frames"] < min_frames:
            left_out += 1
        else:
            values = (int(row[name]) for name in PackLocation._fields[1:])
            location = PackLocation(shards[row["shard"]], *values)
            records.append(record._replace(location=location))
    if not records:
        raise ValueError(f"data.packed: {folder} has no video that can be read")
    return records, left_out


def pack_folder(packed: Path, file: AnnotationFile) -> Path:
    """The folder of a list's pack: below `packed`, the name of the list in the config file."""
    parts = [part for part in Path(file.name).parts if part not in ("/", "..")]
    return Path(packed).joinpath(*parts)


def read_index(folder: Path) -> dict:
    """Reads pack.json; ValueError if it is missing or damaged."""
    if not (folder / INDEX).is_file():
        reason = "was not packed to its end" if folder.is_dir() else "is not there"
        raise ValueError(f"data.packed: {folder} {reason}; run scripts/data/pack_videos.py")
    try:
        index = json.loads((folder / INDEX).read_bytes())
        valid = is_index(index)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        valid = False
    if not valid:
        reason = "is damaged, or of an earlier version without checksums"
        raise ValueError(f"data.packed: {folder / INDEX} {reason}; {REPAIR}")
    if index.get("codec") == "jpeg":
        raise ValueError(f"data.packed: {folder} holds JPEG files, not H.264: {USE_FOLDERS}")
    return index


def is_index(index: object) -> bool:
    """Whether an index has its checksum (`add_checksum`)."""
    if not isinstance(index, dict) or add_checksum(index) != index:
        return False
    return isinstance(index["list"], str) and all(
        isinstance(name, str) and name == os.path.basename(name) and type(size) is int
        for name, size in index["shards"]
    )


def read_locations(folder: Path, index: dict, lines: int) -> np.ndarray:
    """LOCATION_DTYPE (lines,), a row for each line of the list; ValueError if it is damaged."""
    name = "locations" if "locations" in index else "places"  # the name in old packs
    path = folder / f"{name}.npy"
    locations = None
    with contextlib.suppress(Exception):  # NumPy's parser of a damaged header raises many kinds
        if index[name] == compute_sha256(path):
            locations = np.load(path)
    if not are_locations(locations, [size for _, size in index["shards"]], lines):
        raise ValueError(f"data.packed: {path} is damaged; {REPAIR}")
    return locations


def are_locations(locations: Any, shard_bytes: list[int], lines: int) -> bool:
    """Whether an array has LOCATION_DTYPE and all videos are inside shards of these sizes."""
    if not isinstance(locations, np.ndarray):
        return False
    if locations.dtype != LOCATION_DTYPE or locations.shape != (lines,):
        return False
    good = locations[locations["shard"] != NOWHERE]
    if not ((good["shard"] >= 0) & (good["shard"] < len(shard_bytes))).all():
        return False
    limits = np.array(shard_bytes, np.uint64)[good["shard"]]
    heads = (good["head"] >= HEAD.size) & (good["head"] <= good["size"])
    within = (good["offset"] <= limits) & (good["size"] <= limits - good["offset"])
    return bool((heads & within).all())


def check_shards(folder: Path, index: dict) -> list[str]:
    """The paths of all shards; ValueError if one is missing or has another size than written."""
    for name, size in index["shards"]:
        actual = os.path.getsize(folder / name) if (folder / name).is_file() else 0
        if actual != size:
            raise ValueError(
                f"data.packed: {folder / name} has {actual} of {size} bytes; copy it again, or "
                "remove it and run scripts/data/pack_videos.py"
            )
    return [str(folder / name) for name, _ in index["shards"]]


def is_intact(location: PackLocation) -> bool:
    """Whether the checksum of a packed video is still right."""
    try:
        return zlib.crc32(location.read()) == location.crc
    except OSError:
        return False
