"""The kind of a file of weights: its first bytes decide, not its name."""

import os
import re
from typing import Union

HEAD = 512  # bytes that `find_kind` needs
# The first pickle of a file before PyTorch 1.6
MAGIC = 0x1950A86A20F9469CFC6C
FOREIGN_KINDS = ("zip", "legacy", "safetensors")  # those that `torch_reader` reads
# A block that MindSpore has encrypted by AES-GCM, AES-CBC or SM4-CBC
ENCRYPTED = re.compile(rb"[\xd8-\xda]\x5e\x3a\x7f")
# What to do with a part of a distributed checkpoint
MERGE = (
    "merge the files of all ranks first, by mindspore.transform_checkpoints (.ckpt) or "
    "mindspore.parallel.unified_safetensors, and convert the result"
)


def find_kind(head: bytes) -> str:
    """The kind of a file that begins with `head`; empty for others.

    `zip` (PyTorch, npz), `legacy` (PyTorch before 1.6), `safetensors`, `encrypted`, or `mindspore`,
    which begins with its first entry: field 1, bytes.
    """
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if MAGIC.to_bytes(10, "little") in head[:32]:
        return "legacy"
    if ENCRYPTED.match(head):
        return "encrypted"
    if head[8:9] == b"{":
        return "safetensors"
    return "mindspore" if head.startswith(b"\n") else ""


def read_kind(path: Union[str, os.PathLike]) -> str:
    """The kind of a file. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return find_kind(file.read(HEAD))
