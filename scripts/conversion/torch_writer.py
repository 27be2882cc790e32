"""Writes weights as a file of PyTorch, without PyTorch: safetensors, or the zip of torch.save.

The names are those of the original in PyTorch. `torch.load(path, weights_only=True)` or
`safetensors.torch.load_file` returns the state dict.
"""

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from utils.files import report_write_errors, write_beside

SUFFIXES = (".safetensors", ".pth", ".pyth", ".pt", ".tar")
STORAGES = {"float32": "FloatStorage", "int64": "LongStorage"}
FOLDER = "archive"  # of the records in the zip


def write(path: Path, arrays: Mapping[str, np.ndarray], option: str) -> None:
    """Writes float32 and int64 arrays; the suffix, one of SUFFIXES, decides the format.

    Raises ValueError, which names `option`, if the file cannot be written; an old one stays.
    """
    with report_write_errors(path, option), write_beside(path) as temporary:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file(dict(arrays), temporary, metadata={"format": "pt"})
        else:
            write_zip(temporary, arrays)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


def write_zip(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """A pickle of {name: tensor}, and a record with the numbers of every tensor."""
    items = b"".join(
        encode(name) + encode_tensor(str(key), array)
        for key, (name, array) in enumerate(arrays.items())
    )
    records = {"data.pkl": b"\x80\x02}(" + items + b"u.", "byteorder": b"little"}
    with zipfile.ZipFile(path, "w") as archive:
        for record, content in records.items():
            archive.writestr(f"{FOLDER}/{record}", content)
        for key, array in enumerate(arrays.values()):
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            archive.writestr(f"{FOLDER}/data/{key}", little.tobytes())
        archive.writestr(f"{FOLDER}/version", b"3\n")


def encode(value: Any) -> bytes:
    """A plain value as a pickle, without its first and last opcodes."""
    return pickle.dumps(value, 2)[2:-1]


def encode_tensor(key: str, array: np.ndarray) -> bytes:
    """A call of PyTorch's function that makes a tensor over the record `key`."""
    strides = np.empty(array.shape, np.uint8).strides  # in elements, of rows one after another
    storage = encode("storage") + f"ctorch\n{STORAGES[array.dtype.name]}\n".encode()
    storage += b"".join(map(encode, (key, "cpu", array.size)))
    place = b"".join(map(encode, (0, array.shape, strides, False)))
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQ" + place + hooks + b"tR"
