"""What a name inside a PyTorch pickle may stand for: the allow-list.

No name is ever imported. A global stays its dotted name, and a call of one of the names in `CALLS`
runs the small function beside it, which knows plain data and numpy only.
"""

import math
import re
from typing import Optional, Union

import numpy as np

from utils.torch_storage import DTYPES, STORAGES, Refusal, Window, is_count

PARAMETER = "torch.nn.parameter.Parameter"
TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Buffer", PARAMETER)
RENAMED = (("__builtin__.", "builtins."), ("numpy._core.", "numpy.core."))  # Python 2, numpy 2
HINTS = {
    "torch._utils._rebuild_qtensor": "it is a quantized tensor; save tensor.dequantize()",
    "torch._utils._rebuild_sparse_tensor": "it is a sparse tensor; save tensor.to_dense()",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on device meta has no values",
}


class Name(str):
    """A global of the pickle: nothing but its dotted name."""


class Namespace(dict):
    """An argparse.Namespace, as the dictionary of its values."""


class Dtype:
    """A numpy dtype of numbers. The pickle makes it first and sets its byte order later."""

    def __init__(self, code: object, *flags: object):
        if not (isinstance(code, str) and re.fullmatch("b1|[iufc][0-9]{1,2}", code)):
            raise Refusal(f"holds numpy values of dtype {_brief(code)}; only numbers are read")
        self.value = np.dtype(code)

    def set_order(self, state: tuple) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise Refusal("holds a numpy dtype of an unknown byte order")
        self.value = self.value.newbyteorder(state[1])


def _brief(value: object) -> str:
    """For messages: the repr of a nested value could fill the memory."""
    return repr(value[:80]) if isinstance(value, (str, bytes)) else type(value).__name__


def check_key(key: object) -> object:
    """Refuses nested tuples, which could hash for ever, or until the stack breaks."""
    parts = key if isinstance(key, tuple) else (key,)
    plain = (str, bytes, int, float, type(None), np.generic)
    if len(parts) > 16 or not all(isinstance(part, plain) for part in parts):
        raise Refusal(f"has a {type(key).__name__} as the key of a dictionary or set")
    return key


def _tensor(window, offset, shape, strides, grad=False, hooks=None, metadata=None):
    dtype = f"torch.{window.storage.kind}" if isinstance(window, Window) else None
    return _tensor_v3(window, offset, shape, strides, grad, hooks, dtype, metadata)


def _tensor_v3(window, offset, shape, strides, grad, hooks, dtype, metadata=None):
    if not isinstance(window, Window) or dtype not in DTYPES:
        raise Refusal("has a tensor without a storage or without a dtype")
    if metadata:  # {"conj": True} or {"neg": True}: its values are not those of the storage
        raise Refusal("has a lazy conjugate; save tensor.resolve_conj().resolve_neg()")
    return window.tensor(DTYPES[dtype], offset, shape, strides)


def _tensor_with_attributes(function, tensor_type, args, state):
    if tensor_type not in TENSOR_CLASSES:
        raise Refusal(f"has a tensor of class {_brief(tensor_type)}")
    if not function.startswith("torch._utils._rebuild_tensor_v"):
        raise Refusal(f"makes a tensor by {_brief(function)}")
    return call(function, args)


def _parameter(data, *about):
    if not isinstance(data, np.ndarray):
        raise Refusal("has a parameter which is no tensor")
    return data


def _size(sizes: tuple) -> tuple:
    if not all(is_count(size) for size in sizes):
        raise Refusal("has a torch.Size of something else than sizes")
    return tuple(sizes)


def _device(kind: str, *index: int) -> str:
    if not isinstance(kind, str) or not all(is_count(number) for number in index):
        raise Refusal("has a torch.device without a name")
    return ":".join([kind, *map(str, index)])


def _slice(*ends: Optional[int]) -> slice:
    if not all(end is None or type(end) is int for end in ends):
        raise Refusal("has a slice of something else than numbers")
    return slice(*ends)


def make_set(items: Union[list, tuple] = ()) -> set:
    """A set of plain values."""
    if not isinstance(items, (list, tuple)):
        raise Refusal(f"makes a set of a {type(items).__name__}")
    return {check_key(item) for item in items}


def make_dict(items: Union[list, tuple, dict] = ()) -> dict:
    """A dictionary, from another or from pairs, whose keys are plain values."""
    if not isinstance(items, (list, tuple, dict)):
        raise Refusal(f"makes a dictionary of a {type(items).__name__}")
    pairs = items.items() if isinstance(items, dict) else items
    return {check_key(key): value for key, value in pairs}


def _complex(real: float, imag: float) -> complex:
    return complex(float(real), float(imag))


def _bytes(text: object = "", encoding: str = "latin-1") -> bytes:
    """Bytes or a bytearray, which protocol 2 spells as text of one character each."""
    if not isinstance(text, (str, bytes)) or encoding not in ("latin1", "latin-1"):
        raise Refusal(f"makes bytes of {_brief(text)} in {_brief(encoding)}")
    return text.encode("latin-1") if isinstance(text, str) else text


def _blank_array(array_type: Name, shape: tuple, code: bytes) -> np.ndarray:
    return np.empty(0, np.int8)  # `fill_array` follows


def _numpy_scalar(dtype: Dtype, data: object) -> np.generic:
    values = np.frombuffer(_bytes(data), dtype.value)
    if len(values) != 1:
        raise Refusal("has a numpy number of the wrong length")
    return values[0]


def fill_array(array: np.ndarray, state: tuple) -> None:
    """Makes a blank array what a pickled numpy array was: (version, shape, dtype, order, data)."""
    _, shape, dtype, fortran, data = state
    if array.shape != (0,):
        raise Refusal("fills a numpy array which is no blank one")
    data, shape = _bytes(data), _size(shape)
    if len(data) != math.prod(shape) * dtype.value.itemsize:
        raise Refusal(f"has a numpy array {shape[:32]} of {len(data)} bytes")
    array.__setstate__((1, shape, dtype.value, bool(fortran), data))


CALLS = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _tensor_with_attributes,
    PARAMETER: _parameter,
    "torch.autograd.variable.Variable": _parameter,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": make_dict,
    "collections.Counter": make_dict,
    "argparse.Namespace": lambda: Namespace(),
    "builtins.set": make_set,
    "builtins.slice": _slice,
    "builtins.complex": _complex,
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
    "numpy.dtype": Dtype,
    "numpy.core.multiarray.scalar": _numpy_scalar,
    "numpy.core.multiarray._reconstruct": _blank_array,
}
ALLOWED = {*CALLS, *TENSOR_CLASSES, *STORAGES, *DTYPES, "numpy.ndarray"}


def allow(module: str, name: str) -> Name:
    """The dotted name of a global, or a refusal by that name."""
    full = f"{module}.{name}"
    for old, new in RENAMED:
        full = new + full[len(old) :] if full.startswith(old) else full
    if full not in ALLOWED:
        hint = HINTS.get(full, "save the state dict, model.state_dict(), instead")
        raise Refusal(f"refused: it names {full[:200]}, which this reader does not build ({hint})")
    return Name(full)


def call(name: object, args: tuple) -> object:
    """The plain value of a call which the pickle asks for."""
    if not isinstance(name, Name) or name not in CALLS or not isinstance(args, tuple):
        raise Refusal(f"calls {_brief(name)}, which this reader does not build")
    return CALLS[name](*args)
