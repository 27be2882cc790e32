"""Writes H.264 videos whose frames are coded as two fields, each a sample of the file (PAFF).

No encoder of FFmpeg writes such files, so the stream is made here: pictures of 32 x 32 pixels in
macroblocks without compression (ITU-T H.264, 7.3).
"""

import io
from fractions import Fraction
from pathlib import Path
from typing import Optional

import av

START = b"\0\0\0\1"
RATE = 25


class BitWriter:
    def __init__(self):
        self.bits = ""

    def write(self, *values: int, size: int = 1) -> None:
        self.bits += "".join(format(value, f"0{size}b") for value in values)

    def write_golomb(self, *values: int) -> None:
        for value in values:
            self.write(value + 1, size=2 * (value + 1).bit_length() - 1)

    def fill_byte(self) -> None:
        self.bits += "0" * (-len(self.bits) % 8)

    def make_unit(self, head: int) -> bytes:
        """A NAL unit with a start code, and with no start code in its content."""
        self.write(1)
        self.fill_byte()
        data = int(self.bits, 2).to_bytes(len(self.bits) // 8, "big")
        content = bytearray()
        for byte in data:
            if content[-2:] == b"\0\0" and byte <= 3:
                content.append(3)
            content.append(byte)
        return START + bytes([head]) + bytes(content)


def make_parameters() -> bytes:
    """Main profile, level 3, frame numbers of 4 bits, order as decoded, 32 x 32 pixels, fields."""
    sequence = BitWriter()
    sequence.write(77, 0, 30, size=8)
    sequence.write_golomb(0, 0, 2, 1)
    sequence.write(0)
    sequence.write_golomb(1, 0)
    sequence.write(0, 0, 1, 0, 0)
    pictures = BitWriter()
    pictures.write_golomb(0, 0)
    pictures.write(0, 0)
    pictures.write_golomb(0, 0, 0)
    pictures.write(0, 0, 0, 0)  # weights
    pictures.write_golomb(0, 0, 0)
    pictures.write(0, 0, 0)
    return sequence.make_unit(0x67) + pictures.make_unit(0x68)


def make_picture(number: int, grey: int, field: Optional[int], is_first: bool = False) -> bytes:
    """A grey picture: the field 0 or 1 of frame `number`, or the whole frame."""
    slice_ = BitWriter()
    slice_.write_golomb(0, 7, 0)
    slice_.write(number % 16, size=4)
    slice_.write(*((0,) if field is None else (1, field)))
    if is_first:
        slice_.write_golomb(0)
        slice_.write(0)
    slice_.write(0)
    slice_.write_golomb(0)
    for _ in range(4 if field is None else 2):
        slice_.write_golomb(25)  # without compression
        slice_.fill_byte()
        slice_.write(*[grey] * 256, *[128] * 128, size=8)
    return slice_.make_unit(0x65 if is_first else 0x61)


def write_field_video(path: Path, count: int, whole: int = 0) -> Path:
    """Writes `count` frames, each lighter than the last; every `whole`-th is not in fields."""
    samples = []  # (time in fields, data)
    for number in range(count):
        grey = 20 + 4 * number
        if whole and number % whole == 0 and number:
            samples.append((2 * number, make_picture(number, grey, None)))
            continue
        samples.append((2 * number, make_picture(number, grey, 0, is_first=not number)))
        samples.append((2 * number + 1, make_picture(number, grey + 9, 1)))
    parameters = make_parameters()
    raw = parameters + b"".join(data for _, data in samples)
    with av.open(io.BytesIO(raw), format="h264") as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for stamp, data in samples:
            packet = av.Packet(data if stamp else parameters + data)
            packet.pts = stamp
            packet.dts = stamp
            packet.time_base = Fraction(1, 2 * RATE)
            packet.stream = stream
            packet.is_keyframe = not stamp
            container.mux(packet)
    return path
