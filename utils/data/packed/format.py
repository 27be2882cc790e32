"""One packed video as bytes: a head, a table of its packets, a checksum of both, the packets.

A packet is an H.264 picture or a JPEG file. The head stands first so that a reader can fetch it
alone, and then only the packets it needs; the table has a checksum of each. All numbers are
little-endian.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

CODECS = ("video", "jpeg")
# codec, height, width, frames, packets, frames per second
HEAD = struct.Struct("<4sBHHIId")
MAGIC, PLAIN = b"zoo2", b"zoo1"  # PLAIN: written before there were checksums
CHECKSUM = struct.Struct("<I")  # CRC-32
EXTRA, REFERENCE, KEY = 0, 1, 2  # nothing is made from it; something is; decoding may begin here


class Table(NamedTuple):
    """What is where. Packets stand in the order in which they are decoded.

    A frame of optical flow is two JPEG packets, x and y.
    """

    codec: str
    height: int
    width: int
    frames: int
    fps: float  # 0 where nobody says
    sizes: np.ndarray  # uint32 (packets,): bytes
    shown: np.ndarray  # uint32 (packets,): the number of the frame
    kinds: np.ndarray  # uint8 (packets,): EXTRA, REFERENCE or KEY
    checksums: Optional[np.ndarray]  # uint32 (packets,): CRC-32; None in a pack without them

    def encode(self) -> bytes:
        head = (MAGIC, CODECS.index(self.codec), self.height, self.width, self.frames)
        kinds = {"sizes": "<u4", "shown": "<u4", "kinds": "u1", "checksums": "<u4"}
        data = HEAD.pack(*head, len(self.sizes), self.fps) + b"".join(
            getattr(self, name).astype(kind).tobytes() for name, kind in kinds.items()
        )
        return data + CHECKSUM.pack(zlib.crc32(data))

    def check(self, first: int, packets: Sequence[bytes]) -> None:
        """Raises ValueError if the packets from number `first` on are not what was packed."""
        if self.checksums is None:
            return
        for number, data in enumerate(packets, first):
            if zlib.crc32(data) != self.checksums[number]:
                raise ValueError(f"packet {number} is damaged: its checksum differs")


def decode_table(data: bytes) -> Table:
    """The inverse of `Table.encode`; ValueError for other bytes, and for damaged ones."""
    if len(data) < HEAD.size or data[:4] not in (MAGIC, PLAIN):
        raise ValueError("no packed video begins here")
    magic, codec, height, width, frames, packets, fps = HEAD.unpack_from(data)
    more = 0 if magic == PLAIN else 4 * packets + CHECKSUM.size
    if len(data) != HEAD.size + 9 * packets + more:
        raise ValueError("the table of packets is cut short, or its head is damaged")
    if more and CHECKSUM.pack(zlib.crc32(data[: -CHECKSUM.size])) != data[-CHECKSUM.size :]:
        raise ValueError("the head or the table is damaged: the checksum differs")
    counts = {"video": (frames,), "jpeg": (frames, 2 * frames)}
    known = codec < len(CODECS) and frames and packets in counts[CODECS[codec]]
    if not known or not 0 <= fps < math.inf:
        raise ValueError("the head is damaged")
    sizes = np.frombuffer(data, "<u4", packets, HEAD.size)
    shown = np.frombuffer(data, "<u4", packets, HEAD.size + 4 * packets)
    kinds = np.frombuffer(data, "u1", packets, HEAD.size + 8 * packets)
    checksums = np.frombuffer(data, "<u4", packets, HEAD.size + 9 * packets) if more else None
    return Table(CODECS[codec], height, width, frames, fps, sizes, shown, kinds, checksums)
