"""Reads packed lists: what `scripts/data/pack_videos.py` wrote, `data.packed: DIR` in a yaml.

Of every list there is a folder in DIR: MindRecord shards, and the list itself with a row of
`places.npy` for each of its lines. A video is read by its place: its table first, then no more than
the packets that the wanted frames need. MindData reads the same shards whole (`ds.MindDataset`).

Everything that is read has a checksum: the index and what it names when a list is opened, the head
and table of a video when that is opened, its packets when they are read. Packs that were written
before there were checksums still open, with a warning.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from utils.data.annotation_file import (
    AnnotationFile,
    Record,
    compute_sha256,
    iterate_lines,
    read_annotations,
)
from utils.data.packed.format import EXTRA, HEAD, KEY, decode_table
from utils.video.decoders import open_video, read_jpeg
from utils.video.reader import MAX_PIXELS, FrameSource, VideoError, check_size

INDEX, LIST, LOCATIONS_FILE, BAD = "pack.json", "list.txt", "places.npy", "bad.tsv"
log = logging.getLogger("zoo")
OPEN_SHARDS = 256  # files a process keeps open
LOCATION_DTYPE = np.dtype(
    [("shard", "<i4"), ("offset", "<u8"), ("head", "<u4"), ("size", "<u4"), ("crc", "<u4")]
    + [("frames", "<u4"), ("psnr", "<f4")]
)
NOWHERE = -1  # shard of a line that could not be packed
KEYS = {"codec", "short_side", "gop", "quality", "list", "shards"}  # of an index without checksums
REPAIR = "copy it again, or run scripts/data/pack_videos.py"


class PackLocation(NamedTuple):
    """Where a packed video is: bytes [offset, offset + size) of a shard, its table's first."""

    shard: str
    offset: int
    head: int
    size: int
    crc: int

    def read(self, start: int = 0, length: Optional[int] = None) -> bytes:
        """Bytes of the video from `start` on; OSError where the shard ends before."""
        length = self.size - start if length is None else length
        file = opened(self.shard)  # held: another thread may push it out of the cache, and close it
        data = os.pread(file.fileno(), length, self.offset + start)
        if len(data) != length:
            raise OSError(f"{self.shard} is cut short")
        return data


@functools.lru_cache(OPEN_SHARDS)
def opened(shard: str):
    return open(shard, "rb", buffering=0)


class PackedVideo(FrameSource):
    """A `FrameSource` out of a shard; `path` is the file that was packed."""

    def __init__(
        self, path: Union[str, Path], location: PackLocation, max_pixels: int = MAX_PIXELS
    ):
        super().__init__(Path(path), "packed")
        self._place, self._max_pixels = location, max_pixels
        try:
            self._table = decode_table(location.read(0, location.head))
            if location.head + int(self._table.sizes.sum(dtype=np.int64)) != location.size:
                raise ValueError("the table is damaged: its packets are not as long as the video")
            check_size(self._table.width, self._table.height, max_pixels)
        except (OSError, ValueError) as error:
            raise self._damaged(error) from None
        self._length, self.fps = self._table.frames, self._table.fps
        self._ends = location.head + np.cumsum(self._table.sizes, dtype=np.int64)

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        try:
            yield from self._images(wanted) if self._table.codec == "jpeg" else self._video(wanted)
        except (OSError, ValueError) as error:
            raise error if isinstance(error, VideoError) else self._damaged(error) from None

    def _images(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """Frames of one JPEG file each, or, grey, of two: (H, W, 2)."""
        each = len(self._table.sizes) // self._table.frames
        for k in wanted:
            packets = self._packets(each * k, each * (k + 1))
            mode = "RGB" if each == 1 else "L"
            parts = [read_jpeg(data, mode, self._max_pixels) for data in packets]
            if any(part is None for part in parts):
                raise self._damaged(f"frame {k} is no JPEG file")
            yield parts[0] if each == 1 else np.stack(parts, axis=2)

    def _video(self, wanted: list[int]) -> Iterator[np.ndarray]:
        from utils.video.pyav_reader import decode_h264  # which needs PyAV

        return decode_h264(self._needed(set(wanted)), wanted, self._max_pixels)

    def _needed(self, numbers: set[int]) -> Iterator[tuple[int, bytes]]:
        """(number of the frame, packet): of every group of pictures up to the last wanted one."""
        shown, kinds = self._table.shown, self._table.kinds
        starts = np.flatnonzero(kinds == KEY)
        wanted = np.flatnonzero(np.isin(shown, list(numbers)))
        groups = np.searchsorted(starts, wanted, "right") - 1
        for group in np.unique(groups):
            first, last = starts[group], wanted[groups == group][-1]
            for i, data in enumerate(self._packets(first, last + 1), first):
                if kinds[i] != EXTRA or int(shown[i]) in numbers:
                    yield int(shown[i]), data

    def _packets(self, first: int, end: int) -> list[bytes]:
        """The packets [first, end), read at once."""
        sizes = self._table.sizes[first:end].astype(np.int64)
        start = int(self._ends[first] - sizes[0])
        data = self._place.read(start, int(sizes.sum()))
        stops = np.cumsum(sizes)
        packets = [data[stop - size : stop] for stop, size in zip(stops, sizes)]
        self._table.check(first, packets)
        return packets

    def _damaged(self, reason: object) -> VideoError:
        return self._error(f"its copy in {self._place.shard}: {reason}")


def open_record(record, data) -> FrameSource:
    """The video of a list's line, out of its shard where the list is packed.

    `data` has the settings `reader` and `max_pixels`.
    """
    if record.location is not None:
        return PackedVideo(record.path, record.location, data.max_pixels)
    return open_video(record.path, data.reader, data.max_pixels)


def read_records(file: AnnotationFile, packed: Optional[Path]) -> list[Record]:
    """The lines of a list, every one checked, or of its packed form, with every shard looked for.

    A packed list is complete without the original; where that is there too, it must not have
    changed. Raises ValueError as `read_annotations` does, and for a pack that is missing,
    unfinished, of another list, or is damaged.
    """
    records, left_out = read_packed(file, Path(packed)) if packed else read_annotations(file)
    if left_out:
        what = "too short, or unreadable when packed" if packed else "fewer than 3 frames"
        log.info("%s: %d videos are left out: %s", file.path, left_out, what)
    return records


def read_packed(
    file: AnnotationFile, packed: Path, min_frames: int = 3
) -> tuple[list[Record], int]:
    folder = pack_folder(packed, file)
    index = read_index(folder)
    if "places" not in index:
        log.warning(
            "data.packed: %s was packed without checksums: damage in it may stay unseen; "
            "scripts/data/pack_videos.py --verify looks for it",
            folder,
        )
    if file.path.is_file() and compute_sha256(file.path) != index["list"]:
        raise ValueError(f"data.packed: {file.path} is not the list that {folder} was packed from")
    shards = check_shards(folder, index)
    if not (folder / LIST).is_file() or compute_sha256(folder / LIST) != index["list"]:
        raise ValueError(f"data.packed: {folder / LIST} is damaged; {REPAIR}")
    lines = list(iterate_lines(file._replace(path=folder / LIST)))
    records, left_out = [], 0
    for row, (number, _, record) in zip(read_places(folder, index, len(lines)), lines):
        if row["shard"] == NOWHERE:
            left_out += 1
        elif isinstance(record, str):
            raise ValueError(f"{folder / LIST}, line {number}: {record}")
        elif file.source == "frames" and record.num_frames < min_frames:
            left_out += 1
        else:
            position = PackLocation(
                shards[row["shard"]], *(int(row[name]) for name in PackLocation._fields[1:])
            )
            records.append(record._replace(location=position))
    if not records:
        raise ValueError(f"data.packed: {folder} has no video that can be read")
    return records, left_out


def pack_folder(packed: Path, file: AnnotationFile) -> Path:
    """Where in DIR a list is kept: under the name that the yaml gives it."""
    parts = [part for part in Path(file.name).parts if part not in ("/", "..")]
    return Path(packed).joinpath(*parts)


def read_index(folder: Path) -> dict:
    if not (folder / INDEX).is_file():
        begun = "was not packed to its end" if folder.is_dir() else "is not there"
        raise ValueError(f"data.packed: {folder} {begun}; run scripts/data/pack_videos.py")
    try:
        index = json.loads((folder / INDEX).read_bytes())
        sound = is_index(index)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise ValueError(f"data.packed: {folder / INDEX} is damaged; {REPAIR}")
    return index


def is_index(index: object) -> bool:
    """Whether this is what `sealed` returned, or an index of before there were checksums."""
    if not isinstance(index, dict):
        return False
    if set(index) != KEYS and sealed(index) != index:
        return False
    return isinstance(index["list"], str) and all(
        isinstance(name, str) and name == os.path.basename(name) and type(size) is int
        for name, size in index["shards"]
    )


def sealed(values: dict) -> dict:
    """The values with a checksum of all others."""
    rest = {name: value for name, value in values.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True).encode()
    return {**rest, "checksum": hashlib.sha256(text).hexdigest()}


def read_places(folder: Path, index: dict, lines: int) -> np.ndarray:
    """PLACE (lines,): where the video of each line is; ValueError where the file is damaged."""
    path, positions = folder / LOCATIONS_FILE, None
    with contextlib.suppress(Exception):  # NumPy's parser of a damaged header raises many kinds
        if index.get("places") in (None, compute_sha256(path)):
            positions = np.load(path)
    if not are_places(positions, [size for _, size in index["shards"]], lines):
        raise ValueError(f"data.packed: {path} is damaged; {REPAIR}")
    return positions


def are_places(positions: Any, shards: list[int], lines: int) -> bool:
    """Whether all places are within shards of these sizes, in bytes."""
    if getattr(positions, "dtype", None) != LOCATION_DTYPE or positions.shape != (lines,):
        return False
    good = positions[positions["shard"] != NOWHERE]
    if not ((good["shard"] >= 0) & (good["shard"] < len(shards))).all():
        return False
    network = np.array(shards, np.uint64)[good["shard"]]
    heads = (good["head"] >= HEAD.size) & (good["head"] <= good["size"])
    within = (good["offset"] <= network) & (good["size"] <= network - good["offset"])
    return bool((heads & within).all())


def check_shards(folder: Path, index: dict) -> list[str]:
    """The paths of all shards; ValueError for one that is missing or not as long as written."""
    for name, size in index["shards"]:
        there = os.path.getsize(folder / name) if (folder / name).is_file() else 0
        if there != size:
            raise ValueError(
                f"data.packed: {folder / name} has {there} of {size} bytes; copy it again, or "
                "remove it and run scripts/data/pack_videos.py"
            )
    return [str(folder / name) for name, _ in index["shards"]]


def is_whole(location: PackLocation) -> bool:
    """Whether a packed video still has its check sum."""
    try:
        return zlib.crc32(location.read()) == location.crc
    except OSError:
        return False
