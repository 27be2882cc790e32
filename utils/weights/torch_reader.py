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

Differences from torch.load: bfloat16 becomes float32; OrderedDict and defaultdict become dict,
Parameter its array, torch.Size a tuple, bytearray bytes; torch.device, torch.dtype and classes
become their names. Values of numpy, argparse.Namespace and other classes, and entries of a
dictionary whose key is no plain value, are left out. float8, complex, quantized, sparse, meta and
lazily negated tensors, files of big-endian machines, containers that contain themselves, and
whatever names a function of RUNNING are refused. The time and memory that a pickle may take are not
limited, but for its memo.
"""

import io
import os
import pickle
import pickletools
import re
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Union

import numpy as np

from utils.log import log
from utils.messages import escape_control, join_names
from utils.weights.checkpoint_file import DTYPES, HEAD, MAGIC, MERGE, find_kind, get_itemsize

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
# Types that no checkpoint of these networks has: a pickle's global, or a header's type.
UNREAD_TYPES = re.compile(
    r"torch\.(Complex\w+|complex32|float8_\w+|_utils\._rebuild_qtensor)|C64|F8_\w+"
)
CONVERT = "{} is of type {}; convert it to float32 first"
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
    """Raises TorchFileError of `text` unless `holds`; long values in it are cut."""
    if not holds:
        texts = (value if isinstance(value, str) else reprlib.repr(value) for value in values)
        raise TorchFileError(text.format(*(value[:200] for value in texts)))


def load(path: Union[str, os.PathLike]) -> object:
    """The saved object; every tensor is an array, and views of one storage share memory.

    Raises TorchFileError if the file is missing, damaged, hostile or of another kind.
    """
    try:
        if not os.path.isfile(path) and os.path.exists(path) and not os.path.isdir(path):
            raise TorchFileError("is not a file")  # a pipe would block
        with open(path, "rb") as file:
            head = file.read(HEAD)
            file.seek(0)
            read = READERS.get(find_kind(head))
            check(head, "is empty; copy or download it again")
            check(head.lstrip()[:1] != b"<", "is a web page, not a checkpoint; download it again")
            if read is None:
                what = "is neither a PyTorch nor a safetensors file, or is packed or cut off"
                raise TorchFileError(f"{what}; it starts with {head[:8]!r}")
            tree = read(file)
        check(not isinstance(tree, Unread), "{}", tree.why if isinstance(tree, Unread) else "")
        return tree
    except TorchFileError as error:
        raise make_error(path, str(error)) from error
    except Exception as error:  # zipfile, json and numpy raise nearly every kind
        what = f"is missing, cut off or damaged ({type(error).__name__}: {str(error)[:200]})"
        raise make_error(path, f"{what}; copy or download it again") from error


def make_error(path: Union[str, os.PathLike], what: str) -> TorchFileError:
    line = "".join(c if c.isprintable() else "?" for c in what[:500])
    return TorchFileError(f"{os.fspath(path)}: {line}")


def load_state(path: Union[str, os.PathLike], key: str = "") -> dict[str, np.ndarray]:
    """The state dict in a checkpoint: {name: array}; entries that are no named arrays are left out.

    `key` chooses it: a key of the file, or several inside each other with dots between them, or
    what the names of some weights begin with (`select_names`). Without `key` it is the whole file
    if that is a dictionary of arrays, else the first of STATE_KEYS that holds arrays, itself or in
    turn under one of those keys; else the only other dictionary of named arrays. Raises
    TorchFileError as `load` does, and if there is none.
    """
    tree = load(path)
    entry = get_entry(tree, key) if key else None
    chosen = tree if entry is None else entry
    states = dict(find_states(chosen)) if isinstance(chosen, dict) else {}
    known = [name for name in states if not name or name.split(".")[0] in STATE_KEYS]
    name, *others = known or states or [""]
    state = {k: value for k, value in states.get(name, {}).items() if is_weight(k, value)}
    if key and entry is None:
        others = []
        state = select_names(state, key)
    if not state or (others and not known):
        what = f"holds several state dicts: {', '.join(states)}; --key chooses"
        if not state:
            what = f"holds no state dict under {key!r}" if key else "holds no state dict"
        top = f"a {type(tree).__name__}"
        if isinstance(tree, dict):
            top = f"the keys: {join_names([str(name)[:40] for name in tree], 12)}"
        raise make_error(path, f"{what}; at the top it has {top}")
    if others:
        texts = (escape_control(name or "its names"), escape_control(join_names(others, LISTED)))
        log.info("%s: the weights are under %s; --key chooses others: %s", path, *texts)
    left_out = [str(k) for k, value in states[name].items() if not is_weight(k, value)]
    if left_out:
        names = escape_control(join_names(left_out, LISTED))
        log.info("%s: left out what is no array: %s", path, names)
    return state


def select_names(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix` and a dot, without these."""
    start = f"{prefix.rstrip('.')}."
    return {name[len(start) :]: value for name, value in arrays.items() if name.startswith(start)}


def is_weight(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, np.ndarray)


def get_entry(tree: object, key: str) -> object:
    """The value under a key, or under keys with dots between them; None if there is none."""
    if not isinstance(tree, dict) or key in tree:
        return tree.get(key) if isinstance(tree, dict) else None
    parts = [part for part in tree if isinstance(part, str) and key.startswith(f"{part}.")]
    return get_entry(tree[parts[0]], key[len(parts[0]) + 1 :]) if parts else None


def find_states(tree: dict) -> Iterator[tuple[str, dict]]:
    """(key, dictionary with weights) of those in a file: those under STATE_KEYS, or else the file
    itself, whose key is empty; then those under other keys."""
    weights = [name for name, value in tree.items() if is_weight(name, value)]
    if weights and len(weights) == len(tree):
        yield "", tree
        return
    is_empty = True
    for key in STATE_KEYS:
        for inner, state in find_states(tree[key]) if isinstance(tree.get(key), dict) else ():
            is_empty = False
            yield f"{key}.{inner}".rstrip("."), state
    if is_empty and any(tree[name].ndim for name in weights):
        yield "", tree
    for key, value in tree.items():
        if isinstance(key, str) and key not in STATE_KEYS and isinstance(value, dict):
            arrays = {name: array for name, array in value.items() if is_weight(name, array)}
            if any("." in name and array.ndim for name, array in arrays.items()):
                yield key, value


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
        text = "is a TorchScript archive, which is a program; save model.state_dict()"
        check(f"{folder}/constants.pkl" not in entries, text)
        text = "is a zip, but not one that torch.save wrote: it has no single data.pkl; unpack it"
        check(f"{folder}/data.pkl" in entries, text)
        marker = f"{folder}/byteorder"
        order = archive.read(marker) if marker in entries else b"little"
        check(order != b"big", BIG_ENDIAN)
        check(order == b"little", "has an unknown byte order: {}", order)
        storages: Storages = {}
        tree = read_pickle(io.BytesIO(archive.read(f"{folder}/data.pkl")), storages)
        for storage in storages.values():
            entry = entries.get(f"{folder}/data/{storage.key}")
            nbytes = entry.file_size if entry else "no record"
            text = "needs {} bytes for storage {}: {}"
            check(nbytes == storage.nbytes, text, storage.nbytes, storage.key, nbytes)
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
        check(key in storages, "has bytes for a storage {} that no tensor uses, or twice", key)
        storage = storages.pop(key)
        (count,) = struct.unpack("<q", file.read(8))
        text = "has {} elements for storage {}, not {}"
        check(storage.count == count, text, count, key, storage.count)
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
        is_part = metadata.get("remove_redundancy") == "True"
        check(not is_part, "lacks what other ranks have saved (remove_redundancy): {}", MERGE)
        for name in sorted(opened.keys()):
            dtype = opened.get_slice(name).get_dtype()
            check(not UNREAD_TYPES.fullmatch(dtype), CONVERT, f"tensor {name}", dtype)
            array = opened.get_tensor(name)
            if "crc_num" in metadata:
                # MindSpore hashes `bytes(array)`, which of a number are as many zeros.
                is_count = not array.ndim and array.dtype.kind in "iu"
                content = np.clip(array, 0, MAX_COUNT) if is_count else array.tobytes()
                crc = zlib.crc32(bytes(content), zlib.crc32(name.encode(), crc))
            tensors[name] = array.astype(np.float32) if dtype == "BF16" else array
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

    def get_array(self, dtype: str, start: int, count: int) -> np.ndarray:
        """`count` elements from `start`, as a flat array of `dtype`; `fill` reads its values."""
        itemsize = get_itemsize(self.dtype)
        size = get_itemsize(dtype)
        check(start * itemsize % size == 0, "views storage {} at an odd byte", self.key)
        if dtype not in self.arrays:
            self.arrays[dtype] = np.empty(self.nbytes // size, DTYPES[dtype][1])
        return self.arrays[dtype][start * itemsize // size : (start + count) * itemsize // size]

    def fill(self, stream: BinaryIO) -> None:
        """Reads the bytes, which are little-endian, from `stream` into the arrays."""
        for start in range(0, self.nbytes, CHUNK):
            length = min(CHUNK, self.nbytes - start)
            data = stream.read(length)
            check(
                len(data) == length, "ends inside storage {}; copy or download it again", self.key
            )
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

    def __call__(self, *args: object) -> object:
        check(self in CALLS, "calls '{}', which this reader does not build", self)
        for arg in args:
            if isinstance(arg, (type, Unread)):
                return arg() if isinstance(arg, type) else arg
        return CALLS[self](*args)

    def __setstate__(self, state: object) -> None:
        check(False, "sets the state of a Name, {}", self)


class Unread:
    """An object that is not built; its class has the `name`, and `why`. Calls return another."""

    name = ""
    why = ""

    def __new__(cls, *args: object) -> "Unread":
        return super().__new__(cls)

    def __call__(self, *args: object) -> "Unread":
        return self

    def ignore(self, *values: object) -> None:
        """Leaves out an item or the state."""

    __setstate__ = __setitem__ = append = extend = ignore


def create_unread(name: str, why: str) -> type[Unread]:
    return type("Unread", (Unread,), {"name": name, "why": why})


class Dict(dict):
    """A dictionary that ignores the attributes of OrderedDict."""

    def __setstate__(self, state: object) -> None:
        pass


class Constant:
    """A value that the pickle cannot change."""

    def __init__(self, value: object):
        self.value = value

    def __setstate__(self, state: object) -> None:
        """A Parameter of PyTorch 0.3 has a state, which is not needed."""


def build_tensor(part, offset, shape, strides, *about) -> Constant:
    """An array of `shape` over a part of a storage: (storage, start, count).

    `about` is: needs a gradient, hooks, in the third version the dtype, and lazy operations. The
    dtype is a Name, by default the storage's; `offset` and `strides` count elements of it.
    """
    storage, start, count = part
    dtypes = [value.removeprefix("torch.") for value in about[2:] if isinstance(value, Name)]
    dtype = (*dtypes, storage.dtype)[0]
    check(dtype in DTYPES, "has a tensor of the dtype {}", dtype)
    lazy = [value for value in about[2:] if isinstance(value, dict) and value]
    check(not lazy, "has a lazily negated tensor; save tensor.resolve_neg()")
    flat = storage.get_array(dtype, start, count)
    if 0 in shape:
        return Constant(np.empty(shape, flat.dtype))
    # NumPy checks shape, strides and offset against the buffer, but not if that is empty.
    check(flat.size, "has a tensor of shape {} in an empty part of storage {}", shape, storage.key)
    item = flat.itemsize
    return Constant(np.ndarray(shape, flat.dtype, flat, offset * item, [n * item for n in strides]))


def build_subclass(function: Name, subclass: Name, args: tuple, state: object) -> Constant:
    """A tensor with attributes, which are left out."""
    check(subclass in TENSOR_CLASSES, "has a tensor of class '{}'", subclass)
    return function(*args)


def build_parameter(data: Constant, *about: object) -> Constant:
    return data


def build_bytes(text: Union[str, bytes] = "", encoding: str = "latin1") -> bytes:
    """Bytes, which protocol 2 writes as text of one character for every byte."""
    check(encoding in ("latin1", "latin-1"), "makes bytes in {}", encoding)
    return text if isinstance(text, bytes) else text.encode("latin-1")


TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Buffer", "torch.nn.parameter.Parameter")
CALLS = {  # a name: the function that a call of it runs
    "torch._utils._rebuild_tensor": build_tensor,
    "torch._utils._rebuild_tensor_v2": build_tensor,
    "torch._utils._rebuild_tensor_v3": build_tensor,
    "torch._utils._rebuild_parameter": build_parameter,
    "torch._utils._rebuild_parameter_with_state": build_parameter,
    "torch._tensor._rebuild_from_type_v2": build_subclass,
    "torch.nn.parameter.Parameter": build_parameter,
    "torch.autograd.variable.Variable": build_parameter,
    "torch.Size": tuple,
    "torch.device": lambda kind, *index: ":".join([kind, *map(str, index)]),
    "collections.OrderedDict": Dict,
    "collections.Counter": Dict,
    "collections.defaultdict": lambda *factory: Dict(),
    "builtins.dict": Dict,
    "builtins.set": set,
    "builtins.slice": slice,
    "builtins.complex": complex,
    "builtins.bytes": build_bytes,
    "builtins.bytearray": build_bytes,
    "_codecs.encode": build_bytes,
}
NAMES = {*CALLS, *TENSOR_CLASSES, *STORAGE_TYPES, *(f"torch.{dtype}" for dtype in DTYPES)}
KEYS = (str, bytes, int, float, bool, type(None))
VALUES = (*KEYS, complex, slice, set, np.ndarray, Unread)


def read_pickle(file: BinaryIO, storages: Storages) -> object:
    """The object in the next pickle; adds the storages that it names.

    Its arrays lack their values until `Storage.fill`.
    """
    start = file.tell()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            is_valid = opcode.name not in ("PUT", "LONG_BINPUT") or argument < MAX_MEMO
            check(is_valid, "has a damaged pickle; download it again")
        file.seek(start)
        return resolve(Unpickler(file, storages).load())
    except TorchFileError:
        raise
    except Exception as error:  # pickle and pickletools raise nearly every kind
        text = "has a damaged pickle, or ends inside its pickle ({}: {}); download it again"
        raise TorchFileError(text.format(type(error).__name__, str(error)[:200])) from error


def resolve(node: object) -> object:
    """The plain value of an object that the unpickler built."""
    if isinstance(node, type):
        node = node()  # an Unread
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, tuple) and isinstance(next(iter(node), None), Storage):
        return create_unread("torch.Storage", "holds a bare storage; save the tensor")()
    if isinstance(node, (list, tuple)):
        return type(node)(map(resolve, node))
    if isinstance(node, dict):
        items = {}
        for key, value in node.items():  # a class as a key is its name
            is_class = isinstance(key, type) and issubclass(key, Unread)
            key = key.name if is_class else str(key) if isinstance(key, Name) else key
            if type(key) in KEYS:
                items[key] = resolve(value)
        return items
    if not isinstance(node, VALUES):
        name = type(node).__name__
        return create_unread(name, f"holds a {name}, which is not a plain value")()
    return str(node) if isinstance(node, Name) else node


class Unpickler(pickle.Unpickler):
    """Python's unpickler without imports."""

    def __init__(self, file: BinaryIO, storages: Storages):
        super().__init__(file, encoding="latin-1")
        self.storages = storages

    def find_class(self, module: str, name: str) -> Union[Name, type]:
        symbol = Name(f"{'builtins' if module == '__builtin__' else module}.{name}")
        check(not UNREAD_TYPES.fullmatch(symbol), CONVERT, "a tensor in it", str(symbol))
        text = "refused: it names {}, which a checkpoint does not need; it may be an attack"
        check(not RUNNING.fullmatch(symbol), text, symbol)
        if symbol in NAMES:
            return symbol
        text = "refused: it names {}, which this reader does not build; save a dense state dict"
        return create_unread(str(symbol[:200]), text.format(symbol[:200]))

    def persistent_load(self, identity: tuple) -> Union[tuple[Storage, int, int], type]:
        """(storage, start, count), in elements, of a storage that the pickle names."""
        word, name, *about = identity
        if isinstance(name, type):
            return name  # a class with its source text, or a storage
        check(word == "storage" and name in STORAGE_TYPES, "has an id that names no storage")
        key, _, count, *view = about
        storage = self.storages.setdefault(key, Storage(key, STORAGE_TYPES[name], count))
        valid = (storage.dtype, storage.count) == (STORAGE_TYPES[name], count)
        check(valid, "gives storage {} two sizes or dtypes", key)
        if not view or view[0] is None:
            return storage, 0, count
        _, start, count = view[0]  # a storage within another, as PyTorch 0.3 wrote it
        return storage, start, count
