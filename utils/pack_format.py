"""One packed video as bytes: a head, a table of its packets, the packets.

A packet is an H.264 picture or a JPEG file. The head stands first so that a reader can fetch it
alone, and then only the packets it needs. All numbers are little-endian.
"""

import struct
from typing import NamedTuple

import numpy as np

CODECS = ("video", "jpeg")
# codec, height, width, frames, packets, frames per second
HEAD = struct.Struct("<4sBHHIId")
MAGIC = b"zoo1"
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

    def encode(self) -> bytes:
        head = (MAGIC, CODECS.index(self.codec), self.height, self.width, self.frames)
        return HEAD.pack(*head, len(self.sizes), self.fps) + b"".join(
            column.astype(kind).tobytes()
            for column, kind in zip((self.sizes, self.shown, self.kinds), ("<u4", "<u4", "u1"))
        )


def decode_table(data: bytes) -> Table:
    """The inverse of `Table.encode`; ValueError for what is none."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        raise ValueError("no packed video begins here")
    _, codec, height, width, frames, packets, fps = HEAD.unpack_from(data)
    if len(data) != HEAD.size + 9 * packets:
        raise ValueError("the table of packets is cut short")
    if codec >= len(CODECS) or (CODECS[codec] == "jpeg" and packets not in (frames, 2 * frames)):
        raise ValueError("the head is damaged")
    sizes = np.frombuffer(data, "<u4", packets, HEAD.size)
    shown = np.frombuffer(data, "<u4", packets, HEAD.size + 4 * packets)
    kinds = np.frombuffer(data, "u1", packets, HEAD.size + 8 * packets)
    return Table(CODECS[codec], height, width, frames, fps, sizes, shown, kinds)
