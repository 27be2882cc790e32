"""Names of every published format: each array is used, and each weight gets its own array."""

import re
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np
import pytest
from mindspore import nn

from mvit_multi.config import Config as MViTConfig
from tests.golden_cases import get_shapes, map_torch_names
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network
from utils.tests.parity import read_manifest, without_values
from utils.weights.convert import convert, detect_prefix_and_format
from x3d.tests.pytorchvideo import rename_to_pytorchvideo

WITHOUT_NORM = "s2.pathway0_res0.branch1_bn."  # of X3D, in pytorchvideo


class Published(NamedTuple):
    """A format with the settings of a network.

    Its names are in a manifest, or `rename` gives them from PyTorch's names of our arrays.
    """

    format: str
    settings: dict
    manifest: Optional[Path] = None
    rename: Optional[Callable[[str], str]] = None
    new_head: bool = False


def tsm(file: str, source_format: str, new_head: bool = False, **settings) -> Published:
    manifest = ROOT / "tsm" / "tests" / "golden" / "names" / f"{file}.txt.gz"
    settings = {"segments": 8, "num_classes": 400, **settings}
    return Published(source_format, settings, manifest, new_head=new_head)


def resnet(source_format: str, rename: Callable, arch: str = "resnet50") -> Published:
    pixels = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    return Published(source_format, {"num_classes": 5, "arch": arch, **pixels}, rename=rename)


def rename_to_nvidia(name: str) -> str:
    return "module." + re.sub(r"^layer(\d)", lambda m: f"layers.{int(m[1]) - 1}", name)


def rename_norms(name: str) -> str:
    """MindSpore's names of the arrays of norms."""
    return re.sub(r"(bn\d|downsample\.1)\.(\w+)$", lambda m: f"{m[1]}.{MINDSPORE[m[2]]}", name)


MINDSPORE = {"weight": "gamma", "bias": "beta"}
MINDSPORE |= {"running_mean": "moving_mean", "running_var": "moving_variance"}


def rename_to_zoo(name: str) -> str:
    name = rename_norms(name).replace("downsample", "down_sample_layer")
    return re.sub(r"(layer.*bn\d)\.", r"\1d.", name.replace("fc.", "end_point."))


def rename_to_mindcv(name: str) -> str:
    return re.sub(r"^fc\.", "classifier.", rename_norms(name).replace("downsample", "down_sample"))


def rename_to_zoo_se(name: str) -> str:
    name = rename_norms(name)
    if re.match(r"layer[234]\.0\.", name):
        name = name.replace("downsample.1", "downsample.2").replace("downsample.0", "downsample.1")
        name = name.replace("conv2.", "e2.0.").replace("bn2.", "e2.1.")
    name = name.replace("downsample", "down_sample_layer").replace(".se.se_", ".se_")
    return re.sub(r"^fc\.", "end_point.", name.replace("bn1_2.", "bn1."))


ONLINE = {"num_classes": 27, "arch": "mobilenetv2", "online": True, "dropout": 0.0}
X3D = {"num_classes": 5, "frames": 3, "crop": 40, "dropout": 0.0}
MVIT = {"frames": 4, "crop": 32, "depth": 3, "dim": 8, "stage_starts": (1,), "kv_stride": 4}
MVIT |= {"datasets": ("kinetics",), "num_classes": (5,), "single_head": True, "expander": False}
MVIT_S = ROOT / "mvit_multi" / "configs" / "mvit_multi_plain_s_k400_16x4.yaml"
MVIT_NAMES = ROOT / "mvit_multi" / "tests" / "golden" / "names" / "torchvision_mvit_v2_s.txt.gz"
SOURCES = {
    "tsm": [
        tsm("tsm_r50_k400", "tsm"),
        tsm("tsm_r50_k400", "tsm", shift_div=0),
        tsm("tsm_r50_k400", "tsm", temporal_pool=True),
        tsm("tsm_r50_k400", "tsm", True, num_classes=101, shift_place="block"),
        tsm("tsm_r50_k400_nl", "tsm", non_local=True),
        tsm("tsm_mobilenetv2_k400", "tsm", arch="mobilenetv2"),
        tsm("online_mobilenetv2_jester", "online", **ONLINE),
        tsm("mmaction2_tsm_r50", "mmaction2"),
        tsm("mmaction2_tsm_r50_nl", "mmaction2", non_local=True),
        tsm("torchvision_mobilenet_v2", "torchvision_mobilenet", True, arch="mobilenetv2"),
        tsm("torchvision_mobilenet_v2", "torchvision_mobilenet", True, **ONLINE),
        *[
            tsm(f"torchvision_resnet{n}", "torchvision", True, arch=f"resnet{n}", num_classes=9)
            for n in (18, 34, 50, 101, 152)
        ],
    ],
    "x3d": [
        Published("slowfast", X3D, rename=str),
        Published("pytorchvideo", X3D, rename=rename_to_pytorchvideo),
    ],
    "mvit_multi": [
        Published("multitrain", {**MVIT, "variant": "multitrain"}, rename=str),
        Published("slowfast", {**MVIT, "variant": "pyslowfast"}, rename=str),
        Published("torchvision", load_config(MViTConfig, MVIT_S).model_arguments(), MVIT_NAMES),
    ],
    "resnet50": [
        *[resnet("torchvision", str, f"resnet{depth}") for depth in (18, 34, 50, 101, 152)],
        resnet("nvidia", rename_to_nvidia),
        resnet("torchvision", rename_to_zoo, "resnet18"),
        resnet("torchvision", rename_to_mindcv),
        resnet("zoo_se", rename_to_zoo_se, "se_resnet50"),
    ],
}


def build_state(source: Published, net: nn.Cell) -> tuple[dict, dict]:
    """(state dict with published names, the arrays that ours must be); unknown from a manifest."""
    if source.manifest:
        shapes = read_manifest(source.manifest)
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, {}
    shapes = get_shapes(net)
    numbered = enumerate(shapes.items())
    arrays = {name: np.full(shape, i % 97, np.float32) for i, (name, shape) in numbered}
    published = {name: source.rename(theirs) for name, theirs in map_torch_names(net).items()}
    assert len({*published.values()}) == len(shapes)
    return {published[name]: array for name, array in arrays.items()}, arrays


@pytest.mark.parametrize(
    ("network", "source"),
    [(network, source) for network, sources in SOURCES.items() for source in sources],
    ids=lambda value: value if isinstance(value, str) else value.format,
)
@without_values
def test_every_array_of_a_published_format_is_used(network, source):
    network = find_network(network)
    net = network.build_model(**source.settings)
    shapes = get_shapes(net)
    state, expected = build_state(source, net)
    if source.format == "pytorchvideo":
        missing = [name for name in shapes if name.startswith(WITHOUT_NORM)]
        assert len([expected.pop(name) for name in missing]) == 4
        state = {n: v for n, v in state.items() if "blocks.1.res_blocks.0.branch1_norm" not in n}
    converted = convert(state, shapes=shapes, network=network, new_head=source.new_head)

    def is_of_head(name: str) -> bool:
        return source.new_head and ("fc." in name or "classifier." in name)

    assert converted.missing == [*filter(is_of_head, shapes)]
    assert {*converted.arrays, *converted.missing} == {*shapes}
    assert all(array.shape == shapes[name] for name, array in converted.arrays.items())
    counted = {name for name in state if name.endswith("num_batches_tracked")}
    assert {*converted.dropped} == counted | {*filter(is_of_head, state)}
    for name, array in expected.items():
        np.testing.assert_array_equal(converted.arrays[name], array, name)
    if source.format == "pytorchvideo":
        variance = converted.arrays[WITHOUT_NORM + "moving_variance"]
        gain = converted.arrays[WITHOUT_NORM + "gamma"] / np.sqrt(variance + 1e-5)
        np.testing.assert_allclose(gain, 1, rtol=1e-6)

    names = network.parameter_names()
    bare = [name.removeprefix("module.") for name in state]
    for prefix in ("", "module.", "model.", "module.model.", "backbone."):
        detected = detect_prefix_and_format([prefix + name for name in bare], names)
        assert detected == (prefix, source.format)
