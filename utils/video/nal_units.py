"""What the NAL units of H.264 and HEVC packets tell.

That is: random-access points, parameter sets inside the stream, and pictures of one field.

Source: ITU-T H.264, 7.3.2.1 (sequence parameter set) and 7.3.3 (slice header); types of units in
table 7-1, and in table 7-1 of ITU-T H.265. Only packets with lengths before the units are read, as
in MP4 and Matroska, not those with start codes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

SLICES = (1, 5)  # H.264: NAL types of whole slices
SEQUENCE = 7  # H.264: NAL type of a sequence parameter set
# Profiles whose parameter sets state the format of colours and scaling matrices.
HIGH_PROFILES = {44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244}
YUV_444 = 3
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
        self._data = unit[1:].replace(b"\0\0\3", b"\0\0")
        self._position = 0

    def read(self, bits: int = 1) -> int:
        value = 0
        for position in range(self._position, self._position + bits):
            byte = self._data[position // 8] if position // 8 < len(self._data) else 0
            value = value << 1 | byte >> 7 - position % 8 & 1
        self._position += bits
        return value

    def read_golomb(self) -> int:
        """A number in the code of Golomb, without a sign."""
        zeros = 0
        while zeros < 32 and not self.read():
            zeros += 1
        return (1 << zeros) - 1 + self.read(zeros)

    def read_signed(self) -> int:
        value = self.read_golomb()
        return (value + 1) // 2 if value % 2 else -(value // 2)


class Sequence(NamedTuple):
    """What a sequence parameter set says about the headers of slices."""

    has_planes: bool  # each colour is coded as a picture of its own
    number_bits: int  # of a frame's number
    may_have_fields: bool


def read_sequence(unit: bytes) -> Sequence:
    """Reads the NAL unit of a sequence parameter set."""
    bits = BitReader(unit)
    profile = bits.read(8)
    bits.read(16)  # constraints, level
    bits.read_golomb()  # its number
    has_planes = False
    if profile in HIGH_PROFILES:
        colours = bits.read_golomb()
        has_planes = colours == YUV_444 and bool(bits.read())
        bits.read_golomb()  # depth of brightness
        bits.read_golomb()  # depth of colours
        bits.read()  # lossless
        if bits.read():
            skip_scaling(bits, 12 if colours == YUV_444 else 8)
    number_bits = 4 + bits.read_golomb()
    order = bits.read_golomb()
    if order == 0:
        bits.read_golomb()
    elif order == 1:
        bits.read()
        bits.read_golomb()
        bits.read_golomb()
        for _ in range(min(bits.read_golomb(), 255)):
            bits.read_golomb()
    bits.read_golomb()  # reference frames
    bits.read()  # gaps in the numbers
    bits.read_golomb()  # width
    bits.read_golomb()  # height
    return Sequence(has_planes, number_bits=number_bits, may_have_fields=not bits.read())


def skip_scaling(bits: BitReader, count: int) -> None:
    """Reads scaling matrices, six of 4 x 4 and then those of 8 x 8."""
    for index in range(count):
        scale = 8
        following = 8
        for _ in range(16 if index < 6 else 64) if bits.read() else ():
            if following:
                following = (scale + bits.read_signed()) % 256
            scale = following or scale


def read_units(packet: Any, codec: str, header: bytes) -> Iterator[tuple[int, memoryview]]:
    """(type, unit) of a packet with a length before each unit; none if it has start codes."""
    types = TYPES[codec]
    if header[:2] == b"\0\0" or header[:1] > b"\1" or len(header) <= types.size_byte:
        return
    size = 1 + (header[types.size_byte] & 3)
    data = memoryview(packet)
    position = 0
    while position + size < len(data):
        start = position + size
        position = start + int.from_bytes(data[position:start], "big")
        if position > start:
            yield data[start] >> types.shift & types.mask, data[start:position]


def is_random_access(packet: Any, codec: str, header: bytes) -> bool:
    """Whether a packet is a picture after which none refers to an earlier one."""
    points = TYPES[codec].random_access
    return any(kind in points for kind, _ in read_units(packet, codec, header))


def has_other_parameters(packet: Any, codec: str, header: bytes) -> bool:
    """Whether a packet brings parameter sets that are not in the header of the stream."""
    types = TYPES[codec]
    for kind, unit in read_units(packet, codec, header):
        if kind in types.slices:
            break
        if kind in types.parameters and unit not in header:
            return True
    return False


def find_sequence(header: bytes) -> Optional[Sequence]:
    """The first sequence parameter set in the header of the stream, if there is one."""
    unit = header[8 : 8 + int.from_bytes(header[6:8], "big")]
    is_sequence = header[:1] == b"\1" and unit and unit[0] & 31 == SEQUENCE
    return read_sequence(unit) if is_sequence else None


def has_field(packet: Any, header: bytes, sequence: Sequence) -> bool:
    """Whether a packet holds a picture of one field, the half of a frame."""
    for kind, unit in read_units(packet, "h264", header):
        if kind in SLICES:
            bits = BitReader(bytes(unit[:MAX_HEADER]))
            bits.read_golomb()  # the first macroblock
            bits.read_golomb()  # the type of the slice
            bits.read_golomb()  # the picture parameter set
            bits.read((2 if sequence.has_planes else 0) + sequence.number_bits)
            return bool(bits.read())
    return False
