"""`utils.weights.torch_pickle`, through `load`, on crafted files: old forms and hostile ones."""

import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import pytest

from utils.weights.torch_reader import MAGIC, TorchFileError, load

RAMP = struct.pack("<4f", 0, 1, 2, 3)


def refusal(path: Path) -> str:
    """The message of the one error that may come out of a bad file: one line, with its name."""
    with pytest.raises(TorchFileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


# A small assembler, for the pickles which Python's own pickler would not write.


def plain(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def name(dotted: str) -> bytes:
    return b"c%s\n%s\n" % tuple(part.encode() for part in dotted.rsplit(".", 1))


def call(dotted: str, *arguments: bytes) -> bytes:
    return name(dotted) + b"(" + b"".join(arguments) + b"tR"


def storage(key="0", kind="torch.FloatStorage", count=4, view=b"", word="storage") -> bytes:
    return b"(" + plain(word) + name(kind) + plain(key) + plain("cpu") + plain(count) + view + b"tQ"


def part(first: int, count: int) -> bytes:
    return b"(" + plain("9") + plain(first) + plain(count) + b"t"


def tensor(over=storage(), offset=0, shape=(4,), strides=(1,)) -> bytes:  # noqa: B008
    return call("torch._utils._rebuild_tensor", over, plain(offset), plain(shape), plain(strides))


def viewed(kind: str, view=b"") -> bytes:
    over = storage(kind="torch.storage.UntypedStorage", count=16, view=view)
    numbers = b"".join(plain(value) for value in (0, (1,), (1,), False, None))
    return call("torch._utils._rebuild_tensor_v3", over, numbers, name(f"torch.{kind}"))


def dtype(code: str) -> bytes:
    return call("numpy.dtype", plain(code), plain(False), plain(True))


def array(code: str, shape: tuple, data: bytes) -> bytes:
    blank = call("numpy.core.multiarray._reconstruct", name("numpy.ndarray"), plain((0,)), plain(0))
    return blank + b"(K\x01" + plain(shape) + dtype(code) + plain(False) + plain(data) + b"tb"


def write_zip(path: Path, body: bytes, records=None, method=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
        for record, data in {"data/0": RAMP, **(records or {})}.items():
            archive.writestr(f"archive/{record}", data)
    return path


def write_legacy(path: Path, body: bytes, tail: bytes, keys=("0",), **system) -> Path:
    parts = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True, **system})]
    parts += [b"\x80\x02" + body + b".", pickle.dumps(list(keys), 2), tail]
    path.write_bytes(b"".join(parts))
    return path


# Dialects.


def test_python_2_text_and_storages_within_storages_are_read(tmp_path):
    over = storage(view=part(2, 2))
    body = b"}U\x03key" + tensor(over, shape=(2,)) + b"s"
    result = load(write_legacy(tmp_path / "a", body, struct.pack("<q", 4) + RAMP))
    assert result["key"].tolist() == [2, 3]


def test_a_big_endian_count_is_read_only_under_its_mark(tmp_path):
    tail = struct.pack(">q", 4) + RAMP
    marked = write_legacy(tmp_path / "a", tensor(), tail, little_endian=False)
    assert load(marked).tolist() == [0, 1, 2, 3]
    assert "elements for storage 0, not 4" in refusal(write_legacy(tmp_path / "b", tensor(), tail))


def test_one_untyped_storage_may_be_seen_as_two_dtypes(tmp_path):
    path = write_zip(tmp_path / "a", b"(" + viewed("uint32") + viewed("uint16") + b"t")
    assert [part.dtype.name for part in load(path)] == ["uint32", "uint16"]


def test_numpy_numbers_of_both_numpy_generations_are_read(tmp_path):
    scalar = call("numpy._core.multiarray.scalar", dtype("i2"), plain(b"\x01\x02"))
    result = load(write_zip(tmp_path / "a", b"(" + scalar + array("u1", (2,), b"\x07\x08") + b"t"))
    assert (result[0], result[0].dtype, result[1].tolist()) == (513, "int16", [7, 8])


# Hostile pickles.


def test_nothing_in_a_file_is_executed(tmp_path):
    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "touched"),)

    pickle.loads(pickle.dumps(Touch()))  # Python's own unpickler falls for it
    (tmp_path / "touched").rmdir()
    for protocol in (2, 4, 5):
        body = pickle.dumps({"weight": Touch()}, protocol)[:-1]
        assert "it names posix.mkdir" in refusal(write_zip(tmp_path / "a", body))
        assert "it names posix.mkdir" in refusal(write_legacy(tmp_path / "b", body, b""))
    assert not (tmp_path / "touched").exists()


FLOAT = name("torch.float32")
REBUILD = name("torch._utils._rebuild_tensor_v2")
DOUBLED = b")" + b"q\x00h\x00\x86" * 60  # a tuple of itself twice, and so on: 2**60 items
DEEP = b")" + b"\x85" * 100_000
COPIED = b"((" + b"K\x01" * 1000 + b"tq\x00" + (name("builtins.set") + b"h\x00\x85R") * 500 + b"t"
HOSTILE = [
    (call("builtins.eval", plain("1")), "builtins.eval"),
    (call("__builtin__.getattr", plain("a"), plain("b")), "builtins.getattr"),
    (call("os.system", plain("true")), "os.system"),
    (plain("torch") + plain("_utils.os.system") + b"\x93", "torch._utils.os.system"),
    (name("torch.load"), "torch.load"),
    (name("evil\x1b[2J.\ttab"), "evil?[2J.?tab"),
    (plain("builtins.set") + b")R", "'str' object is not callable"),
    (name("torch.Size") + tensor(shape=(1 << 28,), strides=(0,)) + b"R",
     "argument list must be a tuple"),
    (name("torch.FloatStorage") + b")R", "calls 'torch.FloatStorage'"),
    (name("torch._utils._rebuild_tensor") + b"}b", "sets the state of a Name"),
    (call("torch._tensor._rebuild_from_type_v2", name("builtins.set"), name("torch.Tensor"), b")N"),
     "makes a tensor by 'builtins.set'"),
    (call("torch._tensor._rebuild_from_type_v2", REBUILD, name("torch.Size"), b")N"),
     "a tensor of class 'torch.Size'"),
    (call("torch._tensor._rebuild_from_type_v2", REBUILD, name("torch.Tensor"), b"NN"),
     "must be an iterable, not NoneType"),
    (b"\x82\x01", "opcode EXT1"),
    (b"(ios\nsystem\n", "opcode INST"),
    (b"Ptext\n", "opcode PERSID"),
    (b"\xff", "opcode b'\\xff' unknown"),
    (b"h\x05", "damaged pickle"),
    (b"\x85", "damaged pickle"),
    (b"NN", "damaged"),
    (b"}(Nu", "odd number of items"),
    (b"T\xff\xff\xff\xff", "ends inside its pickle"),
    (b"X\x99\x00\x00\x00text", "ends inside its pickle"),
    (plain("text") + b"Na", "'str' object has no attribute 'append'"),
    (plain("0") + b"Q", "persistent id of an unknown form"),
    (storage(word="module"), "persistent id that names no storage"),
    (storage(kind="torch.Tensor"), "persistent id that names no storage"),
    (storage(count=-4), "persistent id that names no storage"),
    (storage(count=True), "persistent id that names no storage"),
    (storage(view=part(3, 2)), "view outside storage 0"),
    (storage(view=b"NN"), "persistent id of an unknown form"),
    (storage()[:-2] + b"l" + b"Q", "opcode LIST"),
    (plain(["storage", 1, 2, 3, 4]) + b"Q", "persistent id of an unknown form"),
    (storage(), "bare storage"),
    (dtype("f4"), "holds a Dtype"),
    (tensor(storage(count=1 << 40)), "more bytes for storage 0 than the file has"),
    (tensor(storage(count=3), shape=(3,)), "wants 12 bytes for storage 0: 16"),
    (tensor(storage("../0")), "wants 16 bytes for storage ../0: no record"),
    (b"(" + storage() + storage(count=3) + b"t", "gives storage 0 two sizes or dtypes"),
    (b"(" + b"".join(map(viewed, ("uint8", "int8", "bool", "int16", "int32"))) + b"t",
     "more than 4 dtypes"),
    (call("torch._utils._rebuild_tensor_v3", *map(plain, ("text", 0, (), (), 0, 0)), FLOAT),
     "with a str"),
    (call("torch._utils._rebuild_tensor_v3", storage(), *map(plain, (0, (4,), (1,), False, None))),
     "damaged pickle"),
    (tensor(offset=1), "reaches outside the 4 elements"),
    (tensor(shape=(2,), strides=(4,)), "reaches outside the 4 elements"),
    (tensor(offset=3, strides=(-1,)), "negative"),
    (tensor(shape=(-4,)), "negative"),
    (tensor(offset=-1), "negative"),
    (tensor(shape=(4.0,)), "negative"),
    (tensor(shape=[4]), "no tuple"),
    (tensor(strides=[1]), "no tuple"),
    (viewed("Tensor"), "without a storage or without a dtype"),
    (viewed("float32", part(1, 8)), "views storage 0 at an odd byte"),
    (tensor(strides=()), "does not fit its strides"),
    (tensor(shape=(1,) * 33, strides=(1,) * 33), "does not fit its strides"),
    (tensor(shape=(1 << 40,), strides=(0,)), "absurd size"),
    (tensor(shape=(0, 1 << 62), strides=(1, 1)), "absurd size"),
    (call("torch._utils._rebuild_parameter", plain("text")), "_rebuild_parameter with a str"),
    (call("builtins.bytes", plain(1 << 40)), "calls builtins.bytes with a int"),
    (call("builtins.set", tensor(shape=(1 << 20,), strides=(0,))), "builtins.set with a Held"),
    (call("_codecs.encode", plain("text"), plain("rot13")), "makes bytes"),
    (call("_codecs.encode", plain(3)), "calls _codecs.encode with a int"),
    (call("torch.Size", plain((-1,))), "torch.Size of something else"),
    (call("torch.device", plain("cuda"), plain("x")), "a torch.device without a name"),
    (call("builtins.slice", plain("x")), "calls builtins.slice with a str"),
    (call("collections.OrderedDict", tensor()), "calls collections.OrderedDict with a Held"),
    (b"}" + plain(tuple(range(17))) + b"Ns", "a tuple as the key"),
    (dtype("f4") + b"(K\x03" + plain("S") + b"tb", "unknown byte order"),
    (array("O8", (1,), bytes(8)), "dtype 'O8'"),
    (array("f4", (5,), bytes(4)), "a numpy array (5,) of 4 bytes"),
    (call("numpy.core.multiarray.scalar", dtype("f4"), plain(bytes(8))), "of the wrong length"),
    (array("f4", (1,), bytes(4)) + b"(K\x01" + plain((1,)) + dtype("f4") + b"N" + plain("") + b"tb",
     "no blank one"),
    (tensor() + b"(K\x01" + plain((1,)) + dtype("f4") + plain(False) + plain(bytes(4)) + b"tb",
     "no blank one"),
    (b"]q\x00h\x00a", "contains itself"),
    (b"]" * 5000 + b"a" * 4999, "nests too deeply"),
    (DEEP, "nests too deeply"),
    (DOUBLED, "repeats itself"),
    (b"}" + DEEP + b"Ns", "a tuple as the key"),
    (b"}" + DOUBLED + b"Ns", "a tuple as the key"),
    (call("torch.device", DOUBLED), "calls torch.device with a tuple"),
    (COPIED, "copies its own parts"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_a_hostile_pickle_is_refused_in_one_line(body, words, tmp_path):
    assert words in refusal(write_zip(tmp_path / "a", body))


def test_a_pickle_of_endless_steps_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.weights.torch_reader.MAX_STEPS", 1000)
    assert "more than 1000 steps" in refusal(write_zip(tmp_path / "a", b"(" + b"N" * 1000 + b"t"))


# Hostile containers.


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"../../x": b""}, "an entry named archive/../../x"),
        ({"a\\b": b""}, "an entry named archive/a\\b"),
        ({"byteorder": b"middle"}, "unknown byte order"),
        ({"constants.pkl": b""}, "TorchScript"),
    ],
)
def test_odd_records_in_a_zip_are_refused(records, words, tmp_path):
    assert words in refusal(write_zip(tmp_path / "a", tensor(), records))


@pytest.mark.parametrize("names", [("a/data.pkl", "b/x"), ("a/x",), ("data.pkl",)])
def test_a_zip_that_torch_save_did_not_write_is_refused(names, tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        for entry in names:
            archive.writestr(entry, b"N.")
    assert "not one that torch.save wrote" in refusal(tmp_path / "a")


def test_names_from_the_root_or_with_a_zero_byte_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr("/data.pkl", b"N.")
    assert "an entry named /data.pkl" in refusal(tmp_path / "a")
    path = write_zip(tmp_path / "b", tensor(), {"a_b": b""})
    path.write_bytes(path.read_bytes().replace(b"a_b", b"a\0b"))
    assert "an entry named archive/a?b" in refusal(path)


def test_compressed_repeated_and_oversized_records_are_refused(tmp_path):
    path = write_zip(tmp_path / "a", tensor(), method=zipfile.ZIP_DEFLATED)
    assert "data.pkl is compressed" in refusal(path)
    with zipfile.ZipFile(write_zip(path, tensor()), "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("archive/data/0", RAMP)
    assert "two entries of one name" in refusal(path)
    data = bytearray(write_zip(path, tensor()).read_bytes())
    sizes = data.rindex(b"archive/data/0") - 46 + 20  # in the central directory
    data[sizes : sizes + 8] = struct.pack("<II", 1 << 31, 1 << 31)
    path.write_bytes(data)
    assert "archive/data/0 claims more bytes" in refusal(path)


@pytest.mark.parametrize(
    ("keys", "tail", "words"),
    [
        ((), b"", "has no bytes for storage 0"),
        (("1",), b"", "a storage 1 that no tensor uses"),
        ((1,), b"", "no list of its storages"),
        (("0",), struct.pack("<q", 3) + RAMP, "has 3 elements for storage 0, not 4"),
        (("0",), struct.pack("<q", 4) + RAMP[:-1], "ends inside storage 0"),
        (("0", "0"), (struct.pack("<q", 4) + RAMP) * 2, "or has them twice"),
    ],
)
def test_storages_which_do_not_fit_their_legacy_pickle_are_refused(keys, tail, words, tmp_path):
    assert words in refusal(write_legacy(tmp_path / "a", tensor(), tail, keys))


@pytest.mark.parametrize("start", [(MAGIC, 1002, {}), ((MAGIC,), 1001, {}), (MAGIC, 1001, [])])
def test_another_legacy_start_is_refused(start, tmp_path):
    (tmp_path / "a").write_bytes(b"".join(pickle.dumps(value, 2) for value in start))
    assert "no PyTorch file of protocol 1001" in refusal(tmp_path / "a")
