"""Damaged and hostile .ckpt files are refused in one line, or read correctly."""

import resource
import tracemalloc

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train.checkpoint_pb2 import Checkpoint

from tests.fuzz.checkpoints import CRAFTED
from tests.fuzz.damage import mutate
from utils.weights.checkpoint import load, save, weights_of
from utils.weights.checkpoint_file import read

TRIES = 200


@pytest.fixture
def net() -> nn.Cell:
    return nn.SequentialCell(nn.Conv2d(2, 3, 1, has_bias=True), nn.BatchNorm2d(3), nn.Dense(3, 4))


@pytest.fixture
def old(net, tmp_path) -> bytes:
    """A file by MindSpore, without a checksum."""
    ms.save_checkpoint(net, str(tmp_path / "old.ckpt"))
    return (tmp_path / "old.ckpt").read_bytes()


@pytest.fixture
def new(net, tmp_path) -> bytes:
    save(tmp_path / "new.ckpt", weights_of(net))
    return (tmp_path / "new.ckpt").read_bytes()


def try_to_load(net: nn.Cell, path) -> bool:
    """Whether the file loads. A refused file must not change the network."""
    before = {name: p.asnumpy().copy() for name, p in weights_of(net).items()}
    try:
        load(net, path)
    except ValueError as error:
        message = str(error)
        assert str(path) in message
        assert message.isprintable()
        assert len(message) < 1000
        for name, p in weights_of(net).items():
            np.testing.assert_array_equal(p.asnumpy(), before[name])
        return False
    return True


def assert_arrays_as_in_protobuf(path) -> None:
    """Asserts that the loaded arrays have the names, sizes and bytes of the file."""
    entries = Checkpoint.FromString(path.read_bytes()).value
    expected = {e.tag: e.tensor for e in entries if e.tensor.tensor_type != "str"}
    result = read(path)
    assert list(result) == list(expected)
    for name, array in result.items():
        assert list(array.shape) == [*expected[name].dims]
        assert array.tobytes() == expected[name].tensor_content


SEEDS = [range(TRIES), pytest.param(range(TRIES, 50 * TRIES), marks=pytest.mark.slow)]


@pytest.mark.parametrize("numbers", SEEDS, ids=str)
def test_a_mutated_file_without_a_checksum_is_refused_or_loads_correctly(
    net, old, tmp_path, seed, numbers
):
    loaded = 0
    path = tmp_path / "a.ckpt"
    for number in numbers:
        path.write_bytes(mutate(old, seed + number))
        if try_to_load(net, path):
            loaded += 1
            assert_arrays_as_in_protobuf(path)
    assert 0 < loaded < len(numbers) / 2, "changed numbers load, most other changes do not"


@pytest.mark.parametrize("numbers", SEEDS, ids=str)
def test_a_mutated_file_with_a_checksum_is_refused(net, new, tmp_path, seed, numbers):
    """Only a file without its checksum loads."""
    path = tmp_path / "a.ckpt"
    for number in numbers:
        path.write_bytes(mutate(new, seed + number))
        if try_to_load(net, path):
            assert path.read_bytes() in (new, new[:-17]), f"--seed {seed + number}"


@pytest.mark.parametrize("name", CRAFTED)
def test_a_hostile_file_is_refused_with_memory_and_time_by_its_size(name, net, old, tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes(CRAFTED[name](old))
    size = path.stat().st_size
    before = resource.getrusage(resource.RUSAGE_SELF)
    tracemalloc.start()
    try:
        read(path)
    except ValueError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert peak < 4 * size + 60e6
    assert 1e3 * (after.ru_maxrss - before.ru_maxrss) < 4 * size + 120e6
    assert after.ru_utime - before.ru_utime < 10
    assert not try_to_load(net, path)
