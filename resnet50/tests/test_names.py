"""Conversion of every array of every supported format."""

import re

import numpy as np
import pytest

from resnet50.convert import ResNetNames
from resnet50.model import build_network
from resnet50.network import NETWORK
from utils.testing.golden import get_shapes
from utils.tests.parity import assert_prefixes, without_values
from utils.weights.convert import NORM, convert

SETTINGS = {"num_classes": 5, "mean": (0.5,) * 3, "std": (0.5,) * 3}

BACK = {published: local for local, published in NORM.items()}


def rename_to_torchvision(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{module}.{BACK.get(leaf, leaf)}"


def rename_to_nvidia(name: str) -> str:
    renamed = re.sub(
        r"^layer(\d)", lambda m: f"layers.{int(m[1]) - 1}", rename_to_torchvision(name)
    )
    return f"module.{renamed}"


def rename_to_zoo(name: str) -> str:
    name = name.replace("downsample", "down_sample_layer").replace("fc.", "end_point.")
    return re.sub(r"(layer.*bn\d)\.", r"\1d.", name)


def rename_to_mindcv(name: str) -> str:
    return re.sub(r"^fc\.", "classifier.", name.replace("downsample", "down_sample"))


def rename_to_zoo_se(name: str) -> str:
    if re.match(r"layer[234]\.0\.", name):
        name = name.replace("downsample.1", "downsample.2").replace("downsample.0", "downsample.1")
        name = name.replace("conv2.", "e2.0.").replace("bn2.", "e2.1.")
    name = name.replace("downsample", "down_sample_layer").replace(".se.se_", ".se_")
    name = name.replace("bn1_2.", "bn1.")
    return re.sub(r"^fc\.", "end_point.", name)


@pytest.mark.parametrize(
    ("arch", "rename"),
    [
        *[(f"resnet{depth}", rename_to_torchvision) for depth in (18, 34, 50, 101, 152)],
        ("resnet50", rename_to_nvidia),
        ("resnet18", rename_to_zoo),
        ("resnet50", rename_to_mindcv),
        ("se_resnet50", rename_to_zoo_se),
    ],
)
@without_values
def test_every_array_of_a_published_format_is_used(arch, rename):
    shapes = get_shapes(build_network(arch, **SETTINGS))
    values = {
        name: np.full(shape, i % 97, np.float32) for i, (name, shape) in enumerate(shapes.items())
    }
    source = {rename(name): value for name, value in values.items()}
    assert len(source) == len(shapes)
    converted = convert(source, shapes, NETWORK)
    assert converted.missing == []
    np.testing.assert_equal(converted.arrays, values)
    source["layer5.0.conv1.weight"] = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=r"layer5\.0\.conv1\.weight"):
        convert(source, shapes, NETWORK)


@pytest.mark.parametrize(
    "rename", [rename_to_torchvision, rename_to_nvidia, rename_to_zoo, rename_to_mindcv]
)
@without_values
def test_every_format_may_have_the_prefix_of_a_wrapper(rename):
    net = build_network("resnet18", **SETTINGS)
    source = {rename(n): np.zeros(shape, np.float32) for n, shape in get_shapes(net).items()}
    assert_prefixes(source, net, NETWORK)


def test_names_of_another_network_are_refused():
    with pytest.raises(ValueError, match="not a ResNet's"):
        ResNetNames().detect_format(["blocks.0.weight"])
