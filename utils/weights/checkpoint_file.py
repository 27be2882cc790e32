"""Reads MindSpore checkpoint files as numpy arrays; safe for damaged and hostile files.

A file is a protobuf message `Checkpoint` (mindspore.train.checkpoint_pb2): one entry for an array,
or several consecutive ones for a large array. MindSpore's own loader copies the content of an entry
into a tensor of any sizes that the entry names. The protobuf class takes up to 200 times the memory
of the file (209 MB and 4.7 s for a megabyte of empty entries, as MindSpore chooses protobuf's
implementation in Python). So this module parses the fields, as MindSpore writes them, and checks
every array before it is created. Memory is at most a few times the file's size.

What this zoo says of its weights (TEXTS) are arrays uint8 with UTF-8, so that programs may take all
entries for arrays; older versions wrote strings, by `append_dict` of `save_checkpoint`.

A file may end with the text `crc_num` and the CRC-32 of all bytes before it, in ten bytes.
"""

import hashlib
import math
import os
import re
import shlex
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from utils.files import ROOT
from utils.log import log
from utils.messages import escape_control

RESUME = "resume.ckpt"
# An array of this file only: samples of a step, an update, an epoch, and of the annotation file.
SAMPLER = "sampler"
UNREADABLE = "unreadable"
EPOCHS = "epochs"  # 0, then those whose weights the run has written
RECORDS = "records"  # a hash of the samples in their order
TEXT = "str"  # the type of a string
DESCRIPTION = "zoo"  # utils/weights/description.py
PADDING = "model.padding"  # the setting
TEXTS = (DESCRIPTION, PADDING)
FOREIGN = (".pth", ".pyth", ".pt", ".safetensors", ".tar", ".npz")
CHECKSUM = b"crc_num"
CHECKSUM_BYTES = 10
SHOWN = 80  # characters of a name in a message
# Protobuf's wire types
VARINT = 0
BYTES = 2
HEAD = 512  # bytes that `find_kind` needs
# The first pickle of a file before PyTorch 1.6
MAGIC = 0x1950A86A20F9469CFC6C
FOREIGN_KINDS = ("zip", "legacy", "safetensors")  # those that `torch_reader` reads
NUMPY_TYPES = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"
# PyTorch's name of a type: (numpy's type in the file, numpy's type in memory, function from a flat
# array of the first to one that numpy casts to the second). MindSpore's begins with capitals.
DTYPES = {
    **{dtype: (dtype, dtype, np.asarray) for dtype in NUMPY_TYPES.split()},
    "bool": ("u1", "?", lambda raw: raw != 0),
    "bfloat16": ("u2", "f4", lambda raw: (raw.astype("u4") << 16).view("f4")),
}


class CheckpointFile(NamedTuple):
    """A .ckpt file, read once: its arrays and texts by name, and the SHA-256 of its bytes."""

    path: Path
    digest: str
    arrays: dict[str, np.ndarray]
    texts: dict[str, str]


# An array, or a part of one: MindSpore splits those above 512 MB. Or a string.
Entry = tuple[str, str, tuple[int, ...], memoryview]  # name, kind, shape, content


def read(path: Path) -> dict[str, np.ndarray]:
    """{name: array} of a checkpoint, as of `read_checkpoint`."""
    return read_checkpoint(path).arrays


def open_weights(path: Path) -> Union[CheckpointFile, Path]:
    """The content of a checkpoint; of an exported file its path, from which an engine reads it."""
    return path if path.suffix in (".onnx", ".mindir") else read_checkpoint(path)


def read_checkpoint(path: Path) -> CheckpointFile:
    """Arrays and texts. Raises ValueError if the file is not an intact checkpoint.

    Logs a warning if the file has no checksum.
    """
    path = Path(path)
    data = check_kind(path, size=-1)
    try:
        return parse(path, data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a field is missing
        reason = escape_control(str(error))[:200]
        raise ValueError(f"{path}: not a readable checkpoint ({reason}); {advise(path)}") from None


def check_kind(path: Path, size: int = HEAD) -> bytes:
    """The first bytes of a checkpoint, or all with -1.

    Raises ValueError if it is missing, empty, or of another code base.
    """
    if not os.path.isfile(path):
        from utils.weights.published import advise as advise_download  # here: for an error only

        folder = path if os.path.isdir(path) else path.parent
        names = [file.name for file in list_epochs(folder)][-3:]
        hint = "training writes one, scripts/download_weights.py lists published weights"
        hint = f"{folder} has {', '.join(names)}" if names else hint
        raise ValueError(f"{path}: no such checkpoint; {advise_download(path) or hint}")
    data = read_bytes(path, size)
    if not data:
        raise ValueError(f"{path}: is empty; {advise(path)}")
    kind = find_kind(data)
    if kind in FOREIGN_KINDS or (path.suffix in FOREIGN and not kind):
        target = path.with_name(f"{path.stem}_{path.suffix[1:]}.ckpt")
        script = ROOT / "scripts" / "convert_checkpoint.py"
        words = [script, "--config_path", "RECIPE", "--source", path, "--target", target]
        raise ValueError(f"{path}: convert it first: python {shlex.join(map(str, words))}")
    return data


def read_bytes(path: Path, size: int = -1) -> bytes:
    """The first bytes of a file, or all."""
    with open(path, "rb") as file:
        return file.read(size)


def find_kind(head: bytes) -> str:
    """The kind of a file that begins with `head`; empty for others.

    `zip` (PyTorch, npz), `legacy` (PyTorch before 1.6), `safetensors`, or `mindspore`, which begins
    with its first entry: field 1, bytes.
    """
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if MAGIC.to_bytes(10, "little") in head[:32]:
        return "legacy"
    if head[8:9] == b"{":
        return "safetensors"
    return "mindspore" if head.startswith(b"\n") else ""


def get_itemsize(dtype: str) -> int:
    """Bytes of an element in the file; `dtype` is a key of DTYPES."""
    return np.dtype(DTYPES[dtype][0]).itemsize


def list_epochs(folder: Path) -> list[Path]:
    """The weights of complete epochs in a folder, oldest first; empty if it cannot be read."""
    files = folder.glob("epoch_*.ckpt")
    epochs = [file for file in files if re.fullmatch(r"epoch_\d+", file.stem)]
    return sorted(epochs, key=lambda file: int(file.stem[6:]))


def advise(path: Path) -> str:
    """The remedy for a damaged file; it names the newest older weights of the folder."""
    older = [file for file in list_epochs(path.parent) if file.name < path.name]
    if path.name != RESUME:
        return f"take {older[-1]}" if older else "copy it again"
    if older:
        return f"begin anew with --train.pretrained={older[-1]} and another --run.out"
    return "it has no weights beside it: remove it, and the same command begins anew"


def parse(path: Path, whole: bytes) -> CheckpointFile:
    """The content `whole` of a file. Raises an error if a field is missing or wrong."""
    data = memoryview(whole)
    content = data
    checksum = data[-len(CHECKSUM) - CHECKSUM_BYTES :]
    if bytes(checksum[: len(CHECKSUM)]) == CHECKSUM:
        content = data[: -len(checksum)]
        if zlib.crc32(content) != int.from_bytes(checksum[len(CHECKSUM) :], "big"):
            raise ValueError("its checksum differs from its content")
    arrays: dict[str, np.ndarray] = {}
    texts: dict[str, str] = {}
    for name, group in groupby(read_entries(content), key=lambda entry: entry[0]):
        if name in arrays or name in texts:
            raise ValueError(f"{name[:SHOWN]} is there twice")
        parts = list(group)
        if all(kind == TEXT for _, kind, *_ in parts):
            text = b"".join(content for *_, content in parts)
            texts[name] = text.decode("utf-32-le", "replace")
        else:
            arrays[name] = join_parts(parts)
    texts |= pop_texts(arrays)
    if len(content) == len(data):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)
    return CheckpointFile(path, hashlib.sha256(data).hexdigest(), arrays, texts)


def pop_texts(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Those of TEXTS among the arrays of a file, which are removed.

    A program that saves all entries in another type may have changed theirs.
    """
    names = [name for name in TEXTS if name in arrays]
    with np.errstate(invalid="ignore"):
        content = {name: arrays.pop(name).astype(np.uint8).tobytes() for name in names}
    return {name: text.decode("utf-8", "replace") for name, text in content.items()}


def read_entries(content: memoryview) -> Iterator[Entry]:
    """The arrays, parts of arrays and texts. Each field must be there; only sizes are repeated."""
    for number, value in read_fields(content):
        entry = dict(read_fields(value))
        sizes = []
        tensor = {}
        for field, item in read_fields(entry[2]):
            if field == 1:
                sizes.append(item)
            else:
                tensor[field] = item
        if number != 1 or {*entry} != {1, 2} or {*tensor} != {2, 3}:
            raise ValueError("it is not a list of arrays")
        name, kind = (text.tobytes().decode() for text in (entry[1], tensor[2]))
        yield name, kind, tuple(sizes), tensor[3]


def join_parts(parts: list[Entry]) -> np.ndarray:
    """The array of one name. Raises an error if type, sizes and content do not agree."""
    name, kind, shape, _ = parts[0]
    raw, _, widen = DTYPES[kind.lower()]
    if any(part[:3] != parts[0][:3] for part in parts):
        raise ValueError(f"the parts of {name[:SHOWN]} differ in type or sizes")
    if shape == (0,):
        shape = ()  # as older MindSpore writes a number
    content = bytearray().join(content for *_, content in parts)
    size = len(content)
    if not size or math.prod(shape) * get_itemsize(kind.lower()) != size:
        sizes = str(list(shape))[:80]
        raise ValueError(f"{name[:SHOWN]} has {size} bytes for the sizes {sizes} of {kind}")
    return widen(np.frombuffer(content, np.dtype(raw).newbyteorder("<"))).reshape(shape)


def read_fields(data: Any) -> Iterator[tuple[int, Any]]:
    """(field number, integer or bytes) of every field of a protobuf message."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        value, position = read_varint(data, position)
        if key & 7 == BYTES:
            size = value
            value = data[position : position + value]
            position += size
        if key & 7 not in (VARINT, BYTES) or position > len(data):
            raise ValueError("it is cut off or damaged")
        yield key >> 3, value


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """The integer at a position, which must be below 2^63, and the position after it."""
    number = 0
    for shift in range(0, 63, 7):
        if position == len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise ValueError("it is cut off or damaged")
