"""Byte format of one packed video: a header, a table of its packets, a checksum, the packets.

A packet is an H.264 picture. A reader fetches header and table first, and then only
the packets it needs; the table has a checksum of each. All numbers are little-endian.
"""

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# magic, 0, height, width, frames, packets, frames per second
HEAD = struct.Struct("<4sBHHIId")
MAGIC = b"zoo2"
CHECKSUM = struct.Struct("<I")  # CRC-32
# Kinds of packets: no other picture refers to it; some do; decoding can start here.
NON_REFERENCE = 0
REFERENCE = 1
KEY = 2


class PacketTable(NamedTuple):
    """The packets of a video in decoding order."""

    height: int
    width: int
    frames: int
    fps: float  # 0 if unknown
    sizes: np.ndarray  # uint32 (packets,): bytes
    numbers: np.ndarray  # uint32 (packets,): the frame number
    kinds: np.ndarray  # uint8 (packets,): NON_REFERENCE, REFERENCE or KEY
    checksums: np.ndarray  # uint32 (packets,): CRC-32

    def encode(self) -> bytes:
        types = {"sizes": "<u4", "numbers": "<u4", "kinds": "u1", "checksums": "<u4"}
        shape = (self.height, self.width, self.frames, len(self.sizes))
        data = HEAD.pack(MAGIC, 0, *shape, self.fps) + b"".join(
            getattr(self, name).astype(dtype).tobytes() for name, dtype in types.items()
        )
        return data + CHECKSUM.pack(zlib.crc32(data))

    def check_packets(self, start: int, packets: Sequence[bytes]) -> None:
        """Raises ValueError if a checksum of the packets from number `start` on differs."""
        for number, data in enumerate(packets, start):
            if zlib.crc32(data) != self.checksums[number]:
                raise ValueError(f"packet {number} is damaged: its checksum differs")


def add_checksum(values: dict) -> dict:
    """The values of a JSON file of a pack, and their SHA-256 as `checksum`."""
    content = {name: value for name, value in values.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True).encode()
    return {**content, "checksum": hashlib.sha256(text).hexdigest()}


def decode_table(data: bytes) -> PacketTable:
    """The inverse of `PacketTable.encode`; ValueError for other or damaged bytes."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        raise ValueError("no packed video begins here")
    _, zero, height, width, frames, packets, fps = HEAD.unpack_from(data)
    if len(data) != HEAD.size + 13 * packets + CHECKSUM.size:
        raise ValueError("the table of packets is cut short, or its head is damaged")
    if CHECKSUM.pack(zlib.crc32(data[: -CHECKSUM.size])) != data[-4:]:
        raise ValueError("the head or the table is damaged: the checksum differs")
    if zero or not frames or packets != frames or not 0 <= fps < math.inf:
        raise ValueError("the head is damaged")
    sizes = np.frombuffer(data, "<u4", packets, HEAD.size)
    numbers = np.frombuffer(data, "<u4", packets, HEAD.size + 4 * packets)
    kinds = np.frombuffer(data, "u1", packets, HEAD.size + 8 * packets)
    checksums = np.frombuffer(data, "<u4", packets, HEAD.size + 9 * packets)
    return PacketTable(
        height,
        width=width,
        frames=frames,
        fps=fps,
        sizes=sizes,
        numbers=numbers,
        kinds=kinds,
        checksums=checksums,
    )
