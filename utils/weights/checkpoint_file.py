"""Reads MindSpore checkpoint files as numpy arrays and trusts nothing in them.

A file is a protobuf message `Checkpoint` (mindspore.train.checkpoint_pb2): one entry for an array,
or several in a row for a large one. MindSpore's own loader copies the content of an entry over a
tensor of whatever sizes the entry names. The protobuf class takes up to 200 times the file's size.
So the fields are read here, in the form in which MindSpore writes them, and every array is checked
before it is made. Memory is at most a few times the file's size.

At the end of a file may be the text `crc_num` and the CRC32 of all before it, in ten bytes.
"""

import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from utils.log import log
from utils.messages import escape_control
from utils.weights.dtypes import DTYPES, get_itemsize
from utils.weights.model_checksum import check_checksum

RESUME = "resume.ckpt"
# MindSpore's names of types; in lower case they are PyTorch's. bfloat16 becomes float32.
TYPES = ("Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
TYPES += ("BFloat16", "Float16", "Float32", "Float64")
TEXT = b"str"  # the type of a text, which `append_dict` of `save_checkpoint` writes
CHECKSUM, CHECKSUM_BYTES = b"crc_num", 10
MOST_ENTRIES = 100_000  # each costs some hundred bytes of memory; no network here has 2,000
MOST_AXES = 32  # numpy's limit
LONGEST_NAME = 1000
VARINT, BYTES = 0, 2  # protobuf's wire types


class Refusal(ValueError):
    """Content that is no checkpoint or damaged; the reader adds the file's name."""


class Entry(NamedTuple):
    """An array, or a part of one: MindSpore splits those above 512 MB."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: memoryview


def read(path: Path, only: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays in a checkpoint, or `only` those of some names. Texts are left out.

    Raises ValueError if the file is no intact checkpoint. A file without a checksum is read with a
    warning; without one if `only` some arrays are read.
    """
    path = Path(path)
    check_kind(path)
    try:
        arrays, has_checksum = parse(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Refusal as error:
        raise ValueError(f"{path}: not a readable checkpoint ({error}); {advise(path)}") from None
    if not has_checksum and not only:
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)
    return {name: array for name, array in arrays.items() if not only or name in only}


def check_kind(path: Path) -> None:
    """Raises ValueError where the name or the size says that the file is no checkpoint."""
    if not os.path.isfile(path):
        folder = path if os.path.isdir(path) else path.parent
        names = [file.name for file in list_epochs(folder)][-3:]
        hint = "training writes one, scripts/convert_checkpoint.py converts published weights"
        if names:
            hint = f"{folder} has {', '.join(names)}"
        raise ValueError(f"{path}: no such checkpoint; {hint}")
    if path.suffix in (".pth", ".pyth", ".pt", ".safetensors", ".tar"):
        raise ValueError(f"{path}: convert it first with scripts/convert_checkpoint.py")
    if path.suffix == ".mindir":
        raise ValueError(f"{path}: a MINDIR holds no weights to load; give the checkpoint")
    if path.suffix == ".onnx":
        check_checksum(path)
        raise ValueError(
            f"{path}: ONNX Runtime runs it (docs/export.md); give a checkpoint or MINDIR"
        )
    if path.suffix != ".ckpt":
        raise ValueError(f"{path}: not a readable checkpoint: its name does not end in .ckpt")
    if not path.stat().st_size:
        raise ValueError(f"{path}: is empty; {advise(path)}")


def list_epochs(folder: Path) -> list[Path]:
    """The weights of whole epochs in a folder, oldest first; none where it cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    result = {name: re.fullmatch(r"epoch_(\d+)\.ckpt", name) for name in names}
    ordered = sorted((name for name in names if result[name]), key=lambda n: int(result[n][1]))
    return [folder / name for name in ordered]


def advise(path: Path) -> str:
    """What to do about a damaged file: it names the newest intact weights beside it."""
    newest = next((file for file in reversed(list_epochs(path.parent)) if is_intact(file)), None)
    if path.name != RESUME:
        return f"{newest} is intact" if newest else "copy it again"
    if newest:
        return (
            f"the last weights are {newest}: begin from them with --train.pretrained={newest} "
            "and another --run.out"
        )
    return "it has no weights beside it: remove it, and the same command begins anew"


def is_intact(path: Path) -> bool:
    try:
        return bool(parse(path)[0])
    except (OSError, Refusal):
        return False


def parse(path: Path) -> tuple[dict[str, np.ndarray], bool]:
    """All arrays of a file by name, and whether it has a checksum.

    Raises Refusal for content that is no checkpoint or damaged, OSError.
    """
    data = memoryview(path.read_bytes())
    content, checksum = data, data[-len(CHECKSUM) - CHECKSUM_BYTES :]
    has_checksum = bytes(checksum[: len(CHECKSUM)]) == CHECKSUM
    if has_checksum:
        content = data[: -len(checksum)]
        if zlib.crc32(content) != int.from_bytes(checksum[len(CHECKSUM) :], "big"):
            raise Refusal("its checksum differs from its content")
    arrays = {}
    for name, parts in groupby(read_entries(content), key=lambda entry: entry.name):
        if name in arrays:
            raise Refusal(f"{escape_control(name)} is there twice")
        arrays[name] = join(list(parts))
    return arrays, has_checksum


def read_entries(content: memoryview) -> Iterator[Entry]:
    """The arrays and parts of arrays; texts are left out."""
    for count, (number, value) in enumerate(read_fields(content)):
        if number != 1 or isinstance(value, int):
            raise Refusal("it is no list of arrays")
        if count == MOST_ENTRIES:
            raise Refusal(f"it has more than {MOST_ENTRIES} entries")
        fields = collect(read_fields(value), {1, 2}, "an entry")
        name = read_text(fields[1])
        shape, rest = [], []
        for field in read_fields(fields[2]):
            is_size = field[0] == 1 and isinstance(field[1], int)
            (shape if is_size else rest).append(field)
            if len(shape) > MOST_AXES or len(rest) > 2:
                raise Refusal(f"{escape_control(name)} has too many fields")
        kind, array = collect(rest, {2, 3}, escape_control(name)).values()
        if kind != TEXT:
            yield Entry(name, read_text(kind), tuple(size for _, size in shape), array)


def collect(
    fields: Iterable[tuple[int, Union[int, memoryview]]], numbers: set[int], name: str
) -> dict[int, memoryview]:
    """The fields of these numbers, in their order; each must be there once and hold bytes."""
    result = {}
    for number, value in fields:
        if number in result or number not in numbers or isinstance(value, int):
            raise Refusal(f"{name} is no array")
        result[number] = value
    if len(result) < len(numbers):
        raise Refusal(f"{name} is no array")
    return dict(sorted(result.items()))


def join(parts: list[Entry]) -> np.ndarray:
    """The array of one name from all its parts; Refusal where sizes and content do not agree."""
    name, kind, shape, _ = parts[0]
    name = escape_control(name)
    if kind not in TYPES:
        raise Refusal(f"{name} is of the type {escape_control(kind)[:20]}")
    if any((part.kind, part.shape) != (kind, shape) for part in parts):
        raise Refusal(f"the parts of {name} differ in type or sizes")
    if shape == (0,):
        shape = ()  # older MindSpore writes a number so
    size = sum(len(part.content) for part in parts)
    if not size or math.prod(shape) * get_itemsize(kind.lower()) != size:
        sizes = escape_control(str(list(shape)))[:80]
        raise Refusal(f"{name} has {size} bytes for the sizes {sizes} of {kind}")
    content = bytearray().join(part.content for part in parts)
    raw, _, widen = DTYPES[kind.lower()]
    return widen(np.frombuffer(content, np.dtype(raw).newbyteorder("<"))).reshape(shape)


def read_text(data: memoryview) -> str:
    if len(data) > LONGEST_NAME:
        raise Refusal(f"it has a name of {len(data)} bytes")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise Refusal("it has a name that is not UTF-8") from None


def read_fields(data: memoryview) -> Iterator[tuple[int, Union[int, memoryview]]]:
    """The fields of a protobuf message: their numbers, and a whole number or bytes."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        value, position = read_varint(data, position)
        if key & 7 == BYTES:
            size, value = value, data[position : position + value]
            position += size
        if key & 7 not in (VARINT, BYTES) or position > len(data):
            raise Refusal("it is cut off or damaged")
        yield key >> 3, value


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Protobuf's whole number at a position, below 2^63, and the position after it."""
    number = 0
    for shift in range(0, 63, 7):
        if position == len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise Refusal("it is cut off or damaged")
