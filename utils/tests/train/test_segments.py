"""AllReduce splits: layer names or indices to the last index of each segment."""

import pytest

from utils.train.gradients import segment_ends

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
