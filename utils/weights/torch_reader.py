"""Reads PyTorch and safetensors files, without PyTorch and without executing what is in them.

    load("model.pth")        everything torch.save put there; each tensor is a numpy array
    load_state("model.pth")  the state dict in it: name -> array

It reads the zip that torch.save writes since 1.6, the pickles that it wrote before, and
safetensors. Storages stream into their arrays, so memory stays near the size of the tensors.

Differences from torch.load: bfloat16 and float8 become float32, complex32 complex64; OrderedDict
and argparse.Namespace become dict, Parameter its array, torch.Size a tuple, bytearray bytes;
torch.device, torch.dtype and classes become their names. Quantized, sparse, meta and lazily
conjugated tensors, bare storages, and containers that contain themselves are refused.
"""

import io
import json
import math
import os
import re
import struct
import zipfile
from typing import BinaryIO, Optional, Union

import numpy as np

from utils.weights.torch_pickle import DAMAGE, Pickles
from utils.weights.torch_storage import SAFETENSORS, Storage, TorchFileError, are_counts, need

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MAX_PICKLE = 1 << 24  # bytes of a zip's pickle or directory, or of all pickles of an older file
MAX_HEADER = 1 << 23  # bytes of JSON, enough for 80,000 tensors
STATE_KEYS = ("state_dict", "model_state", "model")
OTHER_KINDS = (
    (rb"\Z", "is empty; copy or download it again"),
    (rb".{257}ustar", "is a tar of PyTorch before 0.1.10; load it there and save it again"),
    (rb"version https://git-lfs", "is a git-lfs pointer; fetch the file with git lfs pull"),
    (rb"\s*<", "is a web page, not a checkpoint; download it again"),
    (rb".*blobs", "is a Caffe2 pickle of blobs; it needs its own converter"),
    (rb"\x80|\([dl]|}q", "is a plain pickle, not written by torch.save; it is not executed here"),
    (rb"", "is neither a PyTorch nor a safetensors file, or is cut off"),
)


def load(path: Union[str, os.PathLike]) -> object:
    """The object graph in a file; every tensor is an array, views of one storage share memory.

    Raises TorchFileError when the file is missing, damaged, hostile or of another kind.
    """
    try:
        with _File(io.FileIO(path)) as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except TorchFileError as error:
        raise _error(path, error) from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _error(path, f"cannot be opened: {error.strerror}") from error
    except DAMAGE as error:
        what = f"is cut off or damaged ({type(error).__name__}: {str(error)[:200]})"
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


class _File(io.BufferedReader):
    """A file of which no single read, as zipfile's of a directory, takes much memory."""

    def read(self, size: int = -1) -> bytes:
        need(size <= MAX_PICKLE, "asks for {} bytes at once; {} are allowed", size, MAX_PICKLE)
        return super().read(size)


def _read(file: BinaryIO, size: int) -> object:
    head = file.read(512)
    file.seek(0)
    if head.startswith(b"PK\x03\x04"):
        return _read_zip(file, size)
    if MAGIC.to_bytes(10, "little") in head[:32]:
        return _read_legacy(file, size)
    if head[8:9] == b"{":
        return _read_safetensors(file, size)
    kind = next(text for start, text in OTHER_KINDS if re.match(start, head, re.DOTALL))
    raise TorchFileError(f"{kind}; it starts with {head[:8]}")


def _read_zip(file: BinaryIO, size: int) -> object:
    with zipfile.ZipFile(file) as archive:
        folder = _check_entries(archive.infolist(), size)
        word = b"little"  # older files have no mark
        if f"{folder}/byteorder" in archive.NameToInfo:
            word = archive.open(f"{folder}/byteorder").read(10)
        need(word in (b"little", b"big"), "has an unknown byte order: {}", word)
        tree, storages = Pickles(archive.read(f"{folder}/data.pkl")).load(size)
        for storage in storages.values():
            entry = archive.NameToInfo.get(f"{folder}/data/{storage.key}")
            found = entry.file_size if entry else "no record"
            text = "wants {} bytes for storage {}: {}"
            need(found == storage.nbytes, text, storage.nbytes, storage.key, found)
            with archive.open(entry) as stream:  # which checks the CRC at the record's end
                storage.fill(stream, "<" if word == b"little" else ">")
    return tree


def _check_entries(entries: list, size: int) -> str:
    """The archive's one folder. Nothing is ever extracted, yet odd names are refused."""
    names = [entry.orig_filename for entry in entries]
    script = any(name.split("/", 1)[1:] == ["constants.pkl"] for name in names)
    need(not script, "is a TorchScript archive, which is a program; save model.state_dict()")
    folders = {name.split("/")[0] for name in names}
    one = len(folders) == 1 and f"{min(folders)}/data.pkl" in names
    need(one, "is a zip, but not one that torch.save wrote: it has no single data.pkl")
    need(len(set(names)) == len(names), "refused: its zip has two entries of one name")
    for name, entry in zip(names, entries):
        odd = name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/")
        need(not odd, "refused: its zip has an entry named {}", name)
        stored = entry.compress_type == zipfile.ZIP_STORED
        need(stored, "refused: its {} is compressed, which torch.save never does", name)
        true = entry.compress_size == entry.file_size <= size - entry.header_offset
        need(true, "refused: its {} claims more bytes than the file has", name)
        large = name.endswith("/data.pkl") and entry.file_size > MAX_PICKLE
        need(not large, "refused: its {} is larger than {} bytes", name, MAX_PICKLE)
    return folders.pop()


def _read_legacy(file: BinaryIO, size: int) -> object:
    """Five pickles (magic, protocol, system, object, keys), then each storage: count, bytes."""
    pickles = Pickles(file.read(MAX_PICKLE))
    magic, protocol, system = (pickles.load(0)[0] for _ in range(3))
    same = magic == MAGIC and protocol == PROTOCOL and isinstance(system, dict)
    need(same, "is no PyTorch file of protocol {}", PROTOCOL)
    (tree, storages), keys = pickles.load(size), pickles.load(0)[0]
    need(all(isinstance(key, str) for key in keys), "has no list of its storages")
    file.seek(pickles.tell())
    for key in keys:
        text = "has bytes for a storage {} that no tensor uses, or has them twice"
        need(key in storages, text, key)
        storage = storages.pop(key)
        # Elements are little-endian in every file. Older versions wrote the count as the machine
        # has it, which the mark of a big-endian machine says.
        orders = "<" if system.get("little_endian", True) else "<>"
        data = file.read(8)
        counts = [struct.unpack(f"{order}q", data)[0] for order in orders]
        text = "has {} elements for storage {}, not {}"
        need(storage.count in counts, text, counts[0], key, storage.count)
        storage.fill(file, "<")
    need(not storages, "has no bytes for storage {}", next(iter(storages), ""))
    return tree


def _read_safetensors(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """A little-endian length, a JSON header of that many bytes, then the tensors without gaps."""
    (length,) = struct.unpack("<Q", file.read(8))
    short = length <= min(size - 8, MAX_HEADER)
    need(short, "claims a safetensors header of {} bytes; is it cut off?", length)
    # 19 digits hold every count; reading a number of many takes time.
    options = {"object_pairs_hook": _unique, "parse_int": lambda text: int(text[:20])}
    header = json.loads(file.read(length).decode("utf-8"), **options)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(name, entry)
    tensors, position = {}, 8 + length
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        storage = Storage(name, SAFETENSORS[entry["dtype"]], math.prod(entry["shape"]))
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        text = "puts tensor {} at bytes {} to {}, not {} bytes from {}"
        good = begin == position and end - begin == storage.nbytes
        need(good, text, name, begin, end, storage.nbytes, position)
        need(end <= size, "ends before tensor {} does; copy or download it again", name)
        tensors[name] = storage.array(storage.kind).reshape(entry["shape"])
        storage.fill(file, "<")
        position = end
    need(position == size, "has {} bytes behind its last tensor", size - position)
    return {name: tensors[name] for name in header}


def _unique(pairs: list) -> dict:
    """A JSON object, which json would let name a thing twice."""
    entries = dict(pairs)
    need(len(entries) == len(pairs), "names something twice in its safetensors header")
    return entries


def _check_entry(name: str, entry: object) -> None:
    """A tensor's {"dtype", "shape", "data_offsets"} in a safetensors header."""
    good = isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}
    need(good, "describes tensor {} by something else than dtype, shape and offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    known = isinstance(dtype, str) and dtype in SAFETENSORS
    need(known, "has tensor {} of dtype {}, which is not read", name, dtype)
    good = isinstance(shape, list) and isinstance(offsets, list)
    good = good and len(shape) <= 32 and len(offsets) == 2 and are_counts(*shape, *offsets)
    need(good, "has tensor {} of an impossible shape or place", name)
