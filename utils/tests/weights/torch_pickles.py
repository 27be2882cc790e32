"""Assembles PyTorch files with pickles that Python's own pickler does not write."""

import pickle
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO, Union

from utils.weights.checkpoint_file import MAGIC

RAMP = struct.pack("<4f", 0, 1, 2, 3)


def plain(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def name(dotted: str) -> bytes:
    return b"c%s\n%s\n" % tuple(part.encode() for part in dotted.rsplit(".", 1))


def call(dotted: str, *arguments: bytes) -> bytes:
    return name(dotted) + b"(" + b"".join(arguments) + b"tR"


def storage(key="0", kind="torch.FloatStorage", count=4, view=b"", word="storage") -> bytes:
    return b"(" + plain(word) + name(kind) + plain(key) + plain("cpu") + plain(count) + view + b"tQ"


def part(start: int, count: int) -> bytes:
    return b"(" + plain("9") + plain(start) + plain(count) + b"t"


def tensor(over=storage(), offset=0, shape=(4,), strides=(1,)) -> bytes:  # noqa: B008
    return call("torch._utils._rebuild_tensor", over, plain(offset), plain(shape), plain(strides))


def viewed(kind: str) -> bytes:
    over = storage(kind="torch.storage.UntypedStorage", count=16)
    numbers = b"".join(plain(value) for value in (0, (1,), (1,), False, None))
    return call("torch._utils._rebuild_tensor_v3", over, numbers, name(f"torch.{kind}"))


def dtype(code: str) -> bytes:
    return call("numpy.dtype", plain(code), plain(False), plain(True))


def array(code: str, shape: tuple, data: bytes) -> bytes:
    blank = call("numpy.core.multiarray._reconstruct", name("numpy.ndarray"), plain((0,)), plain(0))
    return blank + b"(K\x01" + plain(shape) + dtype(code) + plain(False) + plain(data) + b"tb"


def write_zip(path: Union[Path, BinaryIO], body: bytes, records=None, method=zipfile.ZIP_STORED):
    """Writes a file as torch.save does, with 4 numbers in storage 0; returns `path`."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
        for record, data in {"data/0": RAMP, **(records or {})}.items():
            archive.writestr(f"archive/{record}", data)
    return path


def write_legacy(path: Path, body: bytes, tail: bytes, keys=("0",), **system) -> Path:
    """Writes a file as torch.save before PyTorch 1.6: pickles, then `tail` with the storages."""
    parts = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True, **system})]
    parts += [b"\x80\x02" + body + b".", pickle.dumps(list(keys), 2), tail]
    path.write_bytes(b"".join(parts))
    return path
