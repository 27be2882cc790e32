"""What the packets of a video file tell before any is decoded. Needs PyAV.

Which stream is the video, which packets show a frame and when, and where decoding can start. NAL
units of H.264 and HEVC tell random-access points, parameter sets inside the stream, and pictures of
one field.

Source: ITU-T H.264, 7.3.2.1 (sequence parameter set) and 7.3.3 (slice header); types of units in
table 7-1, and in table 7-1 of ITU-T H.265. Only packets with lengths before the units are read, as
in MP4 and Matroska, not those with start codes.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import av
import numpy as np
from av.container import InputContainer

# Formats in which a packet is one picture and its time stamp gives the presentation order.
TIMED_FORMATS = {"mov", "mp4", "matroska", "webm"}
# Codecs of which a packet in these formats has one shown picture at most. The last ones are
# decoded in order, because this module does not find their random-access points.
INDEXED_CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9"}
TIMED_CODECS = {*INDEXED_CODECS, "av1", "mjpeg", "png", "prores"}
PARAMETER_CODECS = {"h264", "hevc", "mpeg4"}
IMAGE_CODECS = {"bmp", "gif", "jpeg2000", "mjpeg", "png", "tiff", "webp"}
DTS_FORMATS = {"avi", "asf"}  # that hold times of decoding, not of presentation
AVI_CODECS = {"mpeg4", "mjpeg"}
PICTURES = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
STILL_IMAGE = av.stream.Disposition.still_image
DEFAULT_BONUS = 5_000_000  # pixels
VOP = b"\0\0\1\xb6"  # MPEG-4: start code of a picture, whose type is in the next two bits
I_VOP = 0
B_VOP = 2
LAYER = range(0x20, 0x30)  # MPEG-4: the last byte of start codes of parameters
# MPEG-4: the mark of a file in which a packet may hold a picture and the B-picture before it
PACKED = re.compile(rb"DivX\d+(Build|b)\d+p")
MAX_GAP = 10.0  # seconds between two frames of one recording, as in FFmpeg
MAX_EMPTY_VOP = 8  # bytes of a picture that is not coded, which stands for the one before


SLICES = (1, 5)  # H.264: NAL types of whole slices
SEQUENCE = 7  # H.264: NAL type of a sequence parameter set
# Profiles whose parameter sets state the format of colours and scaling matrices.
HIGH_PROFILES = {44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244}
YUV_444 = 3
UNKNOWN = 0
MAX_HEADER = 64  # bytes of a slice that hold the part of its header that is read


class UnitTypes(NamedTuple):
    """The NAL types of a codec, and where they are."""

    shift: int  # of the type in the first byte of a unit
    mask: int
    size_byte: int  # of the header: its last two bits are the bytes of a unit's length, less one
    slices: range
    # Of slices after which no picture that is presented later refers to a picture before them
    random_access: range
    parameters: frozenset[int]


TYPES = {
    "h264": UnitTypes(0, 31, 4, range(1, 6), range(5, 6), frozenset({7, 8})),
    "hevc": UnitTypes(1, 63, 21, range(32), range(16, 22), frozenset({32, 33, 34})),
}


class BitReader:
    """Reads numbers from the content of a NAL unit; 0 after its end."""

    def __init__(self, unit: bytes):
        self._bits = "".join(f"{byte:08b}" for byte in unit[1:].replace(b"\0\0\3", b"\0\0"))

    def read(self, count: int = 1) -> int:
        bits = self._bits[:count].ljust(count, "0")
        self._bits = self._bits[count:]
        return int(bits or "0", 2)

    def read_golomb(self, count: int = 1) -> int:
        """The last of `count` numbers in the code of Golomb, without a sign."""
        value = 0
        for _ in range(count):
            zeros = 0
            while zeros < 32 and not self.read():
                zeros += 1
            value = (1 << zeros) - 1 + self.read(zeros)
        return value


def find_field_bit(header: bytes) -> Optional[int]:
    """How many bits after the third number of an H.264 slice say that it is of one field.

    None if no slice is, by the first sequence parameter set in the header of the stream; UNKNOWN if
    this has scaling matrices or separate colours, or counts the order of frames in cycles. Such
    files are rare.
    """
    unit = header[8 : 8 + int.from_bytes(header[6:8], "big")]
    if header[:1] != b"\1" or not unit or unit[0] & 31 != SEQUENCE:
        return None
    bits = BitReader(unit)
    profile = bits.read(8)
    bits.read(16)  # constraints, level
    bits.read_golomb()  # its number
    if profile in HIGH_PROFILES:
        if bits.read_golomb() == YUV_444 and bits.read():  # each colour is a picture of its own
            return UNKNOWN
        bits.read_golomb(2)  # depths of brightness and colours
        bits.read()  # lossless
        if bits.read():  # scaling matrices
            return UNKNOWN
    number_bits = 4 + bits.read_golomb()  # of a frame's number
    order = bits.read_golomb()
    if order == 1:
        return UNKNOWN
    if order == 0:
        bits.read_golomb()
    bits.read_golomb()  # reference frames
    bits.read()  # gaps in the numbers
    bits.read_golomb(2)  # width, height
    is_progressive = bits.read()
    return None if is_progressive else number_bits


def read_units(packet: Any, codec: str, header: bytes) -> Iterator[tuple[int, memoryview]]:
    """(type, unit) of a packet with a length before each unit; none if it has start codes."""
    types = TYPES.get(codec)
    if not types or header[:2] == b"\0\0" or not header[types.size_byte :] or header[0] > 1:
        return
    size = 1 + (header[types.size_byte] & 3)
    data = memoryview(packet)
    position = 0
    while position + size < len(data):
        start = position + size
        position = start + int.from_bytes(data[position:start], "big")
        if position > start:
            yield data[start] >> types.shift & types.mask, data[start:position]


def choose_stream(container: InputContainer) -> Any:
    """The video stream that FFmpeg would choose; ValueError if there is none.

    It is never a cover picture or a thumbnail, marked as such, and one of a single frame or a codec
    of images only if there is no other. Of several it is, as in the program `ffmpeg`, the one with
    most pixels, and a default one counts as if it had 5 million more.
    """
    rates: dict[Any, tuple] = {}
    for stream in container.streams.video:
        if stream.disposition & PICTURES:
            continue
        rates[stream] = ()
        if stream.codec_context is not None:
            is_image = stream.codec_context.codec.canonical_name in IMAGE_CODECS
            is_moving = stream.frames != 1 and not is_image and not stream.disposition & STILL_IMAGE
            is_default = bool(stream.disposition & av.stream.Disposition.default)
            rates[stream] = is_moving, stream.width * stream.height + is_default * DEFAULT_BONUS
    if not rates:
        raise ValueError("it has no video, or only a cover picture")
    return max(rates, key=rates.__getitem__)


def measure_missing(container: InputContainer, end: float) -> float:
    """Seconds of the declared duration after the time stamp `end` of the last packet, in seconds.

    A duration may be counted from 0 or from the first time stamp. This takes the shorter rest.
    """
    start = min(container.start_time or 0, 0) / av.time_base
    return (container.duration or 0) / av.time_base - (end - start)


class PacketTable:
    """Time stamps of packets, in decoding order, and how many frames each one shows."""

    def __init__(self, container: InputContainer, stream: Any):
        self.codec = stream.codec_context.codec.canonical_name
        self.formats = set(container.format.name.split(","))
        self._header = stream.codec_context.extradata or b""
        self._field_bit = find_field_bit(self._header) if self.codec == "h264" else None
        self.pts: list = []
        self.dts: list = []
        self.shown: list[int] = []
        self.starts: list[int] = []  # the packets from which decoding can start, as in `inspect`
        self.is_packed = False
        self.has_discarded = False
        self.last_stamp = -math.inf
        self.last_duration = 0  # of the packet with the last time stamp
        # No packet is damaged, or one field, the half of a frame, or brings other parameter sets
        # than the header has.
        self.is_regular = self._field_bit != UNKNOWN
        self.starts_clean = False  # with a picture after which none refers to an earlier one

    def add(self, packet: av.Packet) -> None:
        """Adds a packet that is not empty."""
        number = len(self.shown)
        count, is_start = self.inspect(packet)
        if not number:
            self.starts_clean = is_start
            self.is_packed = bool(PACKED.search(packet))
        elif number == 1 and self.codec == "mpeg4":
            # Such a picture refers to one before the file, and is not decoded.
            self.starts_clean &= find_vop_types(bytes(packet))[:1] != [B_VOP]
        if packet.pts is not None and packet.pts >= self.last_stamp:
            self.last_stamp = packet.pts
            self.last_duration = packet.duration or 0
        self.pts.append(packet.pts)
        self.dts.append(packet.dts)
        self.shown.append(0 if packet.is_discard else count)
        self.starts += [number] if is_start else []
        self.has_discarded |= packet.is_discard
        is_changed = not self.is_plain(packet) and self.changes_parameters(packet)
        self.is_regular &= not (packet.is_corrupt or is_changed)
        if self._field_bit is not None and self.is_regular:
            for kind, unit in read_units(packet, self.codec, self._header):
                if kind in SLICES:
                    bits = BitReader(bytes(unit[:MAX_HEADER]))
                    bits.read_golomb(3)  # the first macroblock, type, picture parameter set
                    bits.read(self._field_bit)
                    self.is_regular = not bits.read()
                    break

    def inspect(self, packet: av.Packet) -> tuple[int, bool]:
        """How many frames a packet shows, and whether all presented from it on need none before it.

        Some codecs have hidden pictures. An index may call every packet a key frame, so the packet
        tells, if this module can read it. H.264 also marks recovery points as key frames, where a
        picture builds up gradually.
        """
        is_key = bool(packet.is_keyframe)
        if self.codec == "mpeg4":
            types = find_vop_types(bytes(packet))
            return len(types), is_key and types[:1] == [I_VOP]
        if self.codec == "vp8":
            flags = memoryview(packet)[0]
            return flags >> 4 & 1, is_key and not flags & 1
        if self.codec == "vp9":
            data = memoryview(packet)
            header = int.from_bytes(bytes(data[:2]).ljust(2, b"\0"), "big")
            is_longer = header >> 12 & 3 == 3  # profile 3 has one more bit before
            # Four bits: shows an existing frame, is no key frame, is shown, resists errors
            flags = header >> (7 if is_longer else 8) & 15
            is_superframe = data[-1] >> 5 == 0b110  # which always shows one
            return 1 if is_superframe else flags >> 3 | flags >> 1 & 1, is_key and not flags & 4
        if is_key and self.codec in TYPES:
            points = TYPES[self.codec].random_access
            units = read_units(packet, self.codec, self._header)
            return 1, any(kind in points for kind, _ in units)
        return 1, is_key

    def is_plain(self, packet: av.Packet) -> bool:
        """Whether it is no key frame and begins with a slice, as most packets of H.264 do."""
        types = TYPES.get(self.codec)
        if packet.is_keyframe or not types or len(self._header) <= types.size_byte:
            return False
        first = 1 + (self._header[types.size_byte] & 3)
        data = memoryview(packet)
        return len(data) > first and data[first] >> types.shift & types.mask in types.slices

    def changes_parameters(self, packet: av.Packet) -> bool:
        """Whether a packet has parameter sets that the header of the stream has not."""
        if packet.has_sidedata("new_extradata"):
            return True
        if self.codec == "mpeg4":
            units = bytes(packet).partition(VOP)[0].split(VOP[:3])
            return any(unit and unit[0] in LAYER and unit not in self._header for unit in units)
        for kind, unit in read_units(packet, self.codec, self._header):
            if kind in TYPES[self.codec].slices:
                break
            if kind in TYPES[self.codec].parameters and unit not in self._header:
                return True
        return False

    @property
    def has_stamps(self) -> bool:
        """Whether every packet is one picture with its own time stamp, or a hidden one."""
        stamps = [pts for pts, count in zip(self.pts, self.shown) if count]
        return (
            bool(self.formats & TIMED_FORMATS)
            and self.codec in TIMED_CODECS
            and self.is_regular
            and None not in stamps
            and len(set(stamps)) == len(stamps)
            and max(self.shown, default=0) <= 1
        )

    @property
    def is_index(self) -> bool:
        """Whether packets can be decoded alone: time stamps tell which frame each of them is."""
        is_known = self.codec in INDEXED_CODECS and self.starts_clean and not self.has_discarded
        return is_known and self.has_stamps

    @property
    def counts_frames(self) -> bool:
        """Whether `shown` is right: the decoder needs no packet that is not in the file.

        Other files start inside a group of pictures, or change their parameter sets, or packets may
        be parts of pictures.
        """
        if not (self.starts_clean and self.is_regular):
            return False
        if "avi" in self.formats:
            return self.codec in AVI_CODECS and (self.is_packed or max(self.shown) <= 1)
        return self.has_stamps and self.pts[0] == min(pts for pts in self.pts if pts is not None)


def list_frame_stamps(frames: Sequence[tuple], formats: set[str], unit: float) -> np.ndarray:
    """The ascending time stamps of decoded frames, in units of `unit` seconds; empty if unknown.

    AVI and ASF hold times of decoding, which the last frames lack. Where recordings are joined, or
    the times of an Ogg file that begins below zero wrap around, the next frame follows at once.
    """
    has_dts = bool(formats & DTS_FORMATS)
    known = [dts if has_dts else pts for pts, dts in frames]
    while has_dts and known and known[-1] is None:
        known.pop()
    if None in known or len(known) < 2:
        return np.empty(0, np.int64)
    steps = np.diff(known)
    step = int(np.median(steps))
    steps[is_jump(steps * unit, formats)] = step
    steps = np.append(steps, np.full(len(frames) - len(known), step))
    return known[0] + np.append(0, np.cumsum(steps))


def is_jump(seconds: Any, formats: set[str]) -> Any:
    """Whether the time from a frame to the next is not that for which the frame is shown.

    It is negative or, in MPEG streams, longer than MAX_GAP. Takes a number, or an array.
    """
    return (seconds < 0) | (bool(formats & {"mpeg", "mpegts"}) & (seconds > MAX_GAP))


def demux_to_end(container: InputContainer, *streams: Any) -> Iterator[Optional[av.Packet]]:
    """All packets with data; at the end or before a failure None, which ends decoding.

    An empty packet of Theora repeats a picture. FFmpeg's decoder refuses it, and the program
    `ffmpeg` leaves it out.
    """
    try:
        yield from (packet for packet in container.demux(*streams) if packet.size)
    except av.error.FFmpegError:
        yield None
        raise
    yield None


def find_vop_types(data: bytes) -> list[int]:
    """The types of the coded pictures in a packet of MPEG-4."""
    starts = data.split(VOP)[1:]
    return [part[0] >> 6 for part in starts if len(part) + len(VOP) > MAX_EMPTY_VOP]
