"""Reader of PyTorch files: real ones (`torch_files/make.py`), damaged and hostile ones."""

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from utils.tests.weights.torch_pickles import (
    RAMP,
    array,
    call,
    dtype,
    name,
    part,
    plain,
    storage,
    tensor,
    viewed,
    write_legacy,
    write_zip,
)
from utils.weights import torch_reader
from utils.weights.torch_reader import TorchFileError, create_unread, load, load_state

FILES = Path(__file__).parent / "torch_files"
GOOD = ("dtypes.pt", "dtypes_legacy.pt")
GOOD += ("views.pt", "views_legacy.pt", "views_protocol4.pt", "dtypes.safetensors")
GOOD += ("checkpoint.pt", "checkpoint_legacy.pt")
MEMORY = """
import sys
from utils.weights.torch_reader import load

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
tree = load(sys.argv[1])
size = sum(array.nbytes for array in tree.values())
print(1024 * (peak() - before), size, "torch" in sys.modules)
"""


def read_refusal(path: Path) -> str:
    """Reads a bad file and returns the message: a ValueError of one line with the file name."""
    with pytest.raises(TorchFileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


@pytest.mark.parametrize("file", [file for file in GOOD if file.startswith("dtypes")])
def test_every_dtype_is_kept_or_widened(file):
    result = load(FILES / file)
    assert len(result) == {"dtypes.safetensors": 12}.get(file, 13)
    if file == "dtypes.safetensors":
        assert (result.pop("scalar").tolist(), result.pop("empty").shape) == (2.5, (0, 2))
    for kind, values in result.items():
        expected = "float32" if kind == "bfloat16" else kind
        assert values.dtype == expected
        assert values.dtype.isnative
        ramp = np.arange(6).reshape(2, 3).astype(expected)
        np.testing.assert_array_equal(values, ramp, err_msg=kind)


def test_odd_bfloat16_bits_are_widened_exactly(tmp_path):
    """The smallest and largest numbers, infinities, zeros, NaN."""
    bits = np.array([0x0001, 0x7F7F, 0x7F80, 0xFF80, 0x8000, 0xBF81, 0x7FC0], "<u2")
    header = json.dumps({"w": make_entry("BF16", bits.shape, (0, bits.nbytes))}).encode()
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bits.tobytes())
    largest = (2 - 2**-7) * 2.0**127
    expected = [2.0**-133, largest, np.inf, -np.inf, -0.0, -1.0078125, np.nan]
    result = load(path)["w"]
    np.testing.assert_array_equal(result, np.array(expected, np.float32))
    assert np.signbit(result[4])


@pytest.mark.parametrize("file", ["views.pt", "views_legacy.pt", "views_protocol4.pt"])
def test_views_share_their_storage_and_keep_their_strides(file, monkeypatch):
    monkeypatch.setattr(torch_reader, "CHUNK", 16)  # so storages have several
    result = load(FILES / file)
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = {"base": base, "row": base[1], "columns": base[:, 1::2], "transposed": base.T}
    for key, values in expected.items():
        np.testing.assert_array_equal(result[key], values)
        assert result[key].strides == values.strides
        assert np.shares_memory(result[key], result["base"])
    assert result["expanded"].tolist() == [[7.0] * 4] * 3
    assert result["expanded"].strides == (0, 0)
    assert (result["scalar"].shape, result["scalar"].dtype) == ((), "int64")
    assert result["scalar"] == 3
    assert (result["empty"].shape, result["flat"].shape) == ((0,), (2, 0, 3))


@pytest.mark.parametrize("file", ["checkpoint.pt", "checkpoint_legacy.pt"])
def test_a_checkpoint_becomes_plain_data(file):
    result = load(FILES / file)
    state = result.pop("state_dict")
    assert list(load_state(FILES / file)) == list(state)
    assert type(state) is dict
    assert {key: values.tolist() for key, values in state.items()} == {
        "module.fc.weight": [[0, 1, 2], [3, 4, 5]],
        "module.fc.bias": [0, 1],
        "module.mean": [0, 1, 2],
    }
    assert result.pop("best_prec1").shape == ()
    objects = ["args", "best_prec5", "history", "swapped", "size", "device", "raw", "tags"]
    left_out = [result.pop(key) for key in (*objects, "pair", "crop")]
    assert {type(value).__name__ for value in left_out} == {"Unread"}
    assert result["optimizer"]["state"][0].pop("momentum_buffer").tolist() == [[1] * 3] * 2
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0], "nesterov": True}]
    assert result == {
        "epoch": 3,
        "arch": "tsm_resnet50",
        "optimizer": {"state": {0: {"step": 10, "none": None}}, "param_groups": groups},
        "dtype": "torch.bfloat16",
    }


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("script.pt", "names __torch__"),
        ("quantized.pt", "torch._utils._rebuild_qtensor"),
        ("complex.pt", "torch.ComplexFloatStorage"),
        ("float8.pt", "torch.float8_e4m3fn"),
        ("big_endian.pt", "is of a big-endian machine"),
        ("big_endian_legacy.pt", "is of a big-endian machine"),
        ("sparse.pt", "torch._utils._rebuild_sparse_tensor"),
        ("module.pt", "torch.nn.modules.linear.Linear"),
        ("negated.pt", "resolve_neg"),
    ],
)
def test_data_that_is_not_read_is_refused_by_name(file, words):
    assert words in read_refusal(FILES / file)


STATE = {"w": np.zeros(2)}
OTHER = {"x": np.ones(1)}
NET = create_unread("")()


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        (STATE, ""),
        ({"model": {"epoch": 3, "state_dict": STATE}, "optimizer": {}}, ""),
        ({"model_state": STATE, "model": {"x": np.ones(1)}}, ""),
        ({"state_dict": {}, "model": STATE}, ""),
        ({"ema": STATE, "state_dict": {"x": np.ones(1)}}, "ema"),
        *[({"epoch": 3, key: STATE}, "") for key in torch_reader.STATE_KEYS],
        ({"state_dict": OTHER, "ema": {"decay": 0.9, "module": STATE}}, "ema"),
        ({"state_dict": OTHER, "ema": {"decay": 0.9, "module": STATE}}, "ema.module"),
        ({"a.b": {"c": STATE}, "state_dict": OTHER}, "a.b.c"),
        ({**STATE, "n": 3, "names": ["a"], "note": "text", "none": None, 3: np.ones(1)}, ""),
        ({"net": {**STATE, "extra": NET}}, ""),
    ],
)
def test_load_state_finds_the_state_dict(tree, key, monkeypatch):
    monkeypatch.setattr(torch_reader, "load", lambda path: tree)
    assert load_state("a.pth", key) == STATE


@pytest.mark.parametrize(
    ("tree", "key", "words"),
    [
        ({"epoch": 3, "nets": 4}, "", "no state dict; at the top it has epoch, nets"),
        ({"epoch": 3, "net": STATE}, "nett", "no state dict under 'nett'; at the top"),
        ({"a": {"b.c": np.ones(1)}, "b": {"b.c": np.ones(1)}}, "", "several state dicts: a, b; -"),
        ([STATE], "", "no state dict"),
        ({}, "", "no state dict"),
    ],
)
def test_load_state_lists_the_present_keys_in_its_error(tree, key, words, monkeypatch):
    monkeypatch.setattr(torch_reader, "load", lambda path: tree)
    with pytest.raises(TorchFileError, match="^a.pth: .*") as caught:
        load_state("a.pth", key)
    assert words in str(caught.value)


@pytest.mark.parametrize("file", GOOD)
def test_a_truncated_file_is_refused(file, tmp_path):
    data = (FILES / file).read_bytes()
    path = tmp_path / "cut"
    for end in [*range(0, len(data), 47), *range(len(data) - 30, len(data))]:
        path.write_bytes(data[:end])
        read_refusal(path)


def test_a_flipped_bit_in_the_storage_of_a_zip_fails_its_crc(tmp_path):
    data = (FILES / "views.pt").read_bytes()
    path = tmp_path / "flipped"
    path.write_bytes(data.replace(struct.pack("<f", 23), struct.pack("<f", 22)))
    assert "Bad CRC-32 for file 'views/data/0'" in read_refusal(path)


def test_arrays_of_numpy_are_read_without_objects(tmp_path):
    path = tmp_path / "a.npz"
    for write in (np.savez, np.savez_compressed):
        write(path, **{"fc.weight": np.arange(2, dtype=np.float32)})
        assert load_state(path)["fc.weight"].tolist() == [0, 1]
    np.savez(path, w=np.array([None]))
    assert "Object arrays cannot be loaded" in read_refusal(path)


def make_entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b'{"a":' + b"[" * 100_000,
        {"w": make_entry(shape=(1 << 60,), offsets=(0, 1 << 62))},
    ],
)
def test_a_wrong_safetensors_header_is_refused(header, tmp_path):
    path = tmp_path / "a"
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    for length in (len(text), 1 << 62):
        path.write_bytes(struct.pack("<Q", length) + text + bytes(8))
        read_refusal(path)


def write_big_zip(path: Path) -> None:
    """A zip of one storage of 200 MB."""
    body = tensor(storage(count=50_000_000), shape=(50_000_000,))
    write_zip(path, b"}U\x01w" + body + b"s", {"data/0": bytes(200_000_000)})


def write_big_safetensors(path: Path) -> None:
    """100 MB of bfloat16 in 10 tensors, a hole in the file, which become 200 MB of float32."""
    size = 10_000_000
    entries = {
        name: make_entry("BF16", (size // 2,), (k * size, (k + 1) * size))
        for k, name in enumerate("wabcdefghi")
    }
    header = json.dumps(entries).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 10 * size)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's VmHWM")
@pytest.mark.parametrize(
    ("make", "mapped"), [(write_big_zip, 0), (write_big_safetensors, 100_000_000)]
)
def test_loading_needs_little_more_memory_than_the_tensors_and_no_torch(make, mapped, tmp_path):
    """`mapped`: bytes of the file that count while the library maps it."""
    make(tmp_path / "big")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "big")]
    root = Path(__file__).parents[3]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    extra, tensors, torch = ran.stdout.split()
    assert int(tensors) == 200_000_000
    assert 0.95 * int(tensors) < int(extra) < int(tensors) + mapped + 25_000_000
    assert torch == "False"


# Old forms of pickles.


def test_python_2_text_is_read(tmp_path):
    body = b"}U\x03key" + tensor() + b"s"
    result = load(write_legacy(tmp_path / "a", body, struct.pack("<q", 4) + RAMP))
    assert result["key"].tolist() == [0, 1, 2, 3]


def test_one_untyped_storage_may_have_two_dtypes(tmp_path):
    path = write_zip(tmp_path / "a", b"(" + viewed("uint32") + viewed("uint16") + b"t")
    assert [part.dtype.name for part in load(path)] == ["uint32", "uint16"]


# Hostile pickles.


def test_nothing_in_a_file_is_executed(tmp_path):
    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "touched"),)

    pickle.loads(pickle.dumps(Touch()))  # Python's own unpickler executes it
    (tmp_path / "touched").rmdir()
    for protocol in (2, 4, 5):
        body = pickle.dumps({"weight": Touch(), "x": 3}, protocol)[:-1]
        assert "it names posix.mkdir" in read_refusal(write_zip(tmp_path / "a", body))
        assert "it names posix.mkdir" in read_refusal(write_legacy(tmp_path / "b", body, b""))
    assert not (tmp_path / "touched").exists()


FLOAT = name("torch.float32")
REBUILD = name("torch._utils._rebuild_tensor_v2")
DEEP = b")" + b"\x85" * 100_000
HOSTILE = [
    (call("builtins.eval", plain("1")), "builtins.eval"),
    (call("__builtin__.getattr", plain("a"), plain("b")), "builtins.getattr"),
    (plain("torch") + plain("_utils.os.system") + b"\x93", "torch._utils.os.system"),
    (name("torch.load"), "torch.load"),
    (name("evil\x1b[2J.\ttab"), "evil?[2J.?tab"),
    (b"(ios\nsystem\n", "os.system"),
    (plain("builtins.set") + b")R", "'str' object is not callable"),
    (name("torch.Size") + tensor(shape=(1 << 28,), strides=(0,)) + b"R",
     "argument list must be a tuple"),
    (name("torch.FloatStorage") + b")R", "calls 'torch.FloatStorage'"),
    (name("torch._utils._rebuild_tensor") + b"}b", "damaged (AttributeError"),
    (call("torch._tensor._rebuild_from_type_v2", REBUILD, name("torch.Size"), b")N"),
     "names torch.Size"),
    (b"h\x05", "damaged (UnpicklingError"),
    (plain(1) + b"r\xff\xff\xff\x7f", "damaged pickle"),
    (plain(1) + b"p4194304\n", "damaged pickle"),
    (b"T\xff\xff\xff\xff", "damaged (ValueError"),
    (storage(kind="torch.Tensor"), "damaged (KeyError: 'torch.Tensor')"),
    (storage(), "bare storage"),
    (dtype("f4"), "names numpy.dtype"),
    (tensor(storage(count=1 << 40)), "Unable to allocate"),
    (tensor(storage(count=3), shape=(3,)), "another size of storage 0"),
    (tensor(storage("../0")), "../0"),
    (b"(" + storage() + tensor(storage(count=5), shape=(5,)) + b"t", "strides is incompatible"),
    (call("torch._utils._rebuild_tensor_v3", *map(plain, ("text", 0, (), (), 0, 0)), FLOAT),
     "damaged (ValueError"),
    (tensor(storage(view=part(4, 0))), "a storage within another"),
    (tensor(storage(count=0), shape=()), "the empty storage 0"),
    (tensor(offset=1), "strides is incompatible"),
    (tensor(shape=(2,), strides=(4,)), "strides is incompatible"),
    (tensor(offset=3, strides=(-2,)), "strides is incompatible"),
    (viewed("Tensor"), "a tensor of the dtype Tensor"),
    (tensor(shape=(1,) * 65, strides=(1,) * 65), "damaged (ValueError"),
    (call("_codecs.encode", plain("text"), plain("rot13")), "names _codecs.encode"),
    (array("O8", (1,), bytes(8)), "names numpy.core.multiarray._reconstruct"),
    (name("argparse.Namespace") + b")R", "names argparse.Namespace"),
    (b"]q\x00h\x00a", "recursion"),
    (DEEP, "recursion"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_a_hostile_pickle_is_refused_in_one_line(body, words, tmp_path):
    assert words in read_refusal(write_zip(tmp_path / "a", body))


@pytest.mark.parametrize("key", [plain((1, 2)), storage(), name("torch.Size") + b")R"])
def test_an_item_with_a_key_that_is_no_plain_value_is_left_out(key, tmp_path):
    body = b"}" + key + b"Ns" + plain("a") + b"K\x03s"
    assert load(write_zip(tmp_path / "a", body)) == {"a": 3}


OBJECT = name("mmengine.HistoryBuffer") + b")\x81"  # NEWOBJ


@pytest.mark.parametrize(
    "value",
    [
        OBJECT,
        OBJECT + b"}" + plain("data") + array("f8", (1,), bytes(8)) + b"sb",
        call("pathlib.PosixPath", plain("a"), plain("b")),
        array("O8", (1,), bytes(8)),
        dtype("f4"),
        storage(),
        call("collections.defaultdict", name("builtins.list")) + OBJECT + b"Ns",
    ],
)
def test_an_object_outside_the_weights_hides_none_of_them(value, tmp_path):
    """It may be anywhere: beside the weights, in the state of the optimizer, as a key."""
    body = b"}" + plain("state_dict") + b"}" + plain("fc.weight") + tensor() + b"ss"
    body += plain("message_hub") + b"]" + value + b"as"
    for write in (write_zip, write_legacy):
        arguments = (body,) if write is write_zip else (body, struct.pack("<q", 4) + RAMP)
        path = write(tmp_path / "a", *arguments)
        assert load_state(path)["fc.weight"].tolist() == [0, 1, 2, 3]


# Hostile containers.


def write_records(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for record in names:
            archive.writestr(record, b"N.")


NO_SAVE = "not one that torch.save wrote"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: write_zip(path, tensor(), {"byteorder": b"middle"}), "big-endian"),
        (lambda path: write_records(path, "a/data.pkl", "b/x"), NO_SAVE),
    ],
)
def test_a_zip_that_torch_save_did_not_write_is_refused(write, words, tmp_path):
    write(tmp_path / "a")
    assert words in read_refusal(tmp_path / "a")


@pytest.mark.parametrize(
    ("keys", "tail", "words"),
    [
        ((), b"", "has no bytes for storage 0"),
        ((1,), b"", "KeyError: 1"),
        (("0",), struct.pack("<q", 3) + RAMP, "another size of storage 0"),
        (("0",), struct.pack("<q", 4) + RAMP[:-1], "ends inside storage 0"),
        (("0", "0"), (struct.pack("<q", 4) + RAMP) * 2, "KeyError: '0'"),
    ],
)
def test_storages_which_do_not_fit_their_legacy_pickle_are_refused(keys, tail, words, tmp_path):
    assert words in read_refusal(write_legacy(tmp_path / "a", body=tensor(), tail=tail, keys=keys))
