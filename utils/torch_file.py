"""Reads the weights in PyTorch and safetensors files, without PyTorch and without executing them.

    load("model.pth")        everything torch.save put there; each tensor is a numpy array
    load_state("model.pth")  the state dict in it: name -> array

Three containers: the zip which torch.save writes since 1.6 (storages in little- or big-endian
order), the row of pickles it wrote before, and safetensors. The pickles are followed by
`torch_pickle`, which refuses all but a short list of names. Storages are streamed into their
arrays, so memory stays near the size of the tensors.

Differences from torch.load: bfloat16 and float8 become float32, complex32 complex64; OrderedDict
and argparse.Namespace become dict, Parameter its array, torch.Size a tuple, bytearray bytes;
torch.device, torch.dtype and classes become their names. Quantized, sparse, meta and lazily
conjugated tensors, bare storages, and containers which contain themselves are refused.
"""

import io
import json
import math
import os
import struct
import zipfile
from mmap import ACCESS_READ, mmap
from typing import BinaryIO, Optional, Union

import numpy as np

from utils.torch_pickle import Unpickler
from utils.torch_storage import Refusal, Storage, is_count

MAGIC = 0x1950A86A20F9469CFC6C
MAGIC_BYTES = MAGIC.to_bytes(10, "little")
PROTOCOL = 1001
MAX_HEADER = 100_000_000  # bytes of JSON, the safetensors package's own limit
STATE_KEYS = ("state_dict", "model_state", "model")
SAFETENSORS = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
# What parsers raise over damaged files; a Refusal, a ValueError too, is caught before these.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)
DAMAGE += (OSError, EOFError, MemoryError, struct.error, zipfile.BadZipFile)


class TorchFileError(ValueError):
    """One line which names the file, what is wrong with it and, where possible, what to do."""


def load(path: Union[str, os.PathLike]) -> object:
    """The object graph in a file; every tensor is an array, views of one storage share memory.

    Raises TorchFileError when the file is missing, damaged, hostile or of another kind.
    """
    try:
        with open(path, "rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except Refusal as error:
        raise _error(path, error) from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _error(path, f"cannot be opened: {error.strerror}") from error
    except DAMAGE as error:
        what = f"is cut off or damaged ({type(error).__name__}: {error})"
        raise _error(path, f"{what}; copy or download it again") from error


def load_state(path: Union[str, os.PathLike], key: Optional[str] = None) -> dict[str, np.ndarray]:
    """The state dict in a checkpoint: the one under `key`, else the first one found.

    Without `key` it is the whole file if that is a dictionary of arrays, else the first of
    STATE_KEYS that holds arrays, itself or in turn under one of those keys.
    Raises TorchFileError as `load` does, and when there is none or it holds other things.
    """
    checkpoint = load(path)
    if key is None:
        state = _find_state(checkpoint)
    else:
        state = checkpoint.get(key) if isinstance(checkpoint, dict) else None
    top = f"at the top it has {_outline(checkpoint)}"
    if not isinstance(state, dict) or not state:
        raise _error(path, f"holds no state dict{f' under {key!r}' if key else ''}; {top}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            what = f"entry {str(name)[:100]!r} of the state dict is a {type(value).__name__}"
            raise _error(path, f"{what}, not a named tensor; {top}")
    return state


def _error(path: Union[str, os.PathLike], what: object) -> TorchFileError:
    line = "".join(c if c.isprintable() else "?" for c in str(what)[:500])
    return TorchFileError(f"{os.fspath(path)}: {line}")


def _find_state(tree: object) -> Optional[dict]:
    """A dictionary with at least one array; which others it holds is checked later."""
    if not isinstance(tree, dict):
        return None
    arrays = [isinstance(value, np.ndarray) for value in tree.values()]
    if arrays and all(arrays):
        return tree
    for key in STATE_KEYS:
        state = _find_state(tree.get(key))
        if state is not None:
            return state
    return tree if any(arrays) else None


def _outline(tree: object) -> str:
    if not isinstance(tree, dict):
        return f"a {type(tree).__name__}"
    names = ", ".join(str(key)[:40] for key in list(tree)[:12])
    return f"the keys: {names}{', ...' if len(tree) > 12 else ''}" if tree else "nothing"


def _read(file: BinaryIO, size: int) -> object:
    head = file.read(512)
    file.seek(0)
    if head.startswith(b"PK\x03\x04"):
        return _read_zip(file, size)
    if MAGIC_BYTES in head[:32]:
        return _read_legacy(file, size)
    if head[8:9] == b"{":
        return _read_safetensors(file, size)
    raise Refusal(_other_kind(head))


def _other_kind(head: bytes) -> str:
    if not head:
        return "is empty; copy or download it again"
    if head[257:262] == b"ustar":
        return "is a tar, written by PyTorch before 0.1.10; load it with PyTorch and save it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a git-lfs pointer, not the file itself; fetch it with git lfs pull"
    if head.lstrip()[:1] == b"<":
        return "is a web page, not a checkpoint; download it again"
    if b"blobs" in head:
        return "is a Caffe2 pickle of blobs, not a PyTorch file; it needs its own converter"
    if head[:1] == b"\x80" or head[:2] in (b"(d", b"(l", b"}q"):
        return "is a plain pickle, not written by torch.save; it is not executed here"
    return f"is neither a PyTorch nor a safetensors file, or is cut off; it starts with {head[:8]}"


def _read_zip(file: BinaryIO, size: int) -> object:
    with zipfile.ZipFile(file) as archive:
        folder = _check_entries(archive.infolist(), size)
        order = _byte_order(archive, folder)
        unpickler = Unpickler(size)
        tree = unpickler.run(io.BytesIO(archive.read(f"{folder}/data.pkl")))
        for storage in unpickler.storages.values():
            entry = archive.NameToInfo.get(f"{folder}/data/{storage.key}")
            if entry is None or entry.file_size != storage.nbytes:
                there = entry.file_size if entry else "no record"
                raise Refusal(f"wants {storage.nbytes} bytes for storage {storage.key}: {there}")
            with archive.open(entry) as stream:  # which checks the CRC at the record's end
                storage.fill(stream, order)
    return tree


def _check_entries(entries: list, size: int) -> str:
    """The archive's one folder. Nothing is ever extracted, yet odd names are refused."""
    names = [entry.orig_filename for entry in entries]
    if any(name.split("/", 1)[1:] == ["constants.pkl"] for name in names):
        raise Refusal("is a TorchScript archive, which is a program; save model.state_dict()")
    folders = {name.split("/")[0] for name in names}
    if len(folders) != 1 or f"{min(folders)}/data.pkl" not in names:
        raise Refusal("is a zip, but not one that torch.save wrote: it has no single data.pkl")
    if len(set(names)) < len(names):
        raise Refusal("refused: its zip has two entries of one name")
    for name, entry in zip(names, entries):
        if name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
            raise Refusal(f"refused: its zip has an entry named {name}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise Refusal(f"refused: its {name} is compressed, which torch.save never does")
        if not entry.compress_size == entry.file_size <= size - entry.header_offset:
            raise Refusal(f"refused: its {name} claims more bytes than the file has")
    return folders.pop()


def _byte_order(archive: zipfile.ZipFile, folder: str) -> str:
    """Older files have no marker; they are little-endian."""
    if f"{folder}/byteorder" not in archive.namelist():
        return "<"
    word = archive.read(f"{folder}/byteorder")
    if word not in (b"little", b"big"):
        raise Refusal(f"has an unknown byte order: {word[:20]}")
    return "<" if word == b"little" else ">"


def _read_legacy(file: BinaryIO, size: int) -> object:
    """Five pickles (magic, protocol, system, object, keys), then each storage: count, bytes."""
    unpickler = Unpickler(size)
    with mmap(file.fileno(), 0, access=ACCESS_READ) as pickles:
        magic, protocol, system = (Unpickler(size).run(pickles) for _ in range(3))
        if magic != MAGIC or protocol != PROTOCOL or not isinstance(system, dict):
            raise Refusal(f"is no PyTorch file of protocol {PROTOCOL}")
        tree = unpickler.run(pickles)
        keys = Unpickler(size).run(pickles)
        file.seek(pickles.tell())
    if not all(isinstance(key, str) for key in keys):
        raise Refusal("has no list of its storages")
    missing = dict(unpickler.storages)
    for key in keys:
        if key not in missing:
            raise Refusal(f"has bytes for a storage {key} that no tensor uses, or has them twice")
        storage = missing.pop(key)
        _check_count(file.read(8), storage, system.get("little_endian", True))
        storage.fill(file, "<")
    if missing:
        raise Refusal(f"has no bytes for storage {next(iter(missing))}")
    return tree


def _check_count(data: bytes, storage: Storage, little: bool) -> None:
    """Elements are little-endian whatever machine wrote them, for PyTorch swaps them on the way;
    its older versions did not swap the count, which is what a big-endian mark is good for."""
    counts = struct.unpack("<q", data) + (() if little else struct.unpack(">q", data))
    if storage.count not in counts:
        raise Refusal(f"has {counts[0]} elements for storage {storage.key}, not {storage.count}")


def _read_safetensors(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """A little-endian length, a JSON header of that many bytes, then the tensors without gaps."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size - 8, MAX_HEADER):
        raise Refusal(f"claims a safetensors header of {length} bytes; is it cut off?")
    header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(name, entry)
    tensors, position = {}, 8 + length
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        storage = Storage(name, SAFETENSORS[entry["dtype"]], math.prod(entry["shape"]))
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if begin != position or end - begin != storage.nbytes:
            where = f"bytes {begin} to {end}, not {storage.nbytes} bytes from {position}"
            raise Refusal(f"puts tensor {name} at {where}")
        if end > size:
            raise Refusal(f"ends before tensor {name} does; copy or download it again")
        tensors[name] = storage.array(storage.kind).reshape(entry["shape"])
        storage.fill(file, "<")
        position = end
    if position != size:
        raise Refusal(f"has {size - position} bytes behind its last tensor")
    return {name: tensors[name] for name in header}


def _unique(pairs: list) -> dict:
    """A JSON object, which json would let name a thing twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refusal("names something twice in its safetensors header")
    return found


def _check_entry(name: str, entry: object) -> None:
    """A tensor's {"dtype", "shape", "data_offsets"} in a safetensors header."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Refusal(f"describes tensor {name} by something else than dtype, shape and offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise Refusal(f"has tensor {name} of dtype {str(dtype)[:40]}, which is not read")
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not lists or not all(is_count(number) for number in shape + offsets):
        raise Refusal(f"has tensor {name} of an impossible shape or place")
