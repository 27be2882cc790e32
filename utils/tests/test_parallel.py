"""AllReduce splits: layer names or indices to the last index of each segment."""

import pytest
from mindspore import nn

from utils.parallel import segment_ends, split_all_reduce
from utils.runtime import Runtime

NAMES = ["base.conv1.weight", "base.layer1.0.weight", "base.layer1.0.gamma", "base.layer2.0.weight"]


def test_names_end_a_segment_with_the_layers_last_parameter():
    assert segment_ends(NAMES, ["layer1"]) == [2, 3]
    assert segment_ends(NAMES, ["conv1", "layer1", "layer2"]) == [0, 2, 3]


def test_indices_and_names_mix():
    assert segment_ends(NAMES, [0, "layer1.0"]) == [0, 2, 3]


def test_nothing_asked_is_one_segment():
    assert segment_ends(NAMES, []) == [3]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["layer3"], "no trainable parameter lies in a layer named layer3"),
        (["layer"], "layer named layer"),
        ([4], "4 is not among the indices 0..3"),
        ([-1], "-1 is not among"),
        ([2, 1], "not ascending"),
        ([1, 1], "not ascending"),
    ],
)
def test_a_wrong_split_is_an_error(asked, words):
    with pytest.raises(ValueError, match=words):
        segment_ends(NAMES, asked)


def test_more_than_eight_segments_are_an_error():
    with pytest.raises(ValueError, match="9 segments; at most 8"):
        segment_ends([str(i) for i in range(20)], list(range(8)))


def test_segments_are_told_with_tensors_and_bytes():
    net = nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))
    opt = nn.SGD(net.trainable_params(), 0.1)
    assert split_all_reduce(opt, ["0"], Runtime()) == [(1, 2, 64), (3, 2, 40)]
