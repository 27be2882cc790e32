"""PyTorch and safetensors files: mutated ones by seed, and small ones that ask for much work."""

import io
import pickle
import random
import struct
import zipfile

from utils.config import ROOT
from utils.weights.torch_reader import MAGIC

FILES = ROOT / "utils" / "tests" / "weights" / "torch_files"
STORAGE = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ"
ZIPS = ("dtypes.pt", "views.pt", "checkpoint.pt", "views_protocol4.pt")


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One to eight changes: bits, bytes, lengths, parts doubled, moved or left out."""
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at, size = chance.randrange(len(data)), chance.randrange(1, 64)
        kind = chance.randrange(6)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.randrange(256)
        elif kind == 2:
            data[at : at + 4] = struct.pack("<i", chance.choice((-1, 0, 1 << 30, (1 << 31) - 1)))
        elif kind == 3:
            data[at:at] = data[at : at + size] * chance.choice((1, 1, 50))
        elif kind == 4:
            other = chance.randrange(len(data))
            data[at : at + size] = data[other : other + size]
        else:
            del data[at : at + size]
        data = data or bytearray(b"\0")
    return bytes(data)


def mutated_zip(seed: int) -> bytes:
    chance = random.Random(f"zip {seed}")
    return mutate((FILES / chance.choice(ZIPS)).read_bytes(), chance)


def mutated_legacy(seed: int) -> bytes:
    chance = random.Random(f"legacy {seed}")
    names = ("dtypes_legacy.pt", "views_legacy.pt", "checkpoint_legacy.pt", "dtypes_legacy_big.pt")
    return mutate((FILES / chance.choice(names)).read_bytes(), chance)


def mutated_safetensors(seed: int) -> bytes:
    chance = random.Random(f"safetensors {seed}")
    return mutate((FILES / "dtypes.safetensors").read_bytes(), chance)


def mutated_pickle(seed: int) -> bytes:
    """A whole zip, with true check sums, around a mutated pickle."""
    chance, stream = random.Random(f"pickle {seed}"), io.BytesIO()
    source = FILES / chance.choice(ZIPS)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            pickled = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, mutate(data, chance) if pickled else data)
    return stream.getvalue()


# Files that would take hours or gigabytes.


def pickled(body: bytes) -> bytes:
    """A zip of torch.save around a pickle; its one storage has 4 numbers."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("a/data/0", bytes(16))
    return stream.getvalue()


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def array_of_long_sizes(sizes: int = 5000) -> bytes:
    """A numpy array whose shape has thousands of numbers of 2,030 bits."""
    blank = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85K\x00tR"
    shape = b"(" + integer((1 << 2030) - 1) + b"q\x00" + b"h\x00" * (sizes - 1) + b"t"
    dtype = b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4K\x00K\x01tR"
    return pickled(blank + b"(K\x01" + shape + dtype + b"\x89C\x04\0\0\0\0tb")


def keys_of_one_hash(keys: int = 20_000) -> bytes:
    """A dictionary whose keys Python's hash cannot tell apart."""
    items = b"".join(integer(i * ((1 << 61) - 1)) + b"N" for i in range(1, keys + 1))
    return pickled(b"}(" + items + b"u")


def header_of_long_sizes(sizes: int = 500, digits: int = 4000) -> bytes:
    """A safetensors header whose shape has hundreds of numbers of thousands of digits."""
    shape = ",".join(["9" * digits] * sizes)
    header = f'{{"w":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,0]}}}}'.encode()
    return struct.pack("<Q", len(header)) + header


def shape_of_references(sizes: int = 3_000_000) -> bytes:
    """A tensor whose shape is one text, millions of times."""
    shape = b"(X\x40\x00\x00\x00" + b"x" * 64 + b"q\x00" + b"h\x00" * (sizes - 1) + b"t"
    return pickled(b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE + b"K\x00" + shape + b")tR")


def empty_sets(sets: int = 4_900_000) -> bytes:
    """The pickles before 1.6, two of which hold millions of empty sets."""
    head = b"".join(pickle.dumps(value, 2) for value in (MAGIC, 1001))
    many = b"\x80\x04(" + b"\x8f" * sets + b"t."
    return head + many + many


def repeated_rows(rows: int = 1 << 21) -> bytes:
    """A table of millions of rows, all the same memory."""
    shape = b"J" + struct.pack("<i", rows) + b"K\x04\x86"
    body = b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE + b"K\x00" + shape + b"K\x00K\x01\x86tR"
    return pickled(b"}X\x01\x00\x00\x00w" + body + b"s")


def nested_lists_in_header(lists: int = 2_700_000) -> bytes:
    """A safetensors header below the limit that is all empty lists."""
    header = b'{"w":[' + b"[]," * lists + b"0]}"
    return struct.pack("<Q", len(header)) + header


def doubled_arguments(calls: int = 100_000) -> bytes:
    """Calls on one long tuple of arguments, again and again."""
    return pickled(b"((" + b"N" * 100_000 + b"tq\x00" + b"cbuiltins\nset\nh\x00R" * calls + b"t")


def list_put_into_itself(times: int = 40) -> bytes:
    """A list that takes itself in at a slice of its own, so that it doubles each time."""
    put = b"cbuiltins\nslice\nK\x00K\x00\x86Rh\x00s"
    return pickled(b"]q\x00(" + b"N" * 1000 + b"e" + put * times)


def directory_of_a_zip(entries: int = 500_000) -> bytes:
    """A zip of nothing but its directory, which names one entry again and again."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    end = b"PK\x05\x06" + bytes(8) + struct.pack("<IIH", len(entry) * entries, 30, 0)
    return b"PK\x03\x04" + bytes(26) + entry * entries + end


COSTLY = (
    directory_of_a_zip,
    list_put_into_itself,
    array_of_long_sizes,
    keys_of_one_hash,
    header_of_long_sizes,
    shape_of_references,
    empty_sets,
    repeated_rows,
    nested_lists_in_header,
    doubled_arguments,
)
MUTATED = (mutated_zip, mutated_legacy, mutated_pickle, mutated_safetensors)
