"""OpenVINO and ONNX Runtime: the scores of MindSpore, the cache, the choice, and bad files."""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from tests.helpers import read_result, run_command
from tests.toys import TOYS, build_toy, export_toy, load_toy_config
from utils import networks, runtime
from utils.evaluate.scorer import CellScorer, video_scores
from utils.files import ROOT
from utils.inference import engines as onnx
from utils.inference import load, onnx_graph
from utils.inference.engines import (
    ENGINES,
    OPEN,
    FileScorer,
    choose_engine,
    list_engines,
    read_onnx,
)
from utils.networks import find_network, list_networks
from utils.settings import Run
from utils.tests.parity import mark_slow_except
from utils.weights import checkpoint, description
from utils.weights.checkpoint_file import read, read_checkpoint

TSM = find_network("tsm")


def make_clips(*shape: int) -> np.ndarray:
    return np.random.RandomState(1).randint(0, 256, shape).astype(np.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable:
    """A function that exports a toy network once, and returns its file."""

    @functools.cache
    def export(network: str, kind: str = "onnx", **options) -> Path:
        target = tmp_path_factory.mktemp(kind) / "net"
        return Path(export_toy(TOYS[network], target, kind, **options)["file"])

    return export


@pytest.mark.parametrize("network", mark_slow_except(list_networks(), "tsm", "x3d"))
def test_scores_and_features_of_every_engine_equal_those_of_mindspore(network, files):
    """Within 1e-5 of their spread, for one view and several, from a file for any batch."""
    name, arguments, clip = TOYS[network]
    net = build_toy(name, arguments, "O0")
    file = files(network, batch=0, outputs="scores,features")
    views = make_clips(2, 3, *clip)
    with runtime.eager_mode():
        expected = video_scores(CellScorer(net), views)
        expected_features = CellScorer(net).features(views[0])
    classes = expected.shape[-1]
    for which in ENGINES:
        open_file = functools.partial(OPEN[which], file, "f32")
        scorer = FileScorer(file, read_onnx(file).shape, classes, open_file, which)
        assert np.abs(video_scores(scorer, views) - expected).max() <= 1e-5 * np.ptp(expected)
        features = scorer.features(views[0])
        assert (features.shape, features.dtype) == (expected_features.shape, np.float32)
        assert np.abs(features - expected_features).max() <= 1e-5 * np.ptp(expected_features)


def test_an_onnx_file_of_normalised_pixels_gives_the_same_scores(files):
    """The file is for two clips at once, and the last pass is padded."""
    views = make_clips(1, 5, 4, 3, 32, 32)
    with runtime.eager_mode():
        expected = video_scores(CellScorer(build_toy(*TOYS["tsm"][:2], "O0")), views)
    for name in ENGINES:
        cfg = load_toy_config(f"run.engine={name}")
        net = load.open_scorer(TSM, cfg, files("tsm", input="float32"))
        result = video_scores(net, views)
        assert (net.engine, net.batch) == (name, 2)
        assert np.abs(result - expected).max() <= 1e-5 * np.ptp(expected)


def test_the_engine_is_the_first_that_is_installed(monkeypatch):
    """OpenVINO is preferred on x86-64 only."""
    run = Run(device="CPU")
    assert choose_engine(run) == "openvino"
    assert choose_engine(Run(device="Ascend")) == choose_engine(Run(device="GPU")) == "mindspore"
    for name in ("mindspore", *ENGINES):
        assert choose_engine(replace(run, engine=name)) == name
    with pytest.raises(ValueError, match="run.engine: openvino .* --run.device=CPU"):
        choose_engine(Run(device="Ascend", engine="openvino"))
    for machine, engines in (("x86_64", [*ENGINES]), ("aarch64", ["onnxruntime"])):
        monkeypatch.setattr(onnx.platform, "machine", lambda name=machine: name)
        assert list_engines() == engines
    monkeypatch.setattr(onnx, "find_spec", lambda name: name == "onnxruntime" or None)
    assert choose_engine(run) == "onnxruntime"
    with pytest.raises(ValueError, match="pip install openvino"):
        choose_engine(replace(run, engine="openvino"))
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    assert choose_engine(run) == "mindspore"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of exported checkpoints; empty."""
    monkeypatch.setattr(load, "get_cache_folder", lambda: tmp_path)
    return tmp_path / "onnx"


@pytest.fixture
def open_tiny(tiny_ckpt, cache) -> Callable:
    """A function that opens the tiny checkpoint, or another one, with these settings."""

    def build(*settings: str, path: Path = tiny_ckpt) -> load.CachedScorer:
        toy = ["model.num_classes=8", "model.first_width=8", "data.segments=2"]
        cfg = load_toy_config(*toy, "data.swap_labels=[[0,1]]", *settings)
        return load.CachedScorer(TSM, cfg, read_checkpoint(path), choose_engine(cfg.run))

    return build


def refuse(*_) -> None:
    raise ValueError("--format onnx: the operator Roll has no translation to ONNX")


def test_a_checkpoint_is_exported_once_for_every_batch(open_tiny, cache, log_messages, monkeypatch):
    """And again if the file is damaged. A cache that cannot be written is used all the same."""
    clips = make_clips(2, 2, 3, 32, 32)
    first = open_tiny()
    with runtime.eager_mode():
        expected, features = (x.asnumpy() for x in first.load("O0")(Tensor(clips), True))
    scores = first(clips)
    assert first.file.arrays == {}, "the engine has the weights"
    assert np.abs(scores - expected).max() <= 1e-5 * np.ptp(expected)
    assert np.abs(first.features(clips) - features).max() <= 1e-5 * np.ptp(features)
    for batch in (clips[:1], make_clips(5, 2, 3, 32, 32)):
        assert len(first(batch)) == len(batch)
    np.testing.assert_allclose(first(clips[:1]), scores[:1], atol=1e-5)
    lines = [line for line in log_messages if line.startswith("exporting")]
    assert lines == ["exporting the network for OpenVINO, once ..."]
    (file,) = cache.glob("*.onnx")
    assert file.name.endswith("-2x3x32x32-openvino.onnx")
    assert [path.name for path in cache.iterdir() if path != file] == [".lock"]
    with monkeypatch.context() as patch:
        (cache / ".lock").unlink()
        (cache / ".lock").mkdir()  # as root may write everywhere
        patch.setattr(load.os, "utime", refuse_to_write)
        patch.setattr(load.CachedScorer, "export", refuse)
        patch.setattr(load, "load_network", refuse)
        np.testing.assert_array_equal(open_tiny()(clips), scores)
        (cache / ".lock").rmdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    np.testing.assert_array_equal(open_tiny()(clips), scores)
    assert load.is_sound(file)


def refuse_to_write(*_) -> None:
    raise OSError(30, "Read-only file system")


def test_a_checkpoint_that_changes_after_it_was_read_gives_the_scores_of_before(
    open_tiny, tiny_ckpt, cache, tmp_path
):
    """Its new weights would be stored under the name of the earlier ones."""
    clips = make_clips(1, 2, 3, 32, 32)
    other = Path(shutil.copy(tiny_ckpt, tmp_path / "replaced.ckpt"))
    net = open_tiny(path=other)
    expected = net.load("O0")(Tensor(clips)).asnumpy()
    net.load.cache_clear()
    other.write_bytes(save_other_weights(other, tmp_path / "other.ckpt").read_bytes())
    assert np.abs(net(clips) - expected).max() <= 1e-5 * np.ptp(expected)


def save_other_weights(source: Path, target: Path) -> Path:
    """A checkpoint with the names of `source` and other numbers."""
    weights = read(source)
    checkpoint.save(target, {n: Parameter(Tensor(v * 1.5), name=n) for n, v in weights.items()})
    return target


DYING = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.mark.slow
def test_an_engine_that_dies_at_the_export_does_not_end_the_run(
    open_tiny, cache, log_messages, monkeypatch, tmp_path
):
    """MindSpore computes the network, unless run.engine names the engine."""
    (tmp_path / "openvino.py").write_text(DYING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    clips = make_clips(1, 2, 3, 32, 32)
    net = open_tiny()
    expected = net.load("O0")(Tensor(clips)).asnumpy()
    np.testing.assert_array_equal(net(clips), expected)
    assert any("its process was killed by SIGSEGV" in line for line in log_messages)
    assert not list(cache.glob("*.onnx"))
    words = "run.engine: OpenVINO cannot run .* was killed by SIGSEGV"
    with pytest.raises(ValueError, match=words):
        open_tiny("run.engine=openvino")(clips)


def test_openvino_does_not_see_the_cap_of_the_instruction_set(monkeypatch):
    for name in runtime.CAPS:
        monkeypatch.setenv(name, "AVX2")
    with runtime.uncapped_instruction_set():
        assert not {*runtime.CAPS} & {*os.environ}
    assert [os.environ[name] for name in runtime.CAPS] == ["AVX2", "AVX2"]


def test_the_key_depends_on_weights_settings_and_the_code(monkeypatch):
    def compute(*settings: str, weights: str = "weights") -> str:
        return networks.compute_key("tsm", load_toy_config(*settings), weights)

    keys = {compute(), compute("model.arch=resnet50"), compute(weights="other weights")}
    assert compute() in keys
    monkeypatch.setattr(networks, "CODE", ("utils/nn/**/*.py",))
    assert len({*keys, compute()}) == 4


def test_mindspore_computes_a_network_that_cannot_be_exported(open_tiny, monkeypatch, log_messages):
    clips = make_clips(1, 2, 3, 32, 32)
    net = open_tiny()
    expected = net.load("O0")(Tensor(clips)).asnumpy()
    monkeypatch.setattr(load.CachedScorer, "export", refuse)
    np.testing.assert_array_equal(net(clips), expected)
    assert "MindSpore computes the network: --format onnx: the operator Roll" in log_messages[-2]
    with pytest.raises(ValueError, match="run.engine: .*Roll"):
        open_tiny("run.engine=openvino")(clips)


def test_only_the_last_used_files_stay_in_the_cache(tmp_path):
    names = [f"{k:032x}-8x3x64x64-openvino.onnx" for k in range(5)]
    for day, name in enumerate(["own.onnx", *names], start=1):
        subprocess.run(["touch", "-d", f"2020-01-0{day}", tmp_path / name], check=True)
    load.delete_old_files(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names[3:], "own.onnx"]


def test_scores_that_are_not_finite_end_an_evaluation_and_a_prediction(
    tiny_args, tiny_ckpt, videos, run_here, tmp_path
):
    """In one line, by MindSpore and by an engine; nothing is written but locks of the folder."""
    weights = read(tiny_ckpt)
    weights["base_model.fc.weight"] = np.full_like(weights["base_model.fc.weight"], 3e38)
    file = tmp_path / "large.ckpt"
    checkpoint.save(file, {n: Parameter(Tensor(v), name=n) for n, v in weights.items()})
    command = [*tiny_args, "--checkpoint_path", file]
    engine = ["--run.engine=openvino", f"--out={tmp_path / 'predictions'}"]
    for done in (
        run_here("tsm/eval.py", *command),
        run_here("scripts/predict.py", *command, *engine, videos[0]),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert "NaN or infinite" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"large.ckpt", ".lock", "started"}


# Runs a script, and writes the packages that it has imported into a file.
LIST_IMPORTS = """
import runpy, sys
target, *sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    open(target, "w").write(" ".join(name for name in sys.modules if sys.modules[name]))
"""


def test_a_prediction_by_a_cached_engine_does_not_import_mindspore(
    tiny_args, tiny_ckpt, videos, run_here, tmp_path
):
    """Nor the package by which OpenVINO reports its use over the network."""
    words = [*tiny_args, "--run.engine=openvino", "--checkpoint_path", tiny_ckpt, videos[0]]
    script = ROOT / "scripts" / "predict.py"
    command = [sys.executable, "-c", LIST_IMPORTS, tmp_path / "imports", script, *words]
    expected = read_result(run_here("scripts/predict.py", *words))["predictions"]
    assert read_result(run_command(command))["predictions"] == expected
    imported = (tmp_path / "imports").read_text().split()
    assert "openvino" in imported
    assert not {"mindspore", "openvino_telemetry"} & set(imported)


@pytest.mark.parametrize("kind", ["mindir", "onnx"])
@pytest.mark.parametrize(
    ("network", "override", "words"),
    [
        ("tsm", "model.num_classes=7", "5 classes"),
        ("resnet50", "eval.batch=2", "holds a network of resnet50"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(kind, network, override, words, files):
    with pytest.raises(ValueError, match=words):
        load.open_scorer(TSM, load_toy_config(override), files(network, kind))


@pytest.mark.parametrize("kind", ["mindir", "onnx"])
def test_a_damaged_file_is_refused(kind, files, tmp_path):
    """So is one with a single flipped bit, wherever it is."""
    file = tmp_path / f"net.{kind}"
    content = files("tsm", kind).read_bytes()
    contents = [None, b"", b"nonsense"]
    end = len(content)
    for position in (*range(0, end, end // 20), *range(end - description.CHECKSUM_SIZE, end)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        contents.append(damaged)
    for damaged in contents:
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"net.{kind}"):
            load.open_scorer(TSM, load_toy_config(), file)


def build_model(*nodes, arrays=()):
    """An ONNX model of a dynamic batch of pixels."""
    from onnx import TensorProto, helper

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4])
        for name in ("input", "scores")
    ]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx_graph.OPSET)])


def make_node(kind: str, inputs: str, output: str = "scores", **attributes):
    from onnx import helper

    return helper.make_node(kind, inputs.split(), [output], **attributes)


def make_array(name: str, values, outside: bool = False):
    from onnx import numpy_helper
    from onnx.external_data_helper import set_external_data

    array = numpy_helper.from_array(np.asarray(values), name)
    if outside:
        set_external_data(array, "secret.bin")
        array.ClearField("raw_data")
    return array


def build_bad_models() -> dict:
    """{words of the error: models}"""
    from onnx import TensorProto, helper

    ones = np.ones(4, np.float32)
    outside = make_array("a", ones, outside=True)
    relu = make_node("Relu", "input")
    add = make_node("Add", "input a")
    hidden = helper.make_graph([], "inner", [], [], [outside])
    odd = [
        helper.make_tensor("a", getattr(TensorProto, kind), [2], [1.0, value])
        for value in (np.nan, np.inf, -np.inf)
        for kind in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
    ]
    odd += [make_array("a", ones * np.nan)]
    return {
        "weights are in other files": [
            build_model(add, arrays=[outside]),
            build_model(make_node("Constant", "", "hidden", value=outside), relu),
            build_model(make_node("Loop", "turns flag", body=hidden)),
        ],
        "its odd has NaN": [build_model(make_node("ReduceMean", "input", odd=np.nan))],
        "its a has NaN": [build_model(add, arrays=[array]) for array in odd],
        "No Op registered for Rely": [build_model(make_node("Rely", "input"))],
    }


def test_a_bad_onnx_file_is_refused(tmp_path):
    file = tmp_path / "net.onnx"
    for words, models in build_bad_models().items():
        for model in models:
            file.write_bytes(model.SerializeToString())
            with pytest.raises(ValueError, match=words):
                read_onnx(file)
    file.write_bytes(build_model(make_node("Relu", "input")).SerializeToString())
    assert read_onnx(file).shape == (0, 4)
