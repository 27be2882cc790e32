"""Toy networks of every kind with the weights of golden cases, and their exports."""

from functools import partial
from pathlib import Path

import pytest
from mindspore import nn

from mvit_multi.export_cells import ConcatHeads
from tests.golden_cases import build_state_dict, load_weights
from tests.helpers import load_smoke_config
from utils.inference import export
from utils.inference.checkpoint import prepare_for_inference
from utils.networks import find_network

TSM = {"num_classes": 5, "segments": 4, "arch": "resnet18", "first_width": 8}
FULL_WIDTH = {"num_classes": 5, "segments": 4}
PIXELS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.3)}
X3D = {"num_classes": 5, "frames": 4, "crop": 32, "depth_factor": 0.4}
MVIT = {"datasets": ("a", "b"), "num_classes": (5, 4), "frames": 4, "crop": 32, "depth": 2}
MVIT.update(dim=16, stage_starts=(1,), kv_stride=2)
MVIT_TAPS = {**MVIT, "depthwise_impl": "taps"}
ONE = {"datasets": ("a",), "num_classes": (5,), "single_head": True, "expander": False}
TAPS, FRAMES = ({"depthwise_impl": impl, "stem_impl": impl} for impl in ("taps", "frames"))
# network, arguments, clip
SLOW = pytest.mark.slow
TOYS = {
    "tsm": ("tsm", TSM, (4, 3, 32, 32)),
    "x3d": ("x3d", {**X3D, **FRAMES}, (3, 4, 32, 32)),
    "resnet50": ("resnet50", {**PIXELS, **TSM, "segments": None}, (3, 64, 64)),
    "mvit_multi": ("mvit_multi", {**MVIT, "depthwise_impl": "frames"}, (3, 4, 32, 32)),
}


def build_toy(network: str, arguments: dict, level: str, rewrite=None) -> nn.Cell:
    arguments = {name: value for name, value in arguments.items() if value is not None}
    net = find_network(network).build_model(**arguments)
    state = build_state_dict({}, net)
    # Without this scale, the attention of a non-local block enlarges rounding errors.
    state.update({name: value / 8 for name, value in state.items() if ".nl.theta." in name})
    load_weights(net, state, find_network(network))
    net = prepare_for_inference(net, level, rewrite)
    return ConcatHeads(net) if network == "mvit_multi" else net


def export_toy(toy: tuple, target, kind: str, **options) -> dict:
    if kind == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    network, arguments, clip = toy
    export_options = export.check_options(2, format=kind, target=Path(target), **options)
    described = find_network(network).describe_export(load_smoke_config(network))
    spec = export.ExportSpec(clip, "scores", cells=described.cells)
    build = partial(build_toy, network, arguments)
    return export.export(build, spec=spec, options=export_options, network=network)


def load_toy_config(*overrides: str):
    toy = ["run.device=CPU", "data.segments=4", "data.crop=32", "data.resize=40"]
    toy += ["data.swap_labels=[]", "model.num_classes=5", "eval.batch=2", *overrides]
    return load_smoke_config("tsm", *toy)
