"""Parameter names and counts must match those of published checkpoints."""

from pathlib import Path

import numpy as np
import pytest

from scripts.analysis.activations import set_weights
from tests.golden_cases import generate_weight, get_shapes, load_case, map_torch_names
from tsm.model import TSM
from tsm.network import NETWORK
from tsm.tests.golden_case import TSMCase
from utils.tests.parity import assert_activations, assert_manifest, read_manifest, without_values
from utils.weights.checkpoint import weights_of
from utils.weights.convert import convert

GOLDEN = Path(__file__).parent / "golden"
NAMES = NETWORK.parameter_names()


@pytest.mark.parametrize("name", ["tsm_r50_8f", "tsm_r50_8f_small"])
@without_values
def test_names_and_order_equal_the_originals(name):
    assert_manifest(TSM(400, 8), load_case(GOLDEN / f"{name}.json")["manifest"])


@without_values
def test_a_non_local_block_has_the_order_of_the_original():
    """AllReduce splits count the trained parameters."""
    weights = map_torch_names(TSM(400, 8, non_local=True)).values()
    block = [n.split(".nl.")[1] for n in weights if n.startswith("base_model.layer2.0.nl.")]
    trained = [name for name in block if "running" not in name]
    order = ("g.0", "W.0", "W.1", "theta", "phi.0")
    assert trained == [f"{part}.{leaf}" for part in order for leaf in ("weight", "bias")]


def load_manifest(name: str) -> dict:
    return read_manifest(GOLDEN / "names" / f"{name}.txt.gz")


def fill_state(source: str) -> dict:
    """The state dict of a published checkpoint, with weights that depend on their names."""
    return {name: generate_weight(name, shape) for name, shape in load_manifest(source).items()}


def make_empty_state(source: str) -> dict:
    """The state dict of a published checkpoint; all weights are 0."""
    return {name: np.zeros(shape, np.float32) for name, shape in load_manifest(source).items()}


@without_values
def test_non_local_blocks_are_newly_initialised_if_the_start_is_an_imagenet_network():
    targets = get_shapes(TSM(400, 8, non_local=True))
    state = make_empty_state("torchvision_resnet50")
    converted = convert(state, shapes=targets, network=NETWORK, new_head=True)
    assert converted.initial == [name for name in targets if ".nl." in name]
    assert len(converted.initial) == 60
    assert {*targets} == {*converted.arrays, *converted.initial, *converted.missing}
    with pytest.raises(ValueError, match=r"missing base_model.layer2.0.nl"):
        convert(make_empty_state("tsm_r50_k400"), shapes=targets, network=NETWORK)


@without_values
def test_conversion_gives_every_array_the_right_name():
    """Weights are a function of the name, so a swap of two arrays of one shape would show."""
    source = fill_state("mmaction2_tsm_r50")
    arrays = convert(source, get_shapes(TSM(400, 8)), NETWORK).arrays
    norm = "base_model.layer2.0.downsample.1.moving_mean"
    expected = {
        "base_model.layer3.1.conv1.net.weight": "backbone.layer3.1.conv1.conv.net.weight",
        norm: "backbone.layer2.0.downsample.bn.running_mean",
        "base_model.layer4.2.bn3.gamma": "backbone.layer4.2.conv3.bn.weight",
        "new_fc.bias": "cls_head.fc_cls.bias",
    }
    for ours, theirs in expected.items():
        np.testing.assert_array_equal(arrays[ours], source[theirs])


def test_torchvisions_mobilenet_without_the_shift_has_torchvisions_features():
    """`torchvision_mobilenet_v2.json` was computed by torchvision's mobilenet_v2."""
    case = load_case(GOLDEN / "torchvision_mobilenet_v2.json")
    net = TSM(**{**TSMCase(case).model_arguments(), "dropout": 0.5}).set_train(False)
    source = fill_state("torchvision_mobilenet_v2")
    converted = convert(source, shapes=get_shapes(net), network=NETWORK, new_head=True)
    values = {name: parameter.asnumpy() for name, parameter in weights_of(net).items()}
    set_weights(net, {**values, **converted.arrays})
    assert_activations(net, case, str)


@without_values
def test_a_flow_network_starts_from_the_mean_over_rgb():
    net = TSM(9, segments=8, arch="resnet18", modality="flow", frames_per_segment=5)
    targets = get_shapes(net)
    source = fill_state("torchvision_resnet18")
    converted = convert(source, shapes=targets, network=NETWORK, new_head=True)
    kernel = converted.arrays["base_model.conv1.weight"]
    assert kernel.shape == (64, 10, 7, 7)
    mean = source["conv1.weight"].mean(axis=1)
    for channel in range(10):
        np.testing.assert_allclose(kernel[:, channel], mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("backbone.conv1.bn.weight", "base_model.features.0.1.weight"),
        ("backbone.layer2.1.conv.0.net.conv.weight", "base_model.features.3.conv.0.weight"),
        ("backbone.layer1.0.conv.1.bn.bias", "base_model.features.1.conv.4.bias"),
        ("backbone.conv2.conv.weight", "base_model.features.18.0.weight"),
    ],
)
def test_mmaction2s_names_of_mobilenet_are_converted(theirs, ours):
    names = [theirs, "backbone.layer2.1.conv.1.bn.bias"]
    assert NAMES.detect_format(names) == "mmaction2_mobilenet"
    assert NAMES.canonical_name(theirs, "mmaction2_mobilenet") == ours
