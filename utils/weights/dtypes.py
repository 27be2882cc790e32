"""The element types of PyTorch, safetensors and MindSpore files as numpy types.

bfloat16, which numpy lacks, becomes float32, exactly.
"""

import numpy as np

NUMPY_TYPES = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"
# PyTorch's name of a type: (numpy's type in the file, numpy's type in memory, function from a flat
# array of the first to one that numpy casts to the second).
DTYPES = {
    **{dtype: (dtype, dtype, np.asarray) for dtype in NUMPY_TYPES.split()},
    "bool": ("u1", "?", lambda raw: raw != 0),
    "bfloat16": ("u2", "f4", lambda raw: (raw.astype("u4") << 16).view("f4")),
}


def get_itemsize(dtype: str) -> int:
    """Bytes of an element in the file; `dtype` is a key of DTYPES."""
    return np.dtype(DTYPES[dtype][0]).itemsize
