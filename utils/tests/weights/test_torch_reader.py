"""`utils.weights.torch_reader` on files made by real PyTorch (`torch_files/make.py`), whole and
damaged.

What `utils.weights.torch_pickle` makes of crafted pickles is in `test_torch_pickle.py`.
"""

import json
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from utils.weights import torch_reader
from utils.weights.torch_reader import TorchFileError, load, load_state

FILES = Path(__file__).parent / "torch_files"
GOOD = ("dtypes.pt", "dtypes_legacy.pt", "dtypes_big.pt", "dtypes_legacy_big.pt", "bits.pt")
GOOD += ("views.pt", "views_legacy.pt", "views_protocol4.pt", "dtypes.safetensors")
GOOD += ("checkpoint.pt", "checkpoint_legacy.pt")
WIDENED = {"bfloat16": "float32", "complex32": "complex64"}
MEMORY = """
import sys
from utils.weights.torch_reader import load

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
tree = load(sys.argv[1])
print(1024 * (peak() - before), tree["w"].nbytes, "torch" in sys.modules)
"""


def refusal(path: Path) -> str:
    """The message of the one error that may come out of a bad file: one line, with its name."""
    with pytest.raises(TorchFileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


@pytest.mark.parametrize("file", [file for file in GOOD if file.startswith("dtypes")])
def test_every_dtype_arrives_as_itself_or_widened(file):
    result = load(FILES / file)
    assert len(result) == {"dtypes_legacy_big.pt": 12, "dtypes.safetensors": 13}.get(file, 20)
    if file == "dtypes.safetensors":
        assert (result.pop("scalar").tolist(), result.pop("empty").shape) == (2.5, (0, 2))
    for kind, array in result.items():
        dtype = "float32" if kind.startswith("float8") else WIDENED.get(kind, kind)
        ramp = np.arange(6).reshape(2, 3) + (0.5j if "complex" in kind else 0)
        assert array.dtype == dtype
        assert array.dtype.isnative
        np.testing.assert_array_equal(array, ramp.astype(dtype), err_msg=kind)


def test_all_float8_codes_and_odd_bfloat16_bits_widen_as_in_pytorch():
    result, wanted = load(FILES / "bits.pt"), np.load(FILES / "bits.npz")
    assert set(result) == set(wanted)
    for kind, array in result.items():
        ours, theirs = array.view("f4"), wanted[kind].view("f4")
        np.testing.assert_array_equal(ours, theirs, err_msg=kind)
        number = ~np.isnan(theirs)
        np.testing.assert_array_equal(np.signbit(ours[number]), np.signbit(theirs[number]))


@pytest.mark.parametrize("file", ["views.pt", "views_legacy.pt", "views_protocol4.pt"])
def test_views_share_their_storage_and_keep_their_strides(file):
    result = load(FILES / file)
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted = {"base": base, "row": base[1], "columns": base[:, 1::2], "transposed": base.T}
    for key, array in wanted.items():
        np.testing.assert_array_equal(result[key], array)
        assert result[key].strides == array.strides
        assert np.shares_memory(result[key], result["base"])
    assert result["expanded"].tolist() == [[7.0] * 4] * 3
    assert result["expanded"].strides == (0, 0)
    assert (result["scalar"].shape, result["scalar"].dtype, int(result["scalar"])) == (
        (),
        "int64",
        3,
    )
    assert (result["empty"].shape, result["flat"].shape) == ((0,), (2, 0, 3))


@pytest.mark.parametrize("file", ["views.pt", "views_legacy.pt"])
def test_storages_arrive_whole_in_many_chunks(file, monkeypatch):
    monkeypatch.setattr("utils.weights.torch_reader.CHUNK", 16)
    assert load(FILES / file)["base"].ravel().tolist() == list(range(24))


@pytest.mark.parametrize("file", ["checkpoint.pt", "checkpoint_legacy.pt"])
def test_a_checkpoint_becomes_plain_data(file):
    result = load(FILES / file)
    state = result.pop("state_dict")
    assert list(load_state(FILES / file)) == list(state)
    assert type(state) is dict
    assert {key: array.tolist() for key, array in state.items()} == {
        "module.fc.weight": [[0, 1, 2], [3, 4, 5]],
        "module.fc.bias": [0, 1],
        "module.mean": [0, 1, 2],
    }
    assert result.pop("best_prec1").shape == ()
    assert result.pop("history").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert result.pop("swapped").tolist() == [0, 1, 2]
    assert result["optimizer"]["state"][0].pop("momentum_buffer").tolist() == [[1] * 3] * 2
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0], "nesterov": True}]
    assert result == {
        "epoch": 3,
        "arch": "tsm_resnet50",
        "best_prec5": 88.25,
        "optimizer": {"state": {0: {"step": 10, "none": None}}, "param_groups": groups},
        "args": {"lr": 0.01, "gpus": [0, 1]},
        "size": (2, 3),
        "device": "cuda:1",
        "dtype": "torch.bfloat16",
        "raw": b"\x00\xff",
        "tags": {"a", "b"},
        "pair": 1 - 2j,
        "crop": slice(1, None, 2),
    }


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("script.pt", "TorchScript archive"),
        ("quantized.pt", "torch._utils._rebuild_qtensor"),
        ("sparse.pt", "torch._utils._rebuild_sparse_tensor"),
        ("module.pt", "torch.nn.modules.linear.Linear"),
        ("module_legacy.pt", "torch.nn.modules.linear.Linear"),
        ("conjugate.pt", "resolve_conj"),
        ("storage.pt", "bare storage"),
    ],
)
def test_what_is_no_dense_data_is_refused_by_name(file, words):
    assert words in refusal(FILES / file)


STATE = {"w": np.zeros(2)}


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        (STATE, None),
        ({"epoch": 3, "best": np.zeros(()), "state_dict": STATE}, None),
        ({"model": {"epoch": 3, "state_dict": STATE}, "optimizer": {}}, None),
        ({"model_state": STATE, "model": {"x": np.ones(1)}}, None),
        ({"state_dict": {}, "model": STATE}, None),
        ({"ema": STATE, "state_dict": {"x": np.ones(1)}}, "ema"),
    ],
)
def test_load_state_finds_the_state_dict(tree, key, monkeypatch):
    monkeypatch.setattr(torch_reader, "load", lambda path: tree)
    assert load_state("a.pth", key) is STATE


@pytest.mark.parametrize(
    ("tree", "key", "words"),
    [
        ({"epoch": 3, "net": STATE}, None, "no state dict; at the top it has the keys: epoch, net"),
        ({"epoch": 3, "net": STATE}, "epoch", "no state dict under 'epoch'; at the top"),
        ({"state_dict": {**STATE, "n": 3}}, None, "entry 'n' of the state dict is a int"),
        ({"net": {}}, "net", "no state dict under 'net'"),
        ({"net": {**STATE, 3: np.ones(1)}}, "net", "entry '3' of the state dict"),
        ([STATE], None, "no state dict; at the top it has a list"),
        ({}, None, "no state dict; at the top it has nothing"),
    ],
)
def test_load_state_says_what_is_there_instead(tree, key, words, monkeypatch):
    monkeypatch.setattr(torch_reader, "load", lambda path: tree)
    with pytest.raises(TorchFileError, match="^a.pth: .*") as caught:
        load_state("a.pth", key)
    assert words in str(caught.value)


@pytest.mark.parametrize("file", GOOD)
def test_a_file_cut_anywhere_is_refused(file, tmp_path):
    data, path = (FILES / file).read_bytes(), tmp_path / "cut"
    for end in [*range(0, len(data), 47), *range(len(data) - 30, len(data))]:
        path.write_bytes(data[:end])
        refusal(path)


@pytest.mark.parametrize("file", GOOD)
def test_flipped_bits_are_refused_or_harmless(file, tmp_path):
    data, path, chance = (FILES / file).read_bytes(), tmp_path / "flipped", random.Random(file)
    for _ in range(100):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        with suppress(TorchFileError):
            load(path)


def test_a_flipped_bit_in_the_storage_of_a_zip_fails_its_crc(tmp_path):
    data, path = (FILES / "views.pt").read_bytes(), tmp_path / "flipped"
    path.write_bytes(data.replace(struct.pack("<f", 23), struct.pack("<f", 22)))
    assert "Bad CRC-32 for file 'views/data/0'" in refusal(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"PK", "neither a PyTorch nor a safetensors file"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (pickle.dumps({"blobs": {"conv1_w": np.ones(2)}}, 2), "Caffe2"),
        (pickle.dumps({"blobs": {"conv1_w": np.ones(2)}}, 0), "Caffe2"),
        (pickle.dumps({"weight": np.ones(2)}), "plain pickle"),
    ],
)
def test_other_files_are_told_apart(content, words, tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    assert words in refusal(path)


def test_missing_files_folders_archives_and_arrays_are_told_apart(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(FILES / "script.pt", "tensors")
    assert "before 0.1.10" in refusal(tmp_path / "a.tar")
    assert "No such file" in refusal(tmp_path / "missing")
    assert "cannot be opened" in refusal(tmp_path)
    assert "not one that torch.save wrote" in refusal(FILES / "bits.npz")


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", "is cut off or damaged (JSONDecodeError"),
        (b'{"a":' + b"[" * 100_000, "is cut off or damaged (RecursionError"),
        (b'{"w": {"dtype": 1, "dtype": 2}}', "names something twice"),
        ({"w": 3}, "something else than dtype, shape and offsets"),
        ({"w": {**entry(), "more": 1}}, "something else than dtype, shape and offsets"),
        ({"w": entry("F33")}, "dtype F33"),
        ({"w": entry(["F32"])}, "which is not read"),
        ({"w": entry(shape=(3,))}, "puts tensor w at bytes"),
        ({"w": entry(shape=(-2,))}, "impossible shape"),
        ({"w": entry(shape=(2.0,))}, "impossible shape"),
        ({"w": entry(offsets=(0, 8, 8))}, "impossible shape"),
        ({"w": entry(shape=(1 << 60,), offsets=(0, 1 << 62))}, "ends before tensor w"),
        ({"w": entry(), "x": entry()}, "puts tensor x at bytes"),
        ({"w": entry(shape=(1,), offsets=(4, 8))}, "puts tensor w at bytes"),
        ({"w": entry(shape=(1,), offsets=(0, 4))}, "4 bytes behind its last tensor"),
    ],
)
def test_a_wrong_safetensors_header_is_refused(header, words, tmp_path):
    path, text = (
        tmp_path / "a",
        header if isinstance(header, bytes) else json.dumps(header).encode(),
    )
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert words in refusal(path)
    path.write_bytes(struct.pack("<Q", 1 << 62) + text)
    assert "claims a safetensors header of 4611686018427387904 bytes" in refusal(path)


def big_zip(path: Path) -> None:
    """A zip of one storage of 200 MB."""
    count = struct.pack("<i", 50_000_000)
    body = b"ctorch._utils\n_rebuild_tensor\n((U\x07storagectorch\nFloatStorage\nU\x010NJ"
    body += count + b"tQK\x00J" + count + b"\x85K\x01\x85tR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}U\x01w" + body + b"s.")
        with archive.open("a/data/0", "w") as record:
            for _ in range(200):
                record.write(bytes(1_000_000))


def big_safetensors(path: Path) -> None:
    """100 MB of bfloat16, a hole in the file, which become 200 MB of float32."""
    header = json.dumps({"w": entry("BF16", (50_000_000,), (0, 100_000_000))}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 100_000_000)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's VmHWM")
@pytest.mark.parametrize("make", [big_zip, big_safetensors])
def test_loading_takes_little_more_than_the_tensors_and_no_torch(make, tmp_path):
    make(tmp_path / "big")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "big")]
    root = Path(__file__).parents[3]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    extra, tensors, torch = ran.stdout.split()
    assert int(tensors) == 200_000_000
    assert 0.95 * int(tensors) < int(extra) < int(tensors) + 10_000_000
    assert torch == "False"
