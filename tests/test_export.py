"""Export of toy networks to MINDIR, and to ONNX if it is installed; each file is run again.

The weights are those of the golden cases: functions of the parameter names, far from zero.
"""

import importlib
import importlib.util
import json
import os
import re
import stat
import zlib
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train.mind_ir_pb2 import ModelProto

from tests.helpers import load_smoke_config
from tests.operator_lists import list_problems
from tests.toys import (
    FRAMES,
    FULL_WIDTH,
    MVIT_TAPS,
    ONE,
    PIXELS,
    SLOW,
    TAPS,
    TOYS,
    TSM,
    X3D,
    build_toy,
    export_toy,
    load_toy_config,
)
from utils.evaluate.scorer import CellScorer
from utils.inference import export, mindir
from utils.inference.load import open_scorer
from utils.networks import find_network
from utils.nn.conv3d import DepthwiseConv3d, FrameConv, PointwiseConv3d
from utils.runtime import eager_mode
from utils.weights.checkpoint_file import read
from utils.weights.description import CHECKSUM_SIZE as SIZE
from utils.weights.description import read_exported_texts

MORE = {
    "tsm_bottleneck": ("tsm", {**TSM, "arch": "resnet50", "dropout": 0}, (4, 3, 32, 32)),
    "tsm_block": ("tsm", {**TSM, "shift_place": "block", "before_softmax": False}, (4, 3, 32, 32)),
    "tsm_online": ("tsm", {**TSM, "online": True, "consensus": "identity"}, (4, 3, 32, 32)),
    "tsm_pool": ("tsm", {**TSM, "temporal_pool": True}, (4, 3, 32, 32)),
    "tsm_flow": ("tsm", {**TSM, "modality": "flow", "frames_per_segment": 5}, (4, 10, 32, 32)),
    "tsm_rgb_diff": ("tsm", {**TSM, "modality": "rgb_diff"}, (4, 6, 32, 32)),
    "tsm_mobilenetv2": ("tsm", {**FULL_WIDTH, "arch": "mobilenetv2"}, (4, 3, 64, 64)),
    "tsm_non_local": ("tsm", {**FULL_WIDTH, "non_local": True}, (4, 3, 64, 64)),
    "resnet50_se": ("resnet50", {**PIXELS, "num_classes": 5, "arch": "se_resnet50"}, (3, 64, 64)),
    "x3d_taps": ("x3d", {**X3D, **TAPS}, (3, 4, 32, 32)),
    "x3d_windows": ("x3d", {**X3D, **FRAMES}, (3, 4, 64, 64)),
    "mvit_taps": ("mvit_multi", MVIT_TAPS, (3, 4, 32, 32)),
    "mvit_relative": ("mvit_multi", {**MVIT_TAPS, "relative": True}, (3, 4, 32, 32)),
    "mvit_plain": ("mvit_multi", {**MVIT_TAPS, **ONE, "variant": "pyslowfast"}, (3, 4, 32, 32)),
}


def list_operators(path) -> set:
    """The operators in a MINDIR or ONNX file."""
    if path.suffix == ".mindir":
        return {node.kind for node in mindir.read_graph(path).nodes}
    return {node.op_type for node in importlib.import_module("onnx").load(path).graph.node}


def assert_export(toy: tuple, folder, kind: str, **options) -> dict:
    before = os.umask(0o027)
    try:
        result = export_toy(toy, folder / "net", kind, **options)
    finally:
        os.umask(before)
    file = folder / f"net.{kind}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(folder.iterdir()) == [file]
    assert result["bytes"] == file.stat().st_size
    assert result["input"]["dtype"] == options.get("input", "uint8")
    batch = options.get("batch", 2) or None
    assert result["input"]["shape"] == [batch, *toy[2]]
    scores, *features = result["outputs"]
    assert (scores["name"], scores["dtype"]) == ("scores", "float32")
    names = ["features"] if "outputs" in options else []
    assert [output["name"] for output in features] == names
    assert scores["shape"][0] == batch
    assert scores["shape"][-1] in (5, 9)
    assert not [name for name in list_operators(file) if "BatchNorm" in name]
    if kind == "onnx":
        assert list_problems(file) == []
    return result


@pytest.mark.parametrize("name", ["tsm", "resnet50", "mvit_multi", pytest.param("x3d", marks=SLOW)])
def test_a_mindir_of_free_batch_size_gives_the_scores_of_the_network(name, tmp_path):
    result = assert_export(TOYS[name], folder=tmp_path, kind="mindir", batch=0)
    assert result["relative_difference"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("network", ["x3d", "mvit_multi"])
def test_export_on_a_cpu_writes_the_mindir_for_ascend(network, tmp_path):
    """The network is that of device Ascend, and the file has no grouped 3-D convolution.

    `taps` has one kernel for each channel and frame. `frames`, the form for a CPU, has one kernel
    for all frames of a channel.
    """
    toy = ["data.frames=4", "data.crop=32"]
    mvit = ["model.depth=2", "model.stage_starts=[1]"]
    toy += ["data.scales=[32,36]"] if network == "x3d" else mvit
    ascend = load_smoke_config(network, *toy, "run.device=Ascend").model_arguments()
    toy += ["run.device=CPU", "model.depthwise_impl=taps"]
    arguments = load_smoke_config(network, *toy).model_arguments()
    assert arguments == ascend
    result = export_toy((network, arguments, (3, 4, 32, 32)), tmp_path / "net", "mindir")
    assert result["relative_difference"] < 1e-6
    nodes = mindir.read_graph(tmp_path / "net.mindir").nodes
    groups = [(node.kind, node.settings["group"]) for node in nodes if "Conv" in node.kind]
    assert not [group for kind, group in groups if kind == "Conv3D" and group != 1]
    depthwise = [node.settings for node in nodes if node.settings.get("group", 1) > 1]
    assert depthwise
    assert all(node["group"] == node["out_channel"] for node in depthwise)


SLOW_ONNX = [pytest.param(n, marks=SLOW) for n in ("x3d", "resnet50", "mvit_multi")]


@pytest.mark.parametrize("name", ["tsm", *SLOW_ONNX, pytest.param("tsm_bottleneck", marks=SLOW)])
def test_an_onnx_file_of_free_batch_size_gives_the_scores_of_the_network(name, tmp_path):
    result = assert_export({**TOYS, **MORE}[name], folder=tmp_path, kind="onnx", batch=0)
    assert result["opset"] == 18
    if name != "mvit_multi":  # max pools are 2-D, and biases are in their convolutions
        assert {"Unsqueeze", "Squeeze"}.isdisjoint(list_operators(tmp_path / "net.onnx"))
    assert_onnx_checksum(tmp_path / "net.onnx")
    assert result["relative_difference"] < 1e-5


@pytest.mark.parametrize("kind", ["mindir", pytest.param("onnx", marks=SLOW)])
def test_half_precision_halves_the_file(kind, tmp_path):
    toy = ("resnet50", {**TOYS["resnet50"][1], "first_width": 16}, (3, 64, 64))
    (tmp_path / "half").mkdir()
    half = assert_export(toy, folder=tmp_path / "half", kind=kind, precision="fp16", batch=3)
    assert half["bytes"] < 0.55 * export_toy(toy, tmp_path / "whole", kind)["bytes"]
    assert half["relative_difference"] > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "kind"), [("fp32", "mindir"), ("fp16", "onnx")])
@pytest.mark.parametrize("name", [*TOYS, *MORE])
def test_every_variant_can_be_exported(name, precision, kind, tmp_path):
    """The cast to float16 is in the network, whatever the file is."""
    options = {"batch": 0, "precision": precision, "outputs": "scores,features"}
    result = assert_export({**TOYS, **MORE}[name], folder=tmp_path, kind=kind, **options)
    print(json.dumps({"name": name, **result}))


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    """A MINDIR of the toy TSM for batches of two normalised clips.

    MindSpore's own export cannot write to such a path.
    """
    folder = tmp_path_factory.mktemp("normalised") / "größer als"
    folder.mkdir()
    return Path(assert_export(TOYS["tsm"], folder=folder, kind="mindir", input="float32")["file"])


@pytest.fixture(scope="module")
def cell():
    return build_toy("tsm", TSM, "O0")


@pytest.fixture
def scorer(normalised):
    return open_scorer(find_network("tsm"), load_toy_config(), normalised)


def test_a_mindir_takes_pixels_like_its_network(scorer, cell):
    clips = np.random.RandomState(1).randint(0, 256, (2, 4, 3, 32, 32)).astype(np.uint8)
    with eager_mode():
        expected = CellScorer(cell)(clips)
    np.testing.assert_allclose(scorer(clips), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"\[2, 4, 3, 32, 32\], .* \[3, 4, 3, 32, 32\]"):
        scorer(np.zeros((3, 4, 3, 32, 32), np.uint8))


def test_a_mindir_with_a_number_that_is_nan_is_refused(normalised, tmp_path):
    model = ModelProto.FromString(normalised.read_bytes()[:-SIZE])
    weight = next(p for p in model.graph.parameter if len(p.dims) == 4)
    weight.raw_data = np.float32(np.nan).tobytes() + weight.raw_data[4:]
    file = tmp_path / "nan.mindir"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=re.escape(weight.name)):
        open_scorer(find_network("tsm"), load_toy_config(), file)


def test_a_mindir_without_a_checksum_is_read_with_a_warning(
    normalised, scorer, tmp_path, log_messages
):
    (tmp_path / "old.mindir").write_bytes(normalised.read_bytes()[:-SIZE])
    clips = np.ones((2, 4, 3, 32, 32), np.uint8)
    old = open_scorer(find_network("tsm"), load_toy_config(), tmp_path / "old.mindir")
    np.testing.assert_array_equal(scorer(clips), old(clips))
    (line,) = log_messages
    assert "old.mindir" in line


def run_export(build, clip: tuple, **options) -> dict:
    """Exports the Cell of `build(level, rewrite)`."""
    checked = export.check_options(2, **options)
    return export.export(build, export.ExportSpec(clip, "scores"), checked, "")


def test_an_exported_file_with_other_scores_is_not_written(tmp_path):
    """The network of the second call has other weights."""

    def build(level: str, rewrite=None) -> nn.Cell:
        net = build_toy(*TOYS["resnet50"][:2], level, rewrite)
        if level == "O2":
            bias = list(net.get_parameters())[-1]
            bias.set_data(bias + Tensor([9, 0, 0, 0, 0], ms.float32))
        return net

    options = {"format": "mindir", "target": tmp_path / "net", "precision": "fp16"}
    with pytest.raises(RuntimeError, match="is not written"):
        run_export(build, TOYS["resnet50"][2], **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("position", [0, 1])
def test_an_exported_file_whose_scores_are_not_finite_is_not_written(
    position, tmp_path, monkeypatch
):
    """Neither those of the first batch nor those of the second are."""
    scores = np.zeros((3, 3), np.float32)
    scores[2 * position, 0] = np.nan
    monkeypatch.setattr(export, "run_mindir", lambda *_: [scores])
    options = {"format": "mindir", "target": tmp_path / "net", "batch": 0, "input": "float32"}
    net = nn.Dense(3, 3, weight_init="zeros", bias_init="zeros")
    with pytest.raises(RuntimeError, match="is not written: it would differ .* by nan"):
        run_export(lambda level: net, (3,), **options)
    net.bias.set_data(Tensor([0, np.inf, 0], ms.float32))
    with pytest.raises(ValueError, match="scores of random pixels are NaN"):
        run_export(lambda level: net, (3,), **options)
    assert not list(tmp_path.iterdir())


def test_convolutions_of_clips_are_3d_in_an_onnx_file(tmp_path):
    """So engines do not copy the data: only weights are reshaped. Parameters keep their names."""
    onnx = pytest.importorskip("onnx")
    net = nn.SequentialCell(
        FrameConv(3, cout=4, kernel=3, stride=2),
        PointwiseConv3d(4, 6, bias=True),
        nn.ReLU(),
        PointwiseConv3d(6, 4, stride=2),
        DepthwiseConv3d(4, kernel=(3, 3, 3), stride=1, impl="frames"),
    )
    names = [parameter.name for parameter in net.get_parameters()]

    def build(level: str, rewrite=None) -> nn.Cell:
        if rewrite is not None:
            rewrite(net)
        return net

    options = {"format": "onnx", "target": tmp_path / "net", "input": "float32", "batch": 0}
    run_export(build, (3, 4, 10, 10), **options)  # the stride of 2 is for maps of 5 x 5
    assert [parameter.name for parameter in net.get_parameters()] == names
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert {node.op_type for node in graph.node} <= {"Conv", "Relu", "Reshape", "Identity"}
    assert list_problems(tmp_path / "net.onnx") == []
    weights = {array.name for array in graph.initializer}
    assert all(node.input[0] in weights for node in graph.node if node.op_type == "Reshape")


def assert_onnx_checksum(file: Path) -> None:
    """The checksum is a metadata entry of ONNX; commands refuse a damaged file."""
    entry = importlib.import_module("onnx").load(file).metadata_props[-1]
    content = file.read_bytes()
    assert (entry.key, entry.value) == ("crc32", f"{zlib.crc32(content[:-SIZE]):08x}")
    with pytest.raises(ValueError, match="net.onnx"):
        read(file)
    file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(ValueError, match="net.onnx: its checksum differs"):
        read_exported_texts(file)
