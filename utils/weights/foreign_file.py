"""Which files are PyTorch's, safetensors' or npz: their first bytes decide, not their names."""

import os
from typing import Union

HEAD = 512  # bytes that `find_kind` needs
# The first pickle of a file before PyTorch 1.6
MAGIC = 0x1950A86A20F9469CFC6C


def find_kind(head: bytes) -> str:
    """`zip` (PyTorch, npz), `legacy` (PyTorch before 1.6) or `safetensors`; empty for others."""
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if MAGIC.to_bytes(10, "little") in head[:32]:
        return "legacy"
    return "safetensors" if head[8:9] == b"{" else ""


def is_foreign(path: Union[str, os.PathLike]) -> bool:
    """Whether a file begins like one that `torch_reader` reads. Raises OSError."""
    with open(path, "rb") as file:
        return bool(find_kind(file.read(HEAD)))
