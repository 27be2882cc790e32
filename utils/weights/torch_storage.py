"""PyTorch's dtypes and storages as numpy arrays, and numpy's own values out of a pickle.

What numpy lacks is widened exactly: bfloat16 and float8 to float32, complex32 to complex64.
"""

import math
import re
import reprlib
from functools import partial
from typing import BinaryIO, Union

import numpy as np

CHUNK = 1 << 20  # bytes read at once; a multiple of every item size
MAX_DTYPES = 4  # of one storage; each costs an array
MAX_EXPANDED = 1 << 28  # elements that strides of 0 may repeat


class TorchFileError(ValueError):
    """One line that names the file, what is wrong with it and, where possible, what to do."""


def need(holds: object, text: str, *values: object) -> None:
    """Raises TorchFileError, to which the reader adds the file's name; long values are cut."""
    if not holds:
        short = (value if isinstance(value, str) else reprlib.repr(value) for value in values)
        raise TorchFileError(text.format(*(value[:200] for value in short)))


def are_counts(*values: object) -> bool:
    """Whether values out of a file are whole numbers from 0 to 2^63 - 1."""
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _widen_float8(fraction_bits: int, bias: int, nans: list, raw: np.ndarray) -> np.ndarray:
    """The kinds without infinities, by a table of their 256 values."""
    code = np.arange(256)
    power, fraction = (code & 127) >> fraction_bits, code % (1 << fraction_bits)
    table = np.ldexp(fraction / (1 << fraction_bits) + (power > 0), np.maximum(power, 1) - bias)
    table[nans] = np.nan
    return np.copysign(table, 127.5 - code)[raw]


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


WHOLE = "uint8 uint16 uint32 uint64 int8 int16 int32 int64"
BROKEN = "float16 float32 float64 complex64 complex128"
KINDS = {  # torch's dtype: numpy's in the file, numpy's in memory, the way from one to the other
    **{kind: (kind, kind, np.asarray) for kind in f"{WHOLE} {BROKEN}".split()},
    "bool": ("u1", "?", lambda raw: raw != 0),
    "bfloat16": ("u2", "f4", lambda raw: (raw.astype("u4") << 16).view("f4")),
    "complex32": ("2f2", "c8", lambda raw: raw.astype("f4").view("c8")[..., 0]),
    "float8_e4m3fn": ("u1", "f4", partial(_widen_float8, 3, 7, [127, 255])),
    "float8_e4m3fnuz": ("u1", "f4", partial(_widen_float8, 3, 8, [128])),
    "float8_e5m2": ("u1", "f4", lambda raw: (raw.astype("u2") << 8).view("f2")),
    "float8_e5m2fnuz": ("u1", "f4", partial(_widen_float8, 2, 16, [128])),
    "float8_e8m0fnu": ("u1", "f4", lambda raw: np.where(raw < 255, 2.0 ** (raw - 127.0), np.nan)),
}
STORAGES = _pairs(
    "torch.BoolStorage:bool torch.ByteStorage:uint8 torch.CharStorage:int8 "
    "torch.ShortStorage:int16 torch.IntStorage:int32 torch.LongStorage:int64 "
    "torch.HalfStorage:float16 torch.FloatStorage:float32 torch.DoubleStorage:float64 "
    "torch.BFloat16Storage:bfloat16 torch.ComplexFloatStorage:complex64 "
    "torch.ComplexDoubleStorage:complex128 torch.storage.UntypedStorage:uint8"
)
SAFETENSORS = _pairs(
    "BOOL:bool U8:uint8 U16:uint16 U32:uint32 U64:uint64 I8:int8 I16:int16 I32:int32 I64:int64 "
    "F16:float16 F32:float32 F64:float64 BF16:bfloat16 C64:complex64 F8_E4M3:float8_e4m3fn "
    "F8_E5M2:float8_e5m2 F8_E8M0:float8_e8m0fnu"
)


def width(kind: str) -> int:
    """Bytes of an element in the file."""
    return np.dtype(KINDS[kind][0]).itemsize


class Storage:
    """`count` elements of `kind`, a key of `KINDS`, which the file keeps under `key`."""

    def __init__(self, key: str, kind: str, count: int):
        self.key, self.kind, self.count, self.nbytes = key, kind, count, count * width(kind)
        self.arrays: dict[str, np.ndarray] = {}

    def array(self, kind: str) -> np.ndarray:
        """The bytes as a flat array of `kind`; its values come with `fill`."""
        if kind not in self.arrays:
            few = len(self.arrays) < MAX_DTYPES
            need(few, "views storage {} as more than {} dtypes", self.key, MAX_DTYPES)
            self.arrays[kind] = np.empty(self.nbytes // width(kind), KINDS[kind][1])
        return self.arrays[kind]

    def fill(self, stream: BinaryIO, order: str) -> None:
        """Reads the bytes, of order "<" or ">", from `stream` into the arrays made so far."""
        for start in range(0, self.nbytes, CHUNK):
            length = min(CHUNK, self.nbytes - start)
            data = stream.read(length)
            whole = len(data) == length
            need(whole, "ends inside storage {}; copy or download it again", self.key)
            for kind, array in self.arrays.items():
                raw, _, widen = KINDS[kind]
                first, count = start // width(kind), length // width(kind)
                part = np.frombuffer(data, np.dtype(raw).newbyteorder(order), count)
                array[first : first + count] = widen(part)


def view(storage, first, count, kind, offset, shape, strides) -> np.ndarray:
    """A tensor over `count` elements of a storage from `first`.

    `kind` is the tensor's own; `offset` and `strides` count elements of it.
    """
    tuples = isinstance(shape, tuple) and isinstance(strides, tuple)
    need(tuples, "has a tensor whose shape or strides are no tuple")
    text = "has a tensor of shape {}, strides {}, offset {}, "
    fits = len(shape) == len(strides) <= 32
    need(fits, text + "and the shape does not fit its strides", shape, strides, offset)
    counts = are_counts(offset, *shape, *strides)
    need(counts, text + "some of which are negative or no numbers", shape, strides, offset)
    own, size = width(storage.kind), width(kind)
    need(first * own % size == 0, "views storage {} at an odd byte", storage.key)
    flat = storage.array(kind)[first * own // size : (first + count) * own // size]
    small = math.prod(n for n in shape if n) <= max(flat.size, MAX_EXPANDED)
    need(small, text + "an absurd size", shape, strides, offset)
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    inside = offset + sum((n - 1) * s for n, s in zip(shape, strides)) < flat.size
    text += "that reaches outside the {} elements of storage {}"
    need(inside, text, shape, strides, offset, flat.size, storage.key)
    item = flat.itemsize
    steps = [s * item if n > 1 else item for n, s in zip(shape, strides)]
    return np.ndarray(shape, flat.dtype, flat, offset * item, steps)


class Dtype:
    """A numpy dtype of numbers; its byte order comes as its state."""

    def __init__(self, code: str, *flags: object):
        number = isinstance(code, str) and re.fullmatch("b1|[iufc][0-9]{1,2}", code)
        need(number, "holds numpy values of dtype '{}'; only numbers are read", code)
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        need(state[1] in list("<>|="), "holds a numpy dtype of an unknown byte order")
        self.value = self.value.newbyteorder(state[1])


def make_array(version: int, shape: tuple, dtype: Dtype, fortran: bool, data: object) -> np.ndarray:
    """A numpy array from its pickled state; it views the state's bytes."""
    fits = len(shape) <= 32 and are_counts(*shape)
    fits = fits and len(data) == math.prod(shape) * dtype.value.itemsize
    need(fits, "has a numpy array {} of {} bytes", shape, len(data))
    return np.frombuffer(make_bytes(data), dtype.value).reshape(
        shape, order="F" if fortran else "C"
    )


def make_scalar(dtype: Dtype, data: Union[str, bytes]) -> np.generic:
    need(len(data) == dtype.value.itemsize, "has a numpy number of the wrong length")
    return np.frombuffer(make_bytes(data), dtype.value)[0]


def make_bytes(text: Union[str, bytes] = "", encoding: str = "latin1") -> bytes:
    """Bytes, which protocol 2 spells as text of one character each."""
    need(encoding in ("latin1", "latin-1"), "makes bytes in {}", encoding)
    return text.encode("latin-1") if isinstance(text, str) else text
