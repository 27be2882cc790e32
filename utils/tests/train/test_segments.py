"""AllReduce splits: layer names or indices to the last index of each segment."""

import pytest
from mindspore import nn

from utils.settings import Run
from utils.train.gradients import segment_ends, split_all_reduce

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
        (["layer3"], "layer3"),
        ([4], "4"),
        ([2, 1], "2, 1"),
        (list(range(8)), "at most 8"),
    ],
)
def test_a_wrong_split_is_an_error(setting, words):
    names = [*NAMES, *map(str, range(9))] if len(setting) > 2 else NAMES
    with pytest.raises(ValueError, match=f"run.all_reduce: .*{words}"):
        segment_ends(names, setting)


def build_two_layers() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))


def split(net: nn.Cell, weights=None, **run):
    opt = nn.SGD(weights or net.trainable_params(), 0.1)
    return split_all_reduce(net, optimizer=opt, run=Run(device="CPU", **run))


def test_segments_have_counts_of_tensors_and_bytes():
    assert split(build_two_layers(), all_reduce=("0",)) == [(1, 2, 64), (3, 2, 40)]
    assert split(build_two_layers()) == [(3, 4, 104)]
