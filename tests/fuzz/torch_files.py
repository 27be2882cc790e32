"""PyTorch and safetensors files: mutations by seed, and small files that cost much work."""

import io
import pickle
import struct
import zipfile
from functools import partial

from tests.fuzz.damage import mutate
from utils.files import ROOT
from utils.tests.weights.torch_pickles import call, dtype, name, plain, storage, tensor, write_zip
from utils.weights.foreign_file import MAGIC

FILES = ROOT / "utils" / "tests" / "weights" / "torch_files"
ZIPS = ("dtypes.pt", "views.pt", "checkpoint.pt", "views_protocol4.pt")
LEGACY = ("dtypes_legacy.pt", "views_legacy.pt", "checkpoint_legacy.pt")


def mutate_file(names: tuple, seed: int) -> bytes:
    return mutate((FILES / names[seed % len(names)]).read_bytes(), seed)


def mutate_pickle(seed: int) -> bytes:
    """Builds an intact zip, with correct checksums, around a mutated pickle."""
    source = FILES / ZIPS[seed % len(ZIPS)]
    stream = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            is_pickle = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, mutate(data, seed) if is_pickle else data)
    return stream.getvalue()


MUTATED = {
    "zip": partial(mutate_file, ZIPS),
    "legacy": partial(mutate_file, LEGACY),
    "safetensors": partial(mutate_file, ("dtypes.safetensors",)),
    "pickle": mutate_pickle,
}


# Files that would need hours or gigabytes if the reader had no limits.


def make_zip(body: bytes) -> bytes:
    """Builds a file like torch.save, with the pickle `body` and one storage of 4 numbers."""
    return write_zip(io.BytesIO(), body).getvalue()


def encode_integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def make_array_of_long_sizes(sizes: int = 5000) -> bytes:
    """A numpy array whose shape has thousands of numbers of 2,030 bits."""
    blank = call(
        "numpy.core.multiarray._reconstruct", name("numpy.ndarray"), b"K\x00\x85", b"K\x00"
    )
    shape = b"(" + encode_integer((1 << 2030) - 1) + b"q\x00" + b"h\x00" * (sizes - 1) + b"t"
    return make_zip(blank + b"(K\x01" + shape + dtype("f4") + b"\x89C\x04\0\0\0\0tb")


def make_keys_of_one_hash(keys: int = 20_000) -> bytes:
    """A dictionary whose keys all have the same hash in Python."""
    items = b"".join(encode_integer(i * ((1 << 61) - 1)) + b"N" for i in range(1, keys + 1))
    return make_zip(b"}(" + items + b"u")


def make_header_of_long_sizes(sizes: int = 500, digits: int = 4000) -> bytes:
    """A safetensors header whose shape has hundreds of numbers of thousands of digits."""
    shape = ",".join(["9" * digits] * sizes)
    header = f'{{"w":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,0]}}}}'.encode()
    return struct.pack("<Q", len(header)) + header


def make_shape_of_references(sizes: int = 3_000_000) -> bytes:
    """A tensor whose shape has one text millions of times."""
    shape = b"(X\x40\x00\x00\x00" + b"x" * 64 + b"q\x00" + b"h\x00" * (sizes - 1) + b"t"
    return make_zip(call("torch._utils._rebuild_tensor", storage(), b"K\x00", shape, b")"))


def make_empty_sets(sets: int = 4_900_000) -> bytes:
    """The format before PyTorch 1.6, with millions of empty sets in two of its pickles."""
    head = b"".join(pickle.dumps(value, 2) for value in (MAGIC, 1001))
    body = b"\x80\x04(" + b"\x8f" * sets + b"t."
    return head + body + body


def make_repeated_rows(rows: int = 1 << 21) -> bytes:
    """A tensor of millions of rows, which are all the same memory."""
    return make_zip(b"}" + plain("w") + tensor(shape=(rows, 4), strides=(0, 1)) + b"s")


def make_nested_lists_in_header(lists: int = 2_700_000) -> bytes:
    """A safetensors header of empty lists, below the size limit."""
    header = b'{"w":[' + b"[]," * lists + b"0]}"
    return struct.pack("<Q", len(header)) + header


def make_doubled_arguments(calls: int = 100_000) -> bytes:
    """Repeated calls with one long tuple of arguments."""
    return make_zip(b"((" + b"N" * 100_000 + b"tq\x00" + b"cbuiltins\nset\nh\x00R" * calls + b"t")


def make_list_put_into_itself(times: int = 40) -> bytes:
    """A list that is repeatedly inserted into itself by a slice, which doubles it."""
    put = b"cbuiltins\nslice\nK\x00K\x00\x86Rh\x00s"
    return make_zip(b"]q\x00(" + b"N" * 1000 + b"e" + put * times)


def make_directory_of_a_zip(entries: int = 500_000) -> bytes:
    """A zip of a directory only, which repeats one entry."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    end = b"PK\x05\x06" + bytes(8) + struct.pack("<IIH", len(entry) * entries, 30, 0)
    return b"PK\x03\x04" + bytes(26) + entry * entries + end


def make_empty_dictionaries(count: int = 490_000) -> bytes:
    """Opcodes of one byte, each of which creates a large object."""
    return make_zip(b"(" + b"}" * count + b"t")


def make_long_names(count: int = 490_000) -> bytes:
    return make_zip(b"(" + name("builtins.set") * count + b"t")


COSTLY = (make_directory_of_a_zip, make_list_put_into_itself, make_array_of_long_sizes)
COSTLY += (make_keys_of_one_hash, make_header_of_long_sizes, make_shape_of_references)
COSTLY += (make_empty_sets, make_repeated_rows, make_nested_lists_in_header)
COSTLY += (make_doubled_arguments, make_empty_dictionaries, make_long_names)
