"""Loads the pickles inside PyTorch files as plain data, without executing anything.

A scan first refuses opcodes that torch.save never writes, and more work than a checkpoint needs.
Python's unpickler then builds the tree. It imports nothing: a global is a `Name`, and a call of it
runs the function that `CALLS` has for it. At the end, `finish` makes plain values of all of it.
"""

import io
import pickle
import pickletools
import struct
import zipfile
from typing import Union

import numpy as np

from utils.weights.torch_storage import (
    KINDS,
    STORAGES,
    Dtype,
    Storage,
    TorchFileError,
    are_counts,
    make_array,
    make_bytes,
    make_scalar,
    need,
    view,
)

MAX_STEPS = 500_000  # opcodes, and items that calls copy; a large checkpoint has 200,000
MAX_LINE = 1000  # bytes
MAX_BITS = 128  # of a number
MAX_KEYS = 10_000  # of a dictionary, unless they are text; a file can choose the others' hashes
MAX_DEPTH, MAX_ITEMS = 100, 10_000_000  # of a walk that follows every reference
# What parsers raise over damaged files; a TorchFileError, a ValueError too, is caught before these.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)
DAMAGE += (OSError, EOFError, MemoryError, struct.error, zipfile.BadZipFile, pickle.PickleError)
OPCODES = """PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    SHORT_BINSTRING BINSTRING SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES
    BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM
    SETITEMS EMPTY_SET ADDITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL
    REDUCE NEWOBJ BUILD BINPERSID"""
REWRITTEN = {
    "FRAME": b"",  # across whose end Python's unpickler and the scan would read differently
    "EMPTY_DICT": b"cbuiltins\ndict\n)R",  # a `Dict`, which checks its keys
    "EMPTY_SET": b"cbuiltins\nset\n)R",
    "NEWOBJ": b"R",  # a name is called, whatever the pickle takes it for
}
COPIES = "refused: its pickle copies its own parts again and again"


class Name(str):
    """A global of a pickle: its dotted name. Its unpickler answers a call of it."""

    def __call__(self, *args: object) -> object:
        return self.unpickler.call(self, args)

    def __setstate__(self, state: object) -> None:
        need(False, "sets the state of a Name, {}", self)


class Dict(dict):
    """A dictionary whose keys are plain; the attributes of an OrderedDict are left out."""

    def __init__(self, items: Union[list, tuple, dict] = ()):
        for key, value in items.items() if isinstance(items, dict) else items:
            self[key] = value

    def __setitem__(self, key: object, value: object) -> None:
        """Refuses keys that could hash for ever, and too many whose hashes a file can choose."""
        plain = (str, bytes, int, float, type(None), np.generic)
        parts = key if isinstance(key, tuple) else (key,)
        good = len(parts) <= 16 and all(isinstance(part, plain) for part in parts)
        good = good and all(type(part) is not int or part.bit_length() <= 64 for part in parts)
        need(good, "has a {} as the key of a dictionary or set", type(key).__name__)
        few = isinstance(key, (str, bytes)) or len(self) < MAX_KEYS
        need(few, "has a dictionary or set of more than {} keys other than text", MAX_KEYS)
        super().__setitem__(key, value)

    def __setstate__(self, state: object) -> None:
        pass


class Set(Dict):
    """A set, as the keys of a dictionary."""

    def __init__(self, items: Union[list, tuple] = ()):
        super().__init__([(item, None) for item in items])

    def add(self, item: object) -> None:
        self[item] = None


class Held:
    """A tensor; or a numpy array or Namespace, which waits for its state."""

    def __init__(self, *value: np.ndarray):
        self.value = value[0] if value else None

    def __setstate__(self, state: Union[tuple, Dict]) -> None:
        if self.value is None:
            self.value = state
        else:  # the attributes of an old Variable
            need(len(state) != 5, "fills a numpy array which is no blank one")


def _tensor(window, offset, shape, strides, grad=None, hooks=None, metadata=None, dtype=None):
    storage = window[0] if isinstance(window, tuple) else None
    kind = dtype[len("torch.") :] if isinstance(dtype, Name) else getattr(storage, "kind", None)
    known = isinstance(storage, Storage) and kind in KINDS
    need(known, "has a tensor without a storage or without a dtype")
    need(not metadata, "has a lazy conjugate; save tensor.resolve_conj().resolve_neg()")
    return Held(view(*window, kind, offset, shape, strides))


def _tensor_of_class(function: Name, kind: Name, args: tuple, state: object) -> Held:
    need(kind in TENSOR_CLASSES, "has a tensor of class '{}'", kind)
    known = function.startswith("torch._utils._rebuild_tensor_v")
    need(known, "makes a tensor by '{}'", function)
    return function(*args)


def _size(sizes: tuple) -> tuple:
    need(are_counts(*sizes), "has a torch.Size of something else than sizes")
    return sizes


def _device(kind: str, *index: int) -> str:
    need(isinstance(kind, str) and are_counts(*index), "has a torch.device without a name")
    return ":".join([kind, *map(str, index)])


NONE = type(None)
TENSOR = (_tensor, tuple, list, int, Name, Dict, NONE)
PARAMETER = (lambda data, *about: data, Held, int, tuple, Dict, NONE)
TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Buffer", "torch.nn.parameter.Parameter")
CALLS = {  # the function for a name, and the types that its arguments may have
    "torch._utils._rebuild_tensor": TENSOR,
    "torch._utils._rebuild_tensor_v2": TENSOR,
    "torch._utils._rebuild_tensor_v3": (
        lambda *args: _tensor(*args[:6], *args[7:], dtype=args[6]),
        *TENSOR[1:],
    ),
    "torch._utils._rebuild_parameter": PARAMETER,
    "torch._utils._rebuild_parameter_with_state": PARAMETER,
    "torch._tensor._rebuild_from_type_v2": (_tensor_of_class, Name, tuple, Dict, NONE),
    "torch.nn.parameter.Parameter": PARAMETER,
    "torch.autograd.variable.Variable": PARAMETER,
    "torch.Size": (_size, tuple),
    "torch.device": (_device, str, int),
    "collections.OrderedDict": (Dict, list, tuple, Dict),
    "collections.Counter": (Dict, Dict),
    "argparse.Namespace": (Held,),
    "builtins.dict": (Dict,),
    "builtins.set": (Set, list, tuple),
    # With a slice as its key, a list could be put into itself.
    "builtins.slice": (lambda *ends: Held(slice(*ends)), int, NONE),
    "builtins.complex": (complex, int, float),
    "builtins.bytes": (make_bytes, str, bytes),
    "builtins.bytearray": (make_bytes, str, bytes),
    "_codecs.encode": (make_bytes, str, bytes),
    "numpy.dtype": (Dtype, str, int),
    "numpy.core.multiarray.scalar": (make_scalar, Dtype, str, bytes),
    "numpy.core.multiarray._reconstruct": (lambda *about: Held(), Name, tuple, str, bytes, int),
}
DTYPES = {f"torch.{kind}" for kind in KINDS}
ALLOWED = {*CALLS, *TENSOR_CLASSES, *STORAGES, *DTYPES, "numpy.ndarray"}
RENAMED = {"__builtin__": "builtins", "numpy._core.multiarray": "numpy.core.multiarray"}
HINTS = {
    "torch._utils._rebuild_qtensor": "it is a quantized tensor; save tensor.dequantize()",
    "torch._utils._rebuild_sparse_tensor": "it is a sparse tensor; save tensor.to_dense()",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on device meta has no values",
}
PLAIN = (str, bytes, int, float, complex, NONE, slice, np.generic, np.ndarray)


class Pickles(io.BytesIO):
    """The pickles of one file, in a row, and the work that they may still cost."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.steps_left = MAX_STEPS

    def readline(self, size: int = -1) -> bytes:
        return super().readline(MAX_LINE)

    def spend(self, steps: int, text: str) -> None:
        self.steps_left -= steps
        need(self.steps_left >= 0, text)

    def load(self, limit: int) -> tuple[object, dict[str, Storage]]:
        """The next pickle's tree, and the storages whose bytes its arrays lack, by key.

        These storages have at most `limit` bytes. Raises TorchFileError.
        """
        try:
            unpickler = _Unpickler(self._scan(), self, limit)
            tree, _, _ = unpickler.finish(unpickler.load())
        except TorchFileError:
            raise
        except DAMAGE as error:
            text = "has a damaged pickle, or ends inside its pickle ({}: {}); download it again"
            need(False, text, type(error).__name__, str(error))
        return tree, unpickler.storages

    def _scan(self) -> bytes:
        """The next pickle, checked, as Python's unpickler may load it."""
        data, done, pieces = self.getbuffer(), self.tell(), []
        depth, marks, opcodes = 0, [], set(OPCODES.split())
        many = f"refused: its pickle has more than {MAX_STEPS} steps"
        for opcode, argument, position in pickletools.genops(self):
            self.spend(1, many)
            name = opcode.name
            known = name in opcodes
            need(known, "refused: its pickle uses opcode {}, which is not followed", name)
            if name == "LONG1":
                need(argument.bit_length() <= MAX_BITS, "has a number of over {} bits", MAX_BITS)
            elif name in ("BINPUT", "LONG_BINPUT"):
                need(argument <= MAX_STEPS, "refused: its memo has a gap")
            elif name in REWRITTEN:
                pieces += [data[done:position], REWRITTEN[name]]
                done = position + (9 if name == "FRAME" else 1)
            before, mark = opcode.stack_before, pickletools.markobject
            depth = marks.pop() - before.index(mark) if mark in before else depth - len(before)
            marks += [depth] * (name == "MARK")
            depth += len(opcode.stack_after) * (name != "MARK")
        need(depth == 0, "has a damaged pickle (it leaves values behind)")
        pieces.append(data[done : self.tell()])
        return b"".join(pieces)


class _Unpickler(pickle.Unpickler):
    def __init__(self, code: bytes, pickles: Pickles, limit: int):
        super().__init__(io.BytesIO(code), encoding="latin-1")
        self.pickles, self.bytes_left = pickles, limit
        self.storages: dict[str, Storage] = {}
        self.finished: dict[int, tuple] = {}

    def find_class(self, module: str, name: str) -> Name:
        full = f"{RENAMED.get(module, module)}.{name}"
        hint = HINTS.get(full, "save the state dict, model.state_dict(), instead")
        text = "refused: it names {}, which this reader does not build ({})"
        need(full in ALLOWED, text, full, hint)
        found = Name(full)
        found.unpickler = self
        return found

    def call(self, name: Name, args: tuple) -> object:
        """The plain value of a call that the pickle asks for."""
        need(name in CALLS, "calls '{}', which this reader does not build", name)
        function, *types = CALLS[name]
        self.pickles.spend(len(args), COPIES)
        for arg in args:
            known = isinstance(arg, tuple(types))
            need(known, "calls {} with a {}", name, type(arg).__name__)
            if isinstance(arg, (str, bytes)):
                self.pickles.spend(len(arg) // 64, COPIES)
            elif isinstance(arg, (list, tuple, dict)):
                self.pickles.spend(len(arg), COPIES)
        return function(*args)

    def persistent_load(self, identity: tuple) -> tuple[Storage, int, int]:
        """(storage, first element, count) of what the pickle calls a storage."""
        form = isinstance(identity, tuple) and len(identity) in (5, 6)
        need(form, "has a persistent id of an unknown form")
        word, name, key, _, count, *view = identity
        known = isinstance(name, Name) and name in STORAGES and isinstance(key, str)
        known = known and word == "storage" and are_counts(count)
        need(known, "has a persistent id that names no storage")
        if key not in self.storages:
            self.storages[key] = Storage(key, STORAGES[name], count)
            self.bytes_left -= self.storages[key].nbytes
        storage, first = self.storages[key], 0
        same = (storage.kind, storage.count) == (STORAGES[name], count)
        need(same, "gives storage {} two sizes or dtypes", key)
        need(self.bytes_left >= 0, "claims more bytes for storage {} than the file has", key)
        if view and view[0] is not None:  # a storage within another, as PyTorch 0.3 wrote it
            _, first, count = view[0]
            inside = are_counts(first, count) and first + count <= storage.count
            need(inside, "has a view outside storage {}", key)
        return storage, first, count

    def finish(self, node: object, depth: int = 0) -> tuple[object, int, int]:
        """(plain value, levels, items) of what was built; neither may be large."""
        if isinstance(node, Held):
            if isinstance(node.value, tuple):
                self.pickles.spend(len(node.value) + len(node.value[-1]) // 64, COPIES)
                node.value = make_array(*node.value)
            node = node.value
        if not isinstance(node, (dict, list, tuple)):
            need(not isinstance(node, Storage), "holds a bare storage; save the tensor")
            plain = isinstance(node, PLAIN)
            need(plain, "holds a {}, which is no plain value", type(node).__name__)
            return str(node) if isinstance(node, Name) else node, 0, 1
        if id(node) not in self.finished:
            text = "refused: its pickle nests too deeply, contains itself or repeats itself often"
            need(depth < MAX_DEPTH, text)
            inner = node.values() if isinstance(node, dict) else node
            parts = [self.finish(value, depth + 1) for value in inner]
            levels = 1 + max((part[1] for part in parts), default=0)
            items = 1 + sum(part[2] for part in parts)
            need(levels <= MAX_DEPTH and items <= MAX_ITEMS, text)
            values = [part[0] for part in parts]
            if isinstance(node, Set):
                values = set(node)
            elif isinstance(node, dict):
                values = dict(zip(node, values))
            elif isinstance(node, tuple):
                values = tuple(values)
            self.finished[id(node)] = values, levels, items
        return self.finished[id(node)]
