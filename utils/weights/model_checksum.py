"""A checksum at the end of a MINDIR or ONNX file, where every other program takes it for a note.

Both are protobuf messages whose field 14 is a list of notes, texts by name, and a field may stand
anywhere. So the last note is `crc32`, the CRC-32 of all bytes before it in eight digits.
"""

import contextlib
import zlib
from pathlib import Path
from typing import Union

HEAD = b"\x72\x11\x0a\x05crc32\x12\x08"  # field 14 of 17 bytes: name and text, with their lengths
SIZE = len(HEAD) + 8


def append_checksum(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(make_note(file.read()))


def make_note(content: Union[bytes, memoryview]) -> bytes:
    return HEAD + b"%08x" % zlib.crc32(content)


def check_checksum(path: Path) -> bool:
    """Whether a file can be read and has a checksum; ValueError where that differs."""
    content = b""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
    note = content[-SIZE:]
    if not note.startswith(HEAD):
        return False
    if note != make_note(memoryview(content)[:-SIZE]):
        raise ValueError(f"{path}: its checksum differs from its content; copy or export it again")
    return True
