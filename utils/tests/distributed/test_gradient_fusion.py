"""AllReduce splits: layer names or indices to the last index of each segment."""

import mindspore as ms
import pytest
from mindspore import nn

from utils.distributed.gradient_fusion import segment_ends, split_all_reduce
from utils.runtime import Runtime
from utils.settings import Run

NAMES = ["base.conv1.weight", "base.layer1.0.weight", "base.layer1.0.gamma", "base.layer2.0.weight"]


@pytest.mark.parametrize(
    ("setting", "ends"),
    [
        (["layer1"], [2, 3]),  # a name means the last parameter of the layer
        (["conv1", "layer1", "layer2"], [0, 2, 3]),
        ([0, "layer1.0"], [0, 2, 3]),
        ([], [3]),
        ("none", [3]),
    ],
)
def test_a_split_of_indices_and_names_gives_the_ends_of_segments(setting, ends):
    assert segment_ends(NAMES, setting) == ends


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (["layer3"], "no trainable parameter lies in a layer named layer3"),
        (["layer"], "layer named layer"),
        ([4], "4 is not among the indices 0..3"),
        ([-1], "-1 is not among"),
        ([2, 1], "not ascending"),
        ([1, 1], "not ascending"),
    ],
)
def test_a_wrong_split_is_an_error(setting, words):
    with pytest.raises(ValueError, match=words):
        segment_ends(NAMES, setting)


def test_more_than_eight_segments_are_an_error():
    with pytest.raises(ValueError, match="9 segments; at most 8"):
        segment_ends([str(i) for i in range(20)], list(range(8)))


def build_two_layers() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))


def split(net: nn.Cell, rt: Runtime, weights=None, **run):
    opt = nn.SGD(weights or net.trainable_params(), 0.1)
    return split_all_reduce(net, optimizer=opt, run=Run(device="CPU", **run), rt=rt)


def test_segments_have_counts_of_tensors_and_bytes():
    assert split(build_two_layers(), Runtime(), all_reduce=("0",)) == [(1, 2, 64), (3, 2, 40)]
    assert split(build_two_layers(), Runtime()) == [(3, 4, 104)]


def test_several_devices_set_the_ends_in_mindspore(context_values):
    assert split(build_two_layers(), Runtime(0, 2), all_reduce=("0",)) == [(1, 2, 64), (3, 2, 40)]
    assert context_values == [[1, 3]]


@pytest.fixture
def context_values(monkeypatch) -> list:
    """The values that the test sets in MindSpore's parallel context."""
    values = []
    monkeypatch.setattr(
        ms, "set_auto_parallel_context", lambda **options: values.append(*options.values())
    )
    return values


def test_an_optimizer_in_another_order_is_an_error():
    net = build_two_layers()
    weights = net.trainable_params()
    with pytest.raises(ValueError, match="parameter 0 is 1.bias for the optimizer and 0.weight"):
        split(net, Runtime(), weights[::-1])
    with pytest.raises(ValueError, match="the optimizer has 2 parameters, the network 4"):
        split(net, Runtime(), weights[:2])


def test_an_ambiguous_layer_name_is_an_error():
    names = ["conv1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.gamma", "layer2.0.conv1.weight"]
    with pytest.raises(ValueError, match="0.conv1 names several layers, from layer1.0.conv1 to"):
        segment_ends(names, ["0.conv1"])
    assert segment_ends(names, ["conv1"]) == [0, 3], "a full path matches one layer only"
