"""PyTorch's dtypes and storages as numpy arrays.

A storage is a stretch of bytes which one or more tensors view. Its size is known when the pickle
names it and its bytes lie elsewhere in the file, so the arrays are made first and filled later;
every tensor is a view of them, as in PyTorch. What numpy lacks is widened exactly: bfloat16 and
float8 to float32, complex32 to complex64.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Callable, Optional

import numpy as np

CHUNK = 1 << 20  # bytes read at once; a multiple of every item size
MAX_DTYPES = 4  # of one storage; each costs an array
MAX_EXPANDED = 1 << 28  # elements which strides of 0 may pretend


class Refusal(ValueError):
    """What is wrong with a file, without the file's name, which only the caller knows."""


def _widen_bfloat16(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def _widen_float8(fraction_bits: int, bias: int, nans: list, raw: np.ndarray) -> np.ndarray:
    """The kinds without infinities, by a table of their 256 values."""
    code = np.arange(256)
    power = (code & 127) >> fraction_bits
    fraction = (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    table = np.ldexp(fraction + (power > 0), np.maximum(power, 1) - bias)
    table = np.copysign(table, 127.5 - code).astype(np.float32)
    table[nans] = np.nan
    return table[raw]


def _widen_e5m2(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint16) << 8).view(np.float16)  # it is the upper byte of a half


def _widen_e8m0(raw: np.ndarray) -> np.ndarray:
    bits = raw.astype(np.uint32) << 23  # a float32's exponent, except at both ends
    bits[raw == 0], bits[raw == 255] = 0x00400000, 0x7FC00000
    return bits.view(np.float32)


def _widen_complex32(raw: np.ndarray) -> np.ndarray:
    pairs = np.stack([raw["f0"], raw["f1"]], axis=-1)
    return pairs.astype(np.float32).view(np.complex64)[..., 0]


@dataclass(frozen=True)
class Kind:
    """A torch dtype: its numpy code in the file, its numpy code in memory, and the way there."""

    raw: str
    out: str
    widen: Optional[Callable[[np.ndarray], np.ndarray]] = None

    @property
    def size(self) -> int:
        return np.dtype(self.raw).itemsize

    def decode(self, data: bytes, order: str) -> np.ndarray:
        """The whole elements in `data`, whose byte order is "<" or ">"."""
        raw = np.frombuffer(data, np.dtype(self.raw).newbyteorder(order), len(data) // self.size)
        return self.widen(raw) if self.widen else raw


KINDS = {
    "bool": Kind("u1", "?", lambda raw: raw != 0),
    "uint8": Kind("u1", "u1"),
    "uint16": Kind("u2", "u2"),
    "uint32": Kind("u4", "u4"),
    "uint64": Kind("u8", "u8"),
    "int8": Kind("i1", "i1"),
    "int16": Kind("i2", "i2"),
    "int32": Kind("i4", "i4"),
    "int64": Kind("i8", "i8"),
    "float16": Kind("f2", "f2"),
    "float32": Kind("f4", "f4"),
    "float64": Kind("f8", "f8"),
    "bfloat16": Kind("u2", "f4", _widen_bfloat16),
    "float8_e4m3fn": Kind("u1", "f4", partial(_widen_float8, 3, 7, [127, 255])),
    "float8_e4m3fnuz": Kind("u1", "f4", partial(_widen_float8, 3, 8, [128])),
    "float8_e5m2": Kind("u1", "f4", _widen_e5m2),
    "float8_e5m2fnuz": Kind("u1", "f4", partial(_widen_float8, 2, 16, [128])),
    "float8_e8m0fnu": Kind("u1", "f4", _widen_e8m0),
    "complex32": Kind("f2,f2", "c8", _widen_complex32),
    "complex64": Kind("c8", "c8"),
    "complex128": Kind("c16", "c16"),
}

STORAGES = {
    "torch.BoolStorage": "bool",
    "torch.ByteStorage": "uint8",
    "torch.CharStorage": "int8",
    "torch.ShortStorage": "int16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    "torch.HalfStorage": "float16",
    "torch.FloatStorage": "float32",
    "torch.DoubleStorage": "float64",
    "torch.BFloat16Storage": "bfloat16",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.storage.UntypedStorage": "uint8",
}
DTYPES = {f"torch.{kind}": kind for kind in KINDS}


class Storage:
    """`count` elements of `kind`, a name in `KINDS`, which the file keeps under `key`."""

    def __init__(self, key: str, kind: str, count: int):
        self.key, self.kind, self.count = key, kind, count
        self.nbytes = count * KINDS[kind].size
        self.arrays: dict[str, np.ndarray] = {}

    def array(self, kind: str) -> np.ndarray:
        """The bytes as a flat array of `kind`; its values come with `fill`."""
        if kind not in self.arrays:
            if len(self.arrays) == MAX_DTYPES:
                raise Refusal(f"views storage {self.key} as more than {MAX_DTYPES} dtypes")
            self.arrays[kind] = np.empty(self.nbytes // KINDS[kind].size, KINDS[kind].out)
        return self.arrays[kind]

    def fill(self, stream: BinaryIO, order: str) -> None:
        """Reads the bytes, of order "<" or ">", from `stream` into the arrays made so far."""
        for start in range(0, self.nbytes, CHUNK):
            wanted = min(CHUNK, self.nbytes - start)
            data = stream.read(wanted)
            if len(data) < wanted:
                raise Refusal(f"ends inside storage {self.key}; copy or download it again")
            for kind, array in self.arrays.items():
                first = start // KINDS[kind].size
                part = KINDS[kind].decode(data, order)
                array[first : first + len(part)] = part


@dataclass(frozen=True)
class Window:
    """What a pickle calls a storage: `count` elements from `first`, nearly always all of one."""

    storage: Storage
    first: int
    count: int

    def flat(self, kind: str) -> np.ndarray:
        """The window's elements as a flat array of `kind`."""
        own, size = KINDS[self.storage.kind].size, KINDS[kind].size
        first, rest = divmod(self.first * own, size)
        if rest:
            raise Refusal(f"views storage {self.storage.key} at an odd byte")
        return self.storage.array(kind)[first : first + self.count * own // size]

    def tensor(self, kind: str, offset: int, shape: tuple, strides: tuple) -> np.ndarray:
        """A view of `shape`; `offset` and `strides` count elements of `kind`."""
        _check_counts(offset, shape, strides)
        flat = self.flat(kind)
        if math.prod(n for n in shape if n) > max(flat.size, MAX_EXPANDED):
            raise Refusal(f"has a tensor of an absurd size: {shape}")
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        if offset + sum((n - 1) * s for n, s in zip(shape, strides)) >= flat.size:
            raise Refusal(
                f"has a tensor {shape}, strides {strides}, offset {offset}, that reaches outside "
                f"the {flat.size} elements of storage {self.storage.key}"
            )
        item = flat.itemsize
        steps = [s * item if n > 1 else item for n, s in zip(shape, strides)]
        return np.ndarray(shape, flat.dtype, flat, offset * item, steps)


def is_count(value: object) -> bool:
    """Whether a value out of a file is a whole number from 0."""
    return type(value) is int and value >= 0


def _check_counts(offset: object, shape: object, strides: object) -> None:
    if not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise Refusal("has a tensor whose shape or strides are no tuple")
    if not all(is_count(n) for n in (offset, *shape, *strides)):
        raise Refusal(f"has a tensor with a negative size, stride or offset: {shape}, {strides}")
    if len(shape) != len(strides) or len(shape) > 32:
        raise Refusal(f"has a tensor whose shape {shape} does not fit its strides {strides}")
