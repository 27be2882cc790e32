"""Exported networks of every room at toy size, run again: MINDIR, and ONNX where it is installed.

The weights are those of the golden cases: functions of names, far from zero.
"""

import importlib
import json
from functools import partial

import pytest
from mindspore import nn

from mvit_multi.model import SideBySide
from utils import export, inference, mindir
from utils.testing import case_state, put_state

TSM = {"num_classes": 5, "segments": 4, "arch": "resnet18", "first_width": 8}
PIXELS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.3)}
X3D = {"num_classes": 5, "frames": 4, "crop": 32, "depth_factor": 0.4}
MVIT = {"datasets": ("a", "b"), "num_classes": (5, 4), "frames": 4, "crop": 32, "depth": 3}
MVIT.update(dim=16, grow=(1,), kv_stride=2)
ONE = {"datasets": ("a",), "num_classes": (5,), "single": True, "expander": False}
TAPS, FRAMES = ({"form": form, "stem_form": form} for form in ("taps", "frames"))
GROUPED = {"x3d": {"form": "grouped", "stem_form": "grouped"}, "mvit_multi": {"form": "grouped"}}

# room, arguments, clip
TOYS = {
    "tsm": ("tsm", TSM, (4, 3, 32, 32)),
    "x3d": ("x3d", {**X3D, **TAPS}, (3, 4, 32, 32)),
    "resnet50": ("resnet50", {**PIXELS, **TSM, "segments": None}, (3, 64, 64)),
    "mvit_multi": ("mvit_multi", {**MVIT, "form": "taps"}, (3, 4, 32, 32)),
}
MORE = {
    "tsm_bottleneck": ("tsm", {**TSM, "arch": "resnet50", "dropout": 0}, (4, 3, 32, 32)),
    "tsm_block": ("tsm", {**TSM, "shift_place": "block", "before_softmax": False}, (4, 3, 32, 32)),
    "tsm_online": ("tsm", {**TSM, "online": True, "consensus": "identity"}, (4, 3, 32, 32)),
    "tsm_pool": ("tsm", {**TSM, "temporal_pool": True}, (4, 3, 32, 32)),
    "tsm_flow": ("tsm", {**TSM, "modality": "flow", "frames_per_segment": 5}, (4, 10, 32, 32)),
    "tsm_mobilenetv2": (
        "tsm",
        {"num_classes": 5, "segments": 4, "arch": "mobilenetv2"},
        (4, 3, 64, 64),
    ),
    "tsm_non_local": (
        "tsm",
        {"num_classes": 5, "segments": 4, "non_local": True},
        (4, 3, 64, 64),
    ),
    "resnet50_se": (
        "resnet50",
        {**PIXELS, "num_classes": 5, "arch": "se_resnet50"},
        (3, 64, 64),
    ),
    "x3d_frames": ("x3d", {**X3D, **FRAMES}, (3, 4, 32, 32)),
    "x3d_windows": ("x3d", {**X3D, **FRAMES}, (3, 4, 64, 64)),
    "mvit_frames": ("mvit_multi", {**MVIT, "form": "frames"}, (3, 4, 32, 32)),
    "mvit_relative": ("mvit_multi", {**MVIT, "form": "taps", "relative": True}, (3, 4, 32, 32)),
    "mvit_plain": ("mvit_multi", {**MVIT, **ONE, "form": "taps", "plain": True}, (3, 4, 32, 32)),
}


def network(room: str, arguments: dict, level: str, **changes: str) -> nn.Cell:
    arguments = {name: value for name, value in arguments.items() if value is not None}
    net = importlib.import_module(f"{room}.model").build_network(**{**arguments, **changes})
    put_state(net, case_state({}, net), importlib.import_module(f"{room}.convert"))
    net = inference.ready(net, level)
    return SideBySide(net) if room == "mvit_multi" else net


def exported(toy: tuple, target, kind: str, **options: str) -> dict:
    room, arguments, clip = toy
    want = export.wanted(2, kind, str(target), **options)
    load, info = partial(network, room, arguments), {"network": room}
    return export.export(load, clip, "scores", want, info, **GROUPED.get(room, {}))


def kinds(path) -> set:
    """The operators in a MINDIR or ONNX file."""
    if path.suffix == ".mindir":
        return {node.kind for node in mindir.read(path).nodes}
    return {node.op_type for node in importlib.import_module("onnx").load(path).graph.node}


def check(toy: tuple, folder, kind: str, **options: str) -> dict:
    told = exported(toy, folder / "net", kind, **options)
    file = folder / f"net.{kind}"
    assert list(folder.iterdir()) == [file]
    assert told["bytes"] == file.stat().st_size
    assert told["input"]["dtype"] == options.get("input", "uint8")
    batch = None if options.get("batch") == "free" else int(options.get("batch", 2))
    assert told["input"]["shape"] == [batch, *toy[2]]
    assert told["outputs"][0]["shape"][0] == batch
    assert told["outputs"][0]["dtype"] == "float32"
    assert not [name for name in kinds(file) if "BatchNorm" in name]
    return told


@pytest.mark.parametrize("name", TOYS)
def test_a_mindir_of_any_batch_gives_the_scores_of_the_network(name, tmp_path):
    assert check(TOYS[name], tmp_path, "mindir", batch="free")["relative_difference"] < 1e-6


def test_a_mindir_of_one_batch_for_normalised_clips(tmp_path):
    check(TOYS["tsm"], tmp_path, "mindir", batch="3", input="float32")


@pytest.mark.parametrize("name", TOYS)
def test_an_onnx_file_of_any_batch_gives_the_scores_of_the_network(name, tmp_path):
    needs_onnx()
    told = check(TOYS[name], tmp_path, "onnx", batch="free")
    assert told["opset"] == 18
    assert told["relative_difference"] < 1e-5


def test_an_onnx_file_of_one_batch_for_normalised_clips(tmp_path):
    needs_onnx()
    check(TOYS["tsm"], tmp_path, "onnx", input="float32")
    assert {"Shape", "Cast", "Expand"}.isdisjoint(kinds(tmp_path / "net.onnx"))


@pytest.mark.parametrize("kind", ["mindir", "onnx"])
def test_half_precision_halves_the_file(kind, tmp_path):
    if kind == "onnx":
        needs_onnx()
    toy = ("resnet50", {**TOYS["resnet50"][1], "first_width": 16}, (3, 64, 64))
    (tmp_path / "half").mkdir()
    half = check(toy, tmp_path / "half", kind, precision="fp16")
    assert half["bytes"] < 0.55 * exported(toy, tmp_path / "whole", kind)["bytes"]
    assert half["relative_difference"] > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mindir", "onnx"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", [*TOYS, *MORE])
def test_every_variant_can_be_exported(name, precision, kind, tmp_path):
    if kind == "onnx":
        needs_onnx()
    told = check({**TOYS, **MORE}[name], tmp_path, kind, batch="free", precision=precision)
    print(json.dumps({"name": name, **told}))


def needs_onnx() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
