"""Runs the pickles inside PyTorch files without executing anything.

Python's own unpickler imports whatever a file names and calls it. This one follows the opcodes of
protocols 2 to 5 that torch.save needs, one method each, over plain data, and builds only what
`torch_globals` lists. What it returns is a tree of bounded depth and size.
"""

import pickletools
import struct
from mmap import mmap
from typing import BinaryIO, Union

import numpy as np

from utils.torch_globals import Dtype, Name, Namespace, allow, call, fill_array, make_dict, make_set
from utils.torch_storage import STORAGES, Refusal, Storage, Window, is_count

MAX_STEPS = 5_000_000  # of one pickle; a large checkpoint takes some 200,000
MAX_DEPTH = 100
MAX_ITEMS = 10_000_000  # met by a reader who follows every reference
PLAIN = (str, bytes, int, float, complex, type(None), slice, np.generic, np.ndarray)
PLAIN += (dict, list, tuple, set)
OPCODES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
NUMBERS = {  # the number after an opcode, as struct writes it
    "PROTO": "<B",
    "FRAME": "<Q",
    "BINPUT": "<B",
    "BINGET": "<B",
    "LONG_BINPUT": "<I",
    "LONG_BINGET": "<I",
    "BININT": "<i",
    "BININT1": "<B",
    "BININT2": "<H",
    "BINFLOAT": ">d",
    "LONG1": "<B",
    "SHORT_BINUNICODE": "<B",
    "BINUNICODE": "<I",
    "BINUNICODE8": "<Q",
    "SHORT_BINSTRING": "<B",
    "BINSTRING": "<i",
    "SHORT_BINBYTES": "<B",
    "BINBYTES": "<I",
    "BINBYTES8": "<Q",
}
PUSHED = ("BININT", "BININT1", "BININT2", "BINFLOAT")
IGNORED = ("PROTO", "FRAME")
MADE = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
READ = {  # the bytes after a length
    "LONG1": lambda data: int.from_bytes(data, "little", signed=True),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), bytes),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), lambda data: str(data, "latin-1")),
    **dict.fromkeys(
        ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        lambda data: str(data, "utf-8", "surrogatepass"),
    ),
}


def _exactly(stream: Union[BinaryIO, mmap], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise Refusal("ends inside its pickle; copy or download it again")
    return data


def _number(stream: Union[BinaryIO, mmap], layout: str) -> Union[int, float]:
    return struct.unpack(layout, _exactly(stream, struct.calcsize(layout)))[0]


def _line(stream: Union[BinaryIO, mmap]) -> str:
    return stream.readline().decode("utf-8").rstrip("\n")


class Unpickler:
    """One pickle's stack, memo and storages. `limit`, the file's size, bounds what it may claim."""

    def __init__(self, limit: int):
        self.stack, self.marks, self.memo = [], [], {}
        self.storages: dict[str, Storage] = {}
        self.bytes_left, self.copies_left = limit, 4 * limit

    def run(self, stream: Union[BinaryIO, mmap]) -> object:
        """The object graph, plain data; `stream` is left behind the pickle's end."""
        try:
            for _ in range(MAX_STEPS):
                opcode = OPCODES.get(_exactly(stream, 1), "none")
                if opcode == "STOP":
                    break
                self._follow(opcode, stream)
            else:
                raise Refusal(f"refused: its pickle has more than {MAX_STEPS} steps")
            (root,) = self.stack
        except (LookupError, TypeError, AttributeError) as error:
            raise Refusal(f"has a damaged pickle ({error}); copy or download it again") from error
        check_tree(root)
        return root

    def _follow(self, opcode: str, stream: Union[BinaryIO, mmap]) -> None:
        number = _number(stream, NUMBERS[opcode]) if opcode in NUMBERS else None
        if opcode in PUSHED:
            self.stack.append(number)
        elif opcode in READ:
            self.stack.append(READ[opcode](_exactly(stream, number)))
        elif opcode in MADE:
            self.stack.append(MADE[opcode]())
        elif opcode == "GLOBAL":
            self.stack.append(allow(_line(stream), _line(stream)))
        elif opcode not in IGNORED:
            method = getattr(self, f"op_{opcode.lower()}", None)
            if method is None:
                raise Refusal(f"refused: its pickle uses opcode {opcode}, which is not followed")
            method(number)

    def _take(self, count: int) -> tuple:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        taken = tuple(self.stack[-count:])
        del self.stack[-count:]
        return taken

    def _take_from_mark(self) -> tuple:
        taken, self.stack = tuple(self.stack), self.marks.pop()
        return taken

    def _top(self, kind: type) -> Union[list, dict, set]:
        if type(self.stack[-1]) is not kind:
            raise Refusal(f"treats a {type(self.stack[-1]).__name__} as a {kind.__name__}")
        return self.stack[-1]

    def _set_items(self, items: tuple) -> None:
        if len(items) % 2:
            raise Refusal("has a damaged pickle (a key without a value)")
        self._top(dict).update(make_dict(list(zip(items[::2], items[1::2]))))

    def _charge(self, values: tuple) -> None:
        """Counts what a call copies, or a few bytes could copy a long list for ever."""
        if not isinstance(values, tuple):
            raise Refusal(f"calls something on a {type(values).__name__}")
        sized = (str, bytes, list, tuple, dict, set)
        self.copies_left -= sum(len(value) for value in values if isinstance(value, sized))
        if self.copies_left < 0:
            raise Refusal("refused: its pickle copies its own parts again and again")

    def _claim(self, key: str, kind: str, count: int) -> Storage:
        if key not in self.storages:
            self.storages[key] = Storage(key, kind, count)
            self.bytes_left -= self.storages[key].nbytes
        storage = self.storages[key]
        if (storage.kind, storage.count) != (kind, count):
            raise Refusal(f"gives storage {key} two sizes or dtypes")
        if self.bytes_left < 0:
            raise Refusal(f"claims more bytes for storage {key} than the file has")
        return storage

    def op_mark(self, _: None) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def op_tuple(self, _: None) -> None:
        items = self._take_from_mark()
        self.stack.append(items)

    def op_tuple1(self, _: None) -> None:
        self.stack.append(self._take(1))

    def op_tuple2(self, _: None) -> None:
        self.stack.append(self._take(2))

    def op_tuple3(self, _: None) -> None:
        self.stack.append(self._take(3))

    def op_append(self, _: None) -> None:
        (item,) = self._take(1)
        self._top(list).append(item)

    def op_appends(self, _: None) -> None:
        items = self._take_from_mark()
        self._top(list).extend(items)

    def op_setitem(self, _: None) -> None:
        self._set_items(self._take(2))

    def op_setitems(self, _: None) -> None:
        self._set_items(self._take_from_mark())

    def op_additems(self, _: None) -> None:
        items = self._take_from_mark()
        self._top(set).update(make_set(items))

    def op_memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def op_binput(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def op_binget(self, number: int) -> None:
        self.stack.append(self.memo[number])

    op_long_binput, op_long_binget = op_binput, op_binget

    def op_stack_global(self, _: None) -> None:
        self.stack.append(allow(*self._take(2)))

    def op_reduce(self, _: None) -> None:
        name, args = self._take(2)
        self._charge(args)
        self.stack.append(call(name, args))

    op_newobj = op_reduce

    def op_build(self, _: None) -> None:
        (state,) = self._take(1)
        target = self.stack[-1]
        self._charge(state if isinstance(state, tuple) else (state,))
        if isinstance(target, Dtype):
            target.set_order(state)
        elif isinstance(target, Namespace):
            target.update(make_dict(state))
        elif isinstance(target, np.ndarray) and isinstance(state, tuple) and len(state) == 5:
            fill_array(target, state)
        elif not isinstance(target, (dict, np.ndarray)):  # whose attributes the result lacks
            raise Refusal(f"sets the state of a {type(target).__name__}")

    def op_binpersid(self, _: None) -> None:
        (identity,) = self._take(1)
        if not isinstance(identity, tuple) or len(identity) not in (5, 6):
            raise Refusal("has a persistent id of an unknown form")
        word, name, key, _, count, *view = identity
        known = word == "storage" and isinstance(name, Name) and name in STORAGES
        if not (known and isinstance(key, str) and is_count(count)):
            raise Refusal("has a persistent id that names no storage")
        first, storage = 0, self._claim(key, STORAGES[name], count)
        if view and view[0] is not None:  # a storage within another, as PyTorch 0.3 wrote it
            _, first, count = view[0]
            if not (is_count(first) and is_count(count) and first + count <= storage.count):
                raise Refusal(f"has a view outside storage {key}")
        self.stack.append(Window(storage, first, count))


def check_tree(root: object) -> None:
    """Refuses what its reader could not walk: cycles, great depth, memo bombs, stray objects."""
    sizes: dict[int, tuple[int, int]] = {}  # id: levels, items
    entered, todo = set(), [[root]]
    while todo:
        node = todo[-1]
        inner = _containers(node)
        if id(node) in sizes:
            todo.pop()
        elif id(node) not in entered:
            entered.add(id(node))
            todo += [child for child in inner if id(child) not in sizes]
            if any(id(child) in entered and id(child) not in sizes for child in inner):
                raise Refusal("refused: its pickle holds a container which contains itself")
        else:
            below = [sizes[id(child)] for child in inner]
            levels = 1 + max((level for level, _ in below), default=0)
            items = len(node) + sum(items for _, items in below)
            if levels > MAX_DEPTH or items > MAX_ITEMS:
                raise Refusal("refused: its pickle nests too deeply or repeats itself too often")
            sizes[id(node)] = (levels, items)


def _containers(node: Union[dict, list, tuple]) -> list:
    values = list(node.values() if isinstance(node, dict) else node)
    for value in values:
        if isinstance(value, Window):
            raise Refusal("holds a bare storage; save the tensor")
        if not isinstance(value, PLAIN):
            raise Refusal(f"holds a {type(value).__name__}, which is no plain value")
    return [value for value in values if isinstance(value, (dict, list, tuple))]
