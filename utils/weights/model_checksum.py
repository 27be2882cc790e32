"""A checksum at the end of a MINDIR or ONNX file; other programs read it as metadata.

Both are protobuf messages. Their field 14 is a list of metadata, texts by name, and a field may be
anywhere in a file. So the last entry is `crc32`: the CRC-32 of all bytes before it, as 8 digits.
"""

import contextlib
import zlib
from pathlib import Path
from typing import Union

HEAD = b"\x72\x11\x0a\x05crc32\x12\x08"  # field 14 of 17 bytes: name and text, with their lengths
SIZE = len(HEAD) + 8


def append_checksum(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(build_checksum_field(file.read()))


def build_checksum_field(content: Union[bytes, memoryview]) -> bytes:
    return HEAD + b"%08x" % zlib.crc32(content)


def check_checksum(path: Path) -> bool:
    """Whether a file can be read and has a checksum. Raises ValueError if the checksum differs."""
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    field = content[-SIZE:]
    different = sum(byte != own for byte, own in zip(field, HEAD))
    if len(field) < SIZE or different > 1:  # one byte may be damaged
        return False
    if field != build_checksum_field(memoryview(content)[:-SIZE]):
        raise ValueError(f"{path}: its checksum differs from its content; copy or export it again")
    return True
