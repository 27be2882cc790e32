"""Hostile .ckpt files: a sound file's message, changed by MindSpore's own protobuf class."""

from typing import Callable

from mindspore.train.checkpoint_pb2 import Checkpoint

FEW = 1_000_000  # bytes of a file made to take much memory


def change(content: bytes, edit: Callable[[Checkpoint], None]) -> bytes:
    """The message of a file without a checksum, after `edit`."""
    message = Checkpoint.FromString(content)
    edit(message)
    return message.SerializePartialToString()


def set_sizes(*sizes: int, every: bool = False) -> Callable[[Checkpoint], None]:
    def edit(message: Checkpoint) -> None:
        for entry in message.value if every else message.value[:1]:
            entry.tensor.dims[:] = sizes

    return edit


def set_type(name: str) -> Callable[[Checkpoint], None]:
    def edit(message: Checkpoint) -> None:
        message.value[0].tensor.tensor_type = name

    return edit


def set_content(content: bytes) -> Callable[[Checkpoint], None]:
    def edit(message: Checkpoint) -> None:
        message.value[0].tensor.tensor_content = content

    return edit


def halve(message: Checkpoint) -> None:
    tensor = message.value[0].tensor
    tensor.tensor_content = tensor.tensor_content[: len(tensor.tensor_content) // 2]


def repeat_first(message: Checkpoint) -> None:
    message.value.add().CopyFrom(message.value[0])


def repeat_at_once(message: Checkpoint) -> None:
    first = message.value.pop(0)
    message.value.insert(0, first)
    message.value.insert(0, first)


def drop_tensor(message: Checkpoint) -> None:
    message.value[0].ClearField("tensor")


def make_map(message: Checkpoint) -> None:
    part = message.value[0].maptensor.tensor.add()
    part.tensor_type, part.tensor_content = "Float32", bytes(8)


def drop(field: str) -> Callable[[Checkpoint], None]:
    def edit(message: Checkpoint) -> None:
        message.value[0].tensor.ClearField(field)

    return edit


def drop_name(message: Checkpoint) -> None:
    message.value[0].ClearField("tag")


def lengthen_name(message: Checkpoint) -> None:
    message.value[0].tag = "x" * FEW


def entry(tensor: bytes) -> bytes:
    """A file of one array named `a` from the bytes of a TensorProto."""
    value = b"\x0a\x01a\x12" + varint(len(tensor)) + tensor
    return b"\x0a" + varint(len(value)) + value


def varint(number: int) -> bytes:
    head = b""
    while number > 127:
        head += bytes([number & 127 | 128])
        number >>= 7
    return head + bytes([number])


# name: what becomes of a sound file of float32 arrays; MindSpore's loader crashes on many of them,
# or loads what is not there.
CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    name: (lambda content, edit=edit: change(content, edit))
    for name, edit in {
        "a size of -1": set_sizes(-1),
        "a hundred sizes": set_sizes(*[1] * 100),
        "one number": set_sizes(1),
        "one number, all entries": set_sizes(1, every=True),
        "no sizes": set_sizes(),
        "a size of 0": set_sizes(0),
        "two sizes of 0": set_sizes(0, 0),
        "less than there is": set_sizes(3),
        "4 GB": set_sizes(10**9),
        "more than 2^64": set_sizes(*[2**62] * 8),
        "no content": set_content(b""),
        "content of a byte": set_content(b"x"),
        "half the content": halve,
        "a name at both ends": repeat_first,
        "a name twice in a row": repeat_at_once,
        "no array": drop_tensor,
        "a map": make_map,
        "no content field": drop("tensor_content"),
        "no type field": drop("tensor_type"),
        "no name": drop_name,
        "a name of a megabyte": lengthen_name,
        **{
            f"type {kind}": set_type(kind)
            for kind in ("Float16", "BFloat16", "Float64", "Int4", "Int8", "Int64", "UInt64")
        },
        **{f"type {kind}": set_type(kind) for kind in ("Bool", "Complex64", "\x1b[31m", "")},
    }.items()
}
CRAFTED.update(
    {
        "empty entries": lambda _: b"\x0a\x00" * (FEW // 2),
        "tiny arrays": lambda _: b"".join(
            b"\x0a\x13\x0a\x04%4x\x12\x0b\x08\x01\x12\x04Bool\x1a\x01x" % n
            for n in range(FEW // 84)
        ),
        "a million sizes": lambda _: entry(b"\x08\x01" * (FEW // 2)),
        "a million packed sizes": lambda _: entry(b"\x0a" + varint(FEW) + b"\x01" * FEW),
        "a million fields": lambda _: entry(b"\x22\x00" * (FEW // 2)),
        "a length of 2^63": lambda _: b"\x0a" + varint(2**63 - 1),
        "a name that is not UTF-8": lambda content: content.replace(b"0.weight", b"0.we\xffght"),
        "text": lambda _: b"hello, I am no checkpoint",
        "zeros": lambda content: bytes(len(content)),
        "a checksum only": lambda _: b"crc_num" + bytes(10),
    }
)
