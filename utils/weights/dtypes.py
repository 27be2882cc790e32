"""The element types of PyTorch, safetensors and MindSpore files as numpy types.

A type that numpy lacks is widened exactly: bfloat16 and float8 to float32, complex32 to complex64.
"""

from functools import partial

import numpy as np


def widen_float8(fraction_bits: int, bias: int, nans: list[int], codes: np.ndarray) -> np.ndarray:
    """(n,) uint8 codes of a float8 type without infinities -> (n,) float64, by a table of all 256.

    A code has 1 sign bit, then the exponent with its `bias`, then `fraction_bits`. `nans` are the
    codes of NaN, not a number.
    """
    code = np.arange(256)
    exponent, fraction = (code & 127) >> fraction_bits, code % (1 << fraction_bits)
    significand = fraction / (1 << fraction_bits) + (exponent > 0)
    table = np.ldexp(significand, np.maximum(exponent, 1) - bias)
    table[nans] = np.nan
    return np.copysign(table, 127.5 - code)[codes]


NUMPY_TYPES = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
NUMPY_TYPES += "float16 float32 float64 complex64 complex128"
# PyTorch's name of a type: (numpy's type in the file, numpy's type in memory, function from a flat
# array of the first to one that numpy casts to the second).
DTYPES = {
    **{dtype: (dtype, dtype, np.asarray) for dtype in NUMPY_TYPES.split()},
    "bool": ("u1", "?", lambda raw: raw != 0),
    "bfloat16": ("u2", "f4", lambda raw: (raw.astype("u4") << 16).view("f4")),
    "complex32": ("2f2", "c8", lambda raw: raw.astype("f4").view("c8")[..., 0]),
    "float8_e4m3fn": ("u1", "f4", partial(widen_float8, 3, 7, [127, 255])),
    "float8_e4m3fnuz": ("u1", "f4", partial(widen_float8, 3, 8, [128])),
    "float8_e5m2": ("u1", "f4", lambda raw: (raw.astype("u2") << 8).view("f2")),
    "float8_e5m2fnuz": ("u1", "f4", partial(widen_float8, 2, 16, [128])),
    "float8_e8m0fnu": ("u1", "f4", lambda raw: np.where(raw < 255, 2.0 ** (raw - 127.0), np.nan)),
}


def get_itemsize(dtype: str) -> int:
    """Bytes of an element in the file; `dtype` is a key of DTYPES."""
    return np.dtype(DTYPES[dtype][0]).itemsize
