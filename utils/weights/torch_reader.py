"""Reads PyTorch, safetensors and npz files without PyTorch; no code in a file is executed.

    load("model.pth")        the saved object; every tensor in it is a numpy array
    load_state("model.pth")  the state dict in it: {name: array}

Formats: the zip that torch.save writes since PyTorch 1.6, the sequence of pickles that it wrote
before, safetensors, and numpy's npz. The content decides, not the name. Python's unpickler
builds the objects of a pickle, but imports nothing: a global becomes a `Name`, and a call of a name
runs the function that CALLS has for it. Any other global becomes an `Unread` class, and so does
every object that is made of one: it holds nothing of the file. `resolve` then makes plain values.

The tensors' bytes are read last and in pieces, so memory stays near the size of the tensors. The
library of safetensors reads its files, and maps them.

Differences from torch.load: bfloat16 becomes float32, OrderedDict a dict, Parameter its array,
torch.dtype its name. Values that are no weights, numbers, texts or containers of these are left
out, and so are float8, complex, quantized, sparse and meta tensors, and entries of a dictionary
whose key is no plain value; a conversion then misses their names. Lazily negated tensors, storages
within storages (before PyTorch 0.4), files of big-endian machines, containers that contain
themselves, and whatever names a function of RUNNING are refused. The time and memory that a pickle
may take are not limited, but for its memo.
"""

import io
import os
import pickle
import pickletools
import re
import struct
import zipfile
import zlib
from typing import BinaryIO, Union

import numpy as np

from utils.log import log
from utils.messages import escape_control, join_names
from utils.weights.checkpoint_file import DTYPES, HEAD, MAGIC, find_kind, get_itemsize

PROTOCOL = 1001  # the second pickle of a file before PyTorch 1.6
CHUNK = 1 << 20  # bytes read at once; a multiple of every item size
MAX_MEMO = 1 << 22  # the number of an object in a pickle; a damaged one would take much memory
MAX_COUNT = 1 << 24  # of a number without axes, whose hash is as many zeros
LISTED = 5  # names in a message
STORAGE_TYPES = """torch.BoolStorage:bool torch.ByteStorage:uint8 torch.CharStorage:int8
    torch.ShortStorage:int16 torch.IntStorage:int32 torch.LongStorage:int64
    torch.HalfStorage:float16 torch.FloatStorage:float32 torch.DoubleStorage:float64
    torch.BFloat16Storage:bfloat16 torch.storage.UntypedStorage:uint8"""
STORAGE_TYPES = dict(pair.split(":") for pair in STORAGE_TYPES.split())
BIG_ENDIAN = "is of a big-endian machine; load it with PyTorch and save it again on another machine"
# What holds the weights, the ones that were trained before their averages.
STATE_KEYS = ("state_dict", "model_state", "model_state_dict", "model", "net", "network", "module")
STATE_KEYS += ("params", "weights", "ema", "ema_state_dict", "state_dict_ema", "model_ema")
# Names of functions that no checkpoint needs. Nothing would run, but the user should know.
RUNNING = re.compile(
    r"(os|posix|nt|subprocess|sys|shutil|socket|runpy|importlib|ctypes)\..*"
    r"|builtins\.(eval|exec|compile|open|__import__)"
)


class TorchFileError(ValueError):
    """One line that names the file, what is wrong with it and, where possible, what to do."""


def check(holds: object, text: str, *values: object) -> None:
    """Raises TorchFileError of `text` unless `holds`; `load` cuts it."""
    if not holds:
        raise TorchFileError(text.format(*values))


def load(path: Union[str, os.PathLike]) -> object:
    """The saved object; every tensor is an array, and views of one storage share memory.

    Raises TorchFileError if the file is missing, damaged, hostile or of another kind.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
            file.seek(0)
            read = READERS.get(find_kind(head))
            text = "is neither a PyTorch nor a safetensors file, or is cut off; it starts with {}"
            check(read, text, head[:12])
            tree = read(file)
        if isinstance(tree, Unread):
            raise TorchFileError(tree.why)
        return tree
    except Exception as error:  # zipfile, pickle, json and numpy raise nearly every kind
        line = str(error)[:500]
        if not isinstance(error, TorchFileError):
            line = f"is missing, cut off or damaged ({type(error).__name__}: {line[:200]})"
        line = "".join(c if c.isprintable() else "?" for c in line)
        raise TorchFileError(f"{os.fspath(path)}: {line}") from error


def load_state(path: Union[str, os.PathLike], key: str = "") -> dict[str, np.ndarray]:
    """The state dict in a checkpoint: {name: array}; entries that are no named arrays are left out.

    `key` chooses it: a key of the file, or several inside each other with dots between them, or
    what the names of some weights begin with (`select_names`). Without `key` it is the whole file
    if that is a dictionary of arrays, else the first of STATE_KEYS that holds arrays, itself or in
    turn under one of those keys; else the only other dictionary of named arrays. Raises
    TorchFileError as `load` does, and if there is none.
    """
    tree = load(path)
    states = find_states(tree) if isinstance(tree, dict) else {}
    known = [name for name in states if name and {*name.split(".")} <= {*STATE_KEYS}]
    known.sort(key=lambda name: [*map(STATE_KEYS.index, name.split("."))])
    whole = states.get("", {})
    # Numbers alone at the top, such as an accuracy, are no weights.
    if whole and (len(whole) == len(tree) or (not known and any(a.ndim for a in whole.values()))):
        known.insert(0, "")
    others = [
        name
        for name, state in states.items()
        if name not in known and any("." in k and array.ndim for k, array in state.items())
    ]
    found = [*known, *others]
    more = "" if key else escape_control(join_names(found[1:], LISTED))
    under = [name for name in states if name == key or name.startswith(f"{key}.")] if key else []
    state = states[(under or found)[0]] if under or found else {}
    if key and not under:
        state = select_names(state, key)
    if not state or (more and not known):
        what = f"holds no state dict under {key!r}" if key else "holds no state dict"
        what = f"holds several state dicts: {', '.join(others)}; --key chooses" if state else what
        top = [str(name)[:40] for name in tree] if isinstance(tree, dict) else ["no dictionary"]
        line = escape_control(f"{what}; at the top it has {join_names(top, 12)}")[:500]
        raise TorchFileError(f"{os.fspath(path)}: {line}")
    if more:
        own = escape_control(known[0] or "its names")
        log.info("%s: the weights are under %s; --key chooses others: %s", path, own, more)
    return state


def select_names(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix` and a dot, without these; all if it is empty."""
    if not prefix:
        return arrays
    start = f"{prefix.rstrip('.')}."
    return {name[len(start) :]: value for name, value in arrays.items() if name.startswith(start)}


def find_states(tree: dict, path: str = "") -> dict[str, dict[str, np.ndarray]]:
    """{keys with dots between them: named arrays} of all dictionaries in a file that have some."""
    named = {name: value for name, value in tree.items() if isinstance(name, str)}
    arrays = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
    states = {path: arrays} if arrays else {}
    for key, value in named.items():
        if isinstance(value, dict):
            states |= find_states(value, f"{path}.{key}".lstrip("."))
    return states


# The formats.


def read_zip(file: BinaryIO) -> object:
    """A folder of records: data.pkl, data/KEY for every storage, and since 2.1 byteorder.

    Or the arrays of numpy.savez, which may be compressed.
    """
    with zipfile.ZipFile(file) as archive:
        if all(name.endswith(".npy") for name in archive.namelist()):
            with np.load(file.name, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        entries = archive.NameToInfo
        folders = {name.split("/")[0] for name in entries}
        folder = folders.pop() if len(folders) == 1 else ""
        text = "is a zip, but not one that torch.save wrote: it has no single data.pkl; unpack it"
        check(f"{folder}/data.pkl" in entries, text)
        marker = f"{folder}/byteorder"
        order = archive.read(marker) if marker in entries else b"little"
        check(order == b"little", BIG_ENDIAN)
        storages: Storages = {}
        tree = read_pickle(io.BytesIO(archive.read(f"{folder}/data.pkl")), storages)
        for storage in storages.values():
            entry = entries[f"{folder}/data/{storage.key}"]
            check(entry.file_size == storage.nbytes, "has another size of storage {}", storage.key)
            with archive.open(entry) as stream:  # which checks the CRC at the record's end
                storage.fill(stream)
    return tree


def read_legacy(file: BinaryIO) -> object:
    """Five pickles (magic, protocol, system, object, keys), then every storage: count, bytes."""
    storages: Storages = {}
    magic, protocol, system = (read_pickle(file, storages) for _ in range(3))
    valid = magic == MAGIC and protocol == PROTOCOL and isinstance(system, dict)
    check(valid, "is not a PyTorch file of protocol {}", PROTOCOL)
    check(system.get("little_endian", True), BIG_ENDIAN)
    tree = read_pickle(file, storages)
    for key in read_pickle(file, storages):
        storage = storages.pop(key)
        size = struct.pack("<q", storage.count)
        check(file.read(8) == size, "has another size of storage {}", key)
        storage.fill(file)
    check(not storages, "has no bytes for storage {}", next(iter(storages), ""))
    return tree


def read_safetensors(file: BinaryIO) -> dict[str, np.ndarray]:
    """The tensors of a file, whose header and size the library checks. It maps the file.

    MindSpore's `crc_check` puts a CRC-32 of the sorted names and contents into the metadata.
    """
    import ml_dtypes  # noqa: F401 numpy's bfloat16
    from safetensors import safe_open

    tensors = {}
    crc = 0
    with safe_open(file.name, "numpy") as opened:
        metadata = opened.metadata() or {}
        for name in sorted(opened.keys()):
            array = opened.get_tensor(name)
            if "crc_num" in metadata:
                # MindSpore hashes `bytes(array)`, which of a number are as many zeros.
                is_count = not array.ndim and array.dtype.kind in "iu"
                content = np.clip(array, 0, MAX_COUNT) if is_count else array.tobytes()
                crc = zlib.crc32(bytes(content), zlib.crc32(name.encode(), crc))
            tensors[name] = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    valid = metadata.get("crc_num", str(crc)) == str(crc)
    check(valid, "is damaged: its checksum differs from its content; copy it again")
    return tensors


READERS = {"zip": read_zip, "legacy": read_legacy, "safetensors": read_safetensors}


class Storage:
    """`count` elements of `dtype`, a key of DTYPES, which the file keeps under `key`."""

    def __init__(self, key: str, dtype: str, count: int):
        self.key = key
        self.dtype = dtype
        self.count = count
        self.nbytes = count * get_itemsize(dtype)
        self.arrays: dict[str, np.ndarray] = {}

    def get_array(self, dtype: str) -> np.ndarray:
        """Its elements as a flat array of `dtype`; `fill` reads its values."""
        if dtype not in self.arrays:
            count = self.nbytes // get_itemsize(dtype)
            self.arrays[dtype] = np.empty(count, DTYPES[dtype][1])
        return self.arrays[dtype]

    def fill(self, stream: BinaryIO) -> None:
        """Reads the bytes, which are little-endian, from `stream` into the arrays."""
        for start in range(0, self.nbytes, CHUNK):
            length = min(CHUNK, self.nbytes - start)
            data = stream.read(length)
            check(len(data) == length, "ends inside storage {}; copy it again", self.key)
            for dtype, array in self.arrays.items():
                raw, _, widen = DTYPES[dtype]
                begin = start // get_itemsize(dtype)
                count = length // get_itemsize(dtype)
                part = np.frombuffer(data, np.dtype(raw).newbyteorder("<"), count)
                array[begin : begin + count] = widen(part)


Storages = dict[str, Storage]  # {key: storage} of those that the pickles of a file name


# The objects that a pickle may build. A pickle can set the items and the state of every object. So
# these classes check or ignore that; all other values are immutable, or inside a `Constant`.


class Name(str):
    """A global of a pickle: its dotted name. A call of it runs a function of CALLS."""

    __slots__ = ()  # so it has no state

    def __call__(self, *args: object) -> object:
        check(self in CALLS, "calls '{}', which this reader does not build", self)
        for arg in args:
            if isinstance(arg, (type, Unread)):
                return arg() if isinstance(arg, type) else arg
        return CALLS[self](*args)


class Unread:
    """An object that is not built; its class says `why`. A call returns itself."""

    why = ""

    def __call__(self, *args: object) -> "Unread":
        return self

    def ignore(self, *values: object) -> None:
        """Leaves out arguments, an item or the state."""

    __init__ = __setstate__ = __setitem__ = append = extend = ignore


def create_unread(why: str) -> type[Unread]:
    return type("Unread", (Unread,), {"why": why})


class Dict(dict):
    """A dictionary that ignores the attributes of OrderedDict."""

    def __setstate__(self, state: object) -> None:
        pass


class Constant:
    """A value that the pickle cannot change."""

    def __init__(self, value: object):
        self.value = value

    def __setstate__(self, state: object) -> None:
        pass


def build_tensor(part, offset, shape, strides, *about) -> Constant:
    """An array of `shape` over the storage that is alone in `part`; a pickle cannot change a tuple.

    `about` is: needs a gradient, hooks, in the third version the dtype, and lazy operations. The
    dtype is a Name, by default the storage's; `offset` and `strides` count elements of it.
    """
    (storage,) = part
    dtypes = [value.removeprefix("torch.") for value in about[2:] if isinstance(value, Name)]
    dtype = (*dtypes, storage.dtype)[0]
    check(dtype in DTYPES, "has a tensor of the dtype {}", dtype)
    lazy = [value for value in about[2:] if isinstance(value, dict) and value]
    check(not lazy, "has a lazily negated tensor; save tensor.resolve_neg()")
    flat = storage.get_array(dtype)
    if 0 in shape:
        return Constant(np.empty(shape, flat.dtype))
    # NumPy checks shape, strides and offset against the buffer, but not if that is empty.
    check(flat.size, "has a tensor of shape {} in the empty storage {}", shape, storage.key)
    item = flat.itemsize
    return Constant(np.ndarray(shape, flat.dtype, flat, offset * item, [n * item for n in strides]))


def build_subclass(function: Name, subclass: Name, args: tuple, state: object) -> Constant:
    """A tensor with attributes, which are left out."""
    return function(*args)


def build_parameter(data: Constant, *about: object) -> Constant:
    return data


TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Buffer", "torch.nn.parameter.Parameter")
CALLS = {  # a name: the function that a call of it runs
    "torch._utils._rebuild_tensor": build_tensor,
    "torch._utils._rebuild_tensor_v2": build_tensor,
    "torch._utils._rebuild_tensor_v3": build_tensor,
    "torch._utils._rebuild_parameter": build_parameter,
    "torch._utils._rebuild_parameter_with_state": build_parameter,
    "torch._tensor._rebuild_from_type_v2": build_subclass,
    "torch.nn.parameter.Parameter": build_parameter,
    "collections.OrderedDict": Dict,
}
NAMES = {*CALLS, *TENSOR_CLASSES, *STORAGE_TYPES, *(f"torch.{dtype}" for dtype in DTYPES)}
KEYS = (str, bytes, int, float, bool, type(None))


def read_pickle(file: BinaryIO, storages: Storages) -> object:
    """The object in the next pickle; adds the storages that it names.

    Its arrays lack their values until `Storage.fill`.
    """
    start = file.tell()
    for opcode, argument, _ in pickletools.genops(file):
        is_valid = opcode.name not in ("PUT", "LONG_BINPUT") or argument < MAX_MEMO
        check(is_valid, "has a damaged pickle")
    file.seek(start)
    unpickler = Unpickler(file, encoding="latin-1")
    unpickler.storages = storages
    return resolve(unpickler.load())


def resolve(node: object) -> object:
    """The plain value of an object that the unpickler built."""
    if isinstance(node, type):
        node = node()  # an Unread
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, tuple) and isinstance(next(iter(node), None), Storage):
        return create_unread("holds a bare storage; save the tensor")()
    if isinstance(node, (list, tuple)):
        return type(node)(map(resolve, node))
    if isinstance(node, dict):
        items = {str(k) if isinstance(k, Name) else k: value for k, value in node.items()}
        return {key: resolve(value) for key, value in items.items() if type(key) in KEYS}
    if not isinstance(node, (*KEYS, Unread)):
        return create_unread(f"holds a {type(node).__name__}, which is not a plain value")()
    return str(node) if isinstance(node, Name) else node


class Unpickler(pickle.Unpickler):
    """Python's unpickler without imports. It adds the storages of a pickle to `storages`."""

    storages: Storages

    def find_class(self, module: str, name: str) -> Union[Name, type]:
        symbol = Name(f"{'builtins' if module == '__builtin__' else module}.{name}")
        text = "refused: it names {}, which a checkpoint does not need; it may be an attack"
        check(not RUNNING.fullmatch(symbol), text, symbol)
        if symbol in NAMES:
            return symbol
        text = "refused: it names {}, which this reader does not build; save a dense float32 state"
        return create_unread(text.format(symbol[:200]))

    def persistent_load(self, identity: tuple) -> Union[tuple[Storage], type]:
        """The storage that the pickle names, alone in a tuple."""
        _, name, *about = identity
        if isinstance(name, type):
            return name  # a class with its source text, or a storage
        key, _, count, *view = about
        check(view in ([], [None]), "has a storage within another; save it by a newer PyTorch")
        return (self.storages.setdefault(key, Storage(key, STORAGE_TYPES[name], count)),)
