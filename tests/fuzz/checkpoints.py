"""Hostile .ckpt files, made from an intact file with MindSpore's protobuf class."""

from typing import Any, Callable, Union

from mindspore.train.checkpoint_pb2 import Checkpoint

MEGABYTE = 1_000_000  # size of files that a careless reader expands to much memory


def edit_first_entry(edit: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    """Returns a function that applies `edit` to the first entry of a file without a checksum."""
    return edit_message(lambda message: edit(message.value[0]))


def edit_message(edit: Callable[[Checkpoint], object]) -> Callable[[bytes], bytes]:
    def build(content: bytes) -> bytes:
        message = Checkpoint.FromString(content)
        edit(message)
        return message.SerializePartialToString()

    return build


def set_sizes(entry: Any, *sizes: int) -> None:
    entry.tensor.dims[:] = sizes


def set_tensor(**fields: Union[str, bytes]) -> Callable[[bytes], bytes]:
    return edit_first_entry(
        lambda entry: [setattr(entry.tensor, *field) for field in fields.items()]
    )


def halve_content(entry: Any) -> None:
    entry.tensor.tensor_content = entry.tensor.tensor_content[::2]


def add_map(entry: Any) -> None:
    entry.maptensor.tensor.add(tensor_type="Float32", tensor_content=bytes(8))


def repeat_first_entry(message: Checkpoint) -> None:
    message.value.insert(0, message.value[0])


def build_entry(tensor: bytes) -> bytes:
    """Builds a file of one array named `a` from the bytes of a TensorProto."""
    value = b"\x0a\x01a\x12" + encode_varint(len(tensor)) + tensor
    return b"\x0a" + encode_varint(len(value)) + value


def encode_varint(number: int) -> bytes:
    head = b""
    while number > 127:
        head += bytes([number & 127 | 128])
        number >>= 7
    return head + bytes([number])


SIZES = {
    "a size of -1": [-1],
    "a hundred sizes": [1] * 100,
    "one number": [1],
    "no sizes": [],
    "a size of 0": [0],
    "two sizes of 0": [0, 0],
    "fewer numbers than the content": [3],
    "4 GB": [10**9],
    "more than 2^64": [2**62] * 8,
}
TYPES = ("Float16", "BFloat16", "Float64", "Int4", "Int8", "Int64", "UInt64", "Bool", "Complex64")
# name: function from an intact file of float32 arrays to a damaged one. For many of them the loader
# of MindSpore crashes, or loads values that are not in the file.
CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    **{
        name: edit_first_entry(lambda entry, n=n: set_sizes(entry, *n)) for name, n in SIZES.items()
    },
    **{f"type {kind}": set_tensor(tensor_type=kind) for kind in (*TYPES, "\x1b[31m", "")},
    "one number, all entries": edit_message(lambda m: [set_sizes(e, 1) for e in m.value]),
    "no content": set_tensor(tensor_content=b""),
    "content of a byte": set_tensor(tensor_content=b"x"),
    "half the content": edit_first_entry(halve_content),
    "a name at both ends": edit_message(lambda m: m.value.append(m.value[0])),
    "a name twice in a row": edit_message(repeat_first_entry),
    "no array": edit_first_entry(lambda entry: entry.ClearField("tensor")),
    "a map": edit_first_entry(add_map),
    "no content field": edit_first_entry(lambda entry: entry.tensor.ClearField("tensor_content")),
    "no type field": edit_first_entry(lambda entry: entry.tensor.ClearField("tensor_type")),
    "no name": edit_first_entry(lambda entry: entry.ClearField("tag")),
    "a name of a megabyte": edit_first_entry(lambda entry: setattr(entry, "tag", "x" * MEGABYTE)),
    "empty entries": lambda _: b"\x0a\x00" * (MEGABYTE // 2),
    "tiny arrays": lambda _: b"".join(
        b"\x0a\x13\x0a\x04%4x\x12\x0b\x08\x01\x12\x04Bool\x1a\x01x" % n
        for n in range(MEGABYTE // 84)
    ),
    "a million packed sizes": lambda _: build_entry(
        b"\x0a" + encode_varint(MEGABYTE) + b"\x01" * MEGABYTE
    ),
    "a length of 2^63": lambda _: b"\x0a" + encode_varint(2**63 - 1),
    "a name that is not UTF-8": lambda content: content.replace(b"0.weight", b"0.we\xffght"),
    "text": lambda _: b"hello, I am no checkpoint",
    "zeros": lambda content: bytes(len(content)),
    "a checksum only": lambda _: b"crc_num" + bytes(10),
}
