"""Counts of operations, arrays and parameters equal published numbers, as complexity.py has them.

Publications count different operations. torchvision and MViTv2 count all products. X3D counts
convolutions only, or norms and the classifier too. mmaction2, the source of the numbers of TSM,
counts two operations for each element of a norm, and does not count the classifier. It prints
3.27 G of MobileNet for images of 256; at 224, the size in training, the network takes 2.50 G.
"""

from typing import NamedTuple

import pytest

from scripts.analysis.complexity import summarize
from tests.helpers import find_smoke_yaml, read_result
from utils.complexity import count_layers
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network_of_yaml
from utils.tests.parity import count_trained, mark_slow_except, without_values


class Published(NamedTuple):
    """Trained elements and arrays, 1e9 multiply-adds, and whether these include two kinds."""

    parameters: int
    arrays: int
    giga: float = 0.0  # unknown if 0
    classifier: bool = True
    norms: bool = False


PUBLISHED = {
    "resnet50_r18_imagenet_torchvision": Published(11_689_512, 62, 1.814),
    "resnet50_r34_imagenet_torchvision": Published(21_797_672, 110, 3.664),
    "resnet50_r50_imagenet_torchvision": Published(25_557_032, 161, 4.089),
    "resnet50_r50_imagenet_torchvision_v2": Published(25_557_032, 161),
    "resnet50_r101_imagenet_torchvision": Published(44_549_160, 314, 7.801),
    "resnet50_r152_imagenet_torchvision": Published(60_192_808, 467, 11.514),
    "resnet50_se50_imagenet_zoo": Published(28_203_593, 175),
    "resnet50_r50_cifar10_zoo": Published(23_528_522, 161),
    "resnet50_r50_imagenet_zoo": Published(25_559_081, 161),
    "tsm_r50_k400_8f": Published(24_327_632, 161, 32.88, False, True),
    "tsm_r50_k400_16f": Published(24_327_632, 161, 65.75, False, True),
    "tsm_r50_k400_8f_nl": Published(31_686_096, 211, 61.30, False, True),
    "tsm_r50_sthv2_8f": Published(23_864_558, 161, 32.88, False, True),
    "tsm_r50_ucf101_8f": Published(23_714_981, 161),
    "tsm_r101_sthv2_8f": Published(42_856_686, 314, 62.66, False, True),
    "tsm_mobilenetv2_k400_8f": Published(2_736_272, 158),
    "tsm_mobilenetv2_k400_8f --data.crop=256": Published(2_736_272, 158, 3.27, False, True),
    "tsm_mobilenetv2_jester_online": Published(2_258_459, 158),
    "x3d_xs_k400_4x12": Published(3_794_322, 316, 0.604, False),
    "x3d_s_k400_13x6": Published(3_794_322, 316, 1.962, False),
    "x3d_m_k400_16x5": Published(3_794_322, 316, 4.732, False),
    "x3d_l_k400_16x5": Published(6_153_432, 633, 18.367, False),
    "x3d_s_dense_k400_13x6_ascend_8p": Published(54_571_932, 316, 44.49, False),
    "mvit_multi_b_k400_mit_ssv2_32x3": Published(64_297_643, 538, 223.14),
    "mvit_multi_single_b_k400_32x3": Published(51_293_776, 518),
    "mvit_multi_plain_s_k400_16x4": Published(34_537_744, 397, 64.22),
    "mvit_multi_plain_b_k400_32x3": Published(51_230_128, 589, 224.47),
}
X3D_WITH_ALL = {
    "x3d_xs_k400_4x12": 0.626,
    "x3d_s_k400_13x6": 2.032,
    "x3d_m_k400_16x5": 4.899,
    "x3d_l_k400_16x5": 18.932,
}
LARGE = ("_r101_", "_r152_", "_16f", "_l_", "dense", "mvit_")  # more than a second


@without_values
def count_recipe(words: str, published: Published) -> tuple[int, int, dict]:
    """(trained elements, arrays, row of the table) of a recipe with further settings.

    The row is empty if no operations are published.
    """
    name, *settings = words.split(" --")
    path = next(ROOT.glob(f"*/configs/{name}.yaml"))
    network = find_network_of_yaml(path)
    cfg = load_config(network.config, path, [*settings, "run.device=CPU"])
    net = network.build_model(**cfg.model_arguments())
    clip = network.get_input_shape(cfg)
    row = summarize(clip, count_layers(net, clip)) if published.giga else {}
    return *count_trained(net), row


def count_operations(row: dict, classifier: bool, norms: bool) -> float:
    """1e9 operations, counted as in the publication; an element of a norm takes two."""
    result = row["multiply_adds"]
    kinds = row["kinds"]
    result -= 0 if classifier else kinds["dense"]["macs"]
    return (result + (2 * kinds["batch norm"]["outputs"] if norms else 0)) / 1e9


@pytest.mark.parametrize(
    "recipe",
    mark_slow_except(PUBLISHED, *(n for n in PUBLISHED if not any(part in n for part in LARGE))),
)
def test_a_recipe_has_the_published_numbers(recipe):
    """Equality in all printed digits; mmaction2 also rounds the inputs of poolings."""
    published = PUBLISHED[recipe]
    parameters, arrays, row = count_recipe(recipe, published)
    assert (parameters, arrays) == (published.parameters, published.arrays)
    if published.giga:
        assert row["parameters"] == parameters
        digits = len(str(published.giga).partition(".")[2])
        result = count_operations(row, published.classifier, published.norms)
        tolerance = max(2e-4 * published.giga * published.norms, 0.5 * 10**-digits)
        assert abs(result - published.giga) <= tolerance, result
    if recipe in X3D_WITH_ALL:
        result = count_operations(row, classifier=True, norms=True)
        assert result == pytest.approx(X3D_WITH_ALL[recipe], abs=0.0005)


def test_the_command_prints_the_numbers(run_here):
    words = ["--config_path", find_smoke_yaml("resnet50")]
    result = read_result(run_here("scripts/analysis/complexity.py", *words))
    assert (result["network"], result["parameters"]) == ("resnet50_smoke", 177_362)
