"""Reader of MindSpore's checkpoint files: intact and damaged files."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from mindspore import dtype as mstype
from mindspore.train import serialization
from mindspore.train.checkpoint_pb2 import Checkpoint

from utils.tests.weights.test_checkpoint import build_network
from utils.weights.checkpoint import load, save, weights_of
from utils.weights.checkpoint_file import read

TYPES = ("Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
TYPES += ("BFloat16", "Float16", "Float32", "Float64")


def flip_bit(path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_arrays_of_every_type_and_shape_are_read(tmp_path):
    shapes = [(6,), (2, 3), (1, 6, 1)] * 5
    numbers = np.arange(-3, 3)
    dtypes = {name: getattr(mstype, {"Bool": "bool_"}.get(name, name.lower())) for name in TYPES}
    arrays = {
        name: Tensor(numbers.reshape(shape), dtype)
        for (name, dtype), shape in zip(dtypes.items(), shapes)
    }
    arrays["number"] = Tensor(7.5, mstype.float32)
    save(tmp_path / "a.ckpt", {k: Parameter(v, name=k) for k, v in arrays.items()})
    result = read(tmp_path / "a.ckpt")
    assert list(result) == list(arrays)
    for name, array in arrays.items():
        expected = array.astype(mstype.float32) if name == "BFloat16" else array
        np.testing.assert_array_equal(result[name], expected.asnumpy(), strict=True)


def test_a_scalar_of_an_older_mindspore_has_no_axes(tmp_path):
    save(tmp_path / "a.ckpt", {"step": Tensor(5, mstype.int32)})
    message = Checkpoint.FromString((tmp_path / "a.ckpt").read_bytes()[:-17])
    message.value[0].tensor.dims[:] = [0]
    (tmp_path / "a.ckpt").write_bytes(message.SerializeToString())
    assert read(tmp_path / "a.ckpt")["step"].tolist() == 5


def test_a_large_array_is_read_from_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # kB
    array = np.random.RandomState(1).rand(300, 7).astype(np.float32)
    save(tmp_path / "a.ckpt", {"a": Tensor(array), "b": Tensor(array[0])})
    parts = Checkpoint.FromString((tmp_path / "a.ckpt").read_bytes()[:-17]).value
    assert [part.tag for part in parts] == ["a"] * 9 + ["b"]
    np.testing.assert_array_equal(read(tmp_path / "a.ckpt")["a"], array)
    (tmp_path / "a.ckpt").write_bytes(Checkpoint(value=parts[1:]).SerializeToString())
    with pytest.raises(ValueError, match=r"a has 7376 bytes for the sizes \[300, 7\] of Float32"):
        read(tmp_path / "a.ckpt")


def test_texts_and_numbers_of_append_dict_are_skipped(tmp_path, log_messages):
    source = build_network()
    net = build_network()
    notes = {"epoch_num": 3, "rate": 0.5, "is_best": True, "note": "of last night"}
    ms.save_checkpoint(source, str(tmp_path / "a.ckpt"), append_dict=notes)
    load(net, tmp_path / "a.ckpt")
    np.testing.assert_array_equal(net[0].weight.asnumpy(), source[0].weight.asnumpy())
    words = "a.ckpt: left out what is not a weight: epoch_num, rate, is_best"
    assert log_messages[-1].endswith(words)


def test_a_file_without_a_checksum_loads_with_one_warning(tmp_path, log_messages):
    net = build_network()
    path = tmp_path / "a.ckpt"
    save(path, weights_of(net))
    load(net, path)
    assert not log_messages
    ms.save_checkpoint(net, str(path))
    load(net, path)
    assert [message.partition(",")[0] for message in log_messages] == [f"{path} has no checksum"]


@pytest.mark.parametrize("position", [40, -1, -14])
def test_a_flipped_bit_is_refused_with_older_weights(tmp_path, position):
    for name in ("epoch_010.ckpt", "epoch_012.ckpt", "resume.ckpt"):
        save(tmp_path / name, weights_of(build_network()))
        flip_bit(tmp_path / name, position)
    for name, older in (("epoch_012.ckpt", "epoch_010.ckpt"), ("resume.ckpt", "epoch_012.ckpt")):
        with pytest.raises(ValueError, match=f"{name}: not a readable .*{tmp_path / older}"):
            load(build_network(), tmp_path / name)
