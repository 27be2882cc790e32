"""OpenVINO and ONNX Runtime: the scores of MindSpore, the cache, the choice, and bad files."""

import functools
import os
import shutil
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import read_result
from tests.test_export import MVIT, TOYS, build_toy, export_toy, load_toy_config
from utils import runtime
from utils.config import ROOT, Run
from utils.evaluate.scores import video_scores
from utils.export import engine, engine_cache, inference
from utils.export.engine import ENGINES, OnnxNetwork, choose_engine, load_onnx
from utils.export.engine_cache import CachedNetwork
from utils.networks import find_network

TSM = find_network("tsm")


def make_clips(*shape: int) -> np.ndarray:
    return np.random.RandomState(1).randint(0, 256, shape).astype(np.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable:
    """A function that exports a toy network once, and returns its file."""

    @functools.cache
    def export(network: str, **options) -> Path:
        target = tmp_path_factory.mktemp("onnx") / "net"
        return Path(export_toy(TOYS[network], target, "onnx", **options)["file"])

    return export


SLOW = pytest.param("resnet50", marks=pytest.mark.slow)


@pytest.mark.parametrize("network", ["tsm", "x3d", "mvit_multi", SLOW])
def test_scores_of_every_engine_equal_those_of_mindspore(network, files):
    """Within 1e-5 of their spread, for one view and several, from a file for any batch."""
    name, arguments, clip = TOYS[network]
    net, file = build_toy(name, arguments, "O0"), files(network, batch=0)
    views = make_clips(2, 3, *clip)
    expected = video_scores(net, views)
    classes = expected.shape[-1]
    for which in ENGINES:
        shape, *_ = engine.read_description(file)
        result = video_scores(OnnxNetwork(file, which, classes, shape), views)
        assert np.abs(result - expected).max() <= 1e-5 * np.ptp(expected)


def test_an_onnx_file_of_normalised_pixels_gives_the_same_scores(files):
    """The file is for two clips at once, and the last pass is padded."""
    views = make_clips(1, 5, 4, 3, 32, 32)
    expected = video_scores(build_toy(*TOYS["tsm"][:2], "O0"), views)
    for name in ENGINES:
        cfg = load_toy_config(f"run.engine={name}")
        net = load_onnx(files("tsm", input="float32"), TSM, cfg)
        result = video_scores(net, views)
        assert (net.engine, net.fixed_batch) == (name, 2)
        assert np.abs(result - expected).max() <= 1e-5 * np.ptp(expected)


def test_scores_of_several_heads_are_a_tuple(files):
    file, clips = files("mvit_multi", batch=0), make_clips(2, 3, 4, 32, 32)
    expected = build_toy("mvit_multi", TOYS["mvit_multi"][1], "O0").net(Tensor(clips))
    for name in ENGINES:
        net = OnnxNetwork(file, name, MVIT["num_classes"], (0, 3, 4, 32, 32))
        for part, other in zip(net(clips), expected):
            np.testing.assert_allclose(part, other.asnumpy(), rtol=0, atol=1e-6)


def test_the_engine_is_the_first_that_is_installed(monkeypatch):
    run = Run(device="CPU")
    assert choose_engine(run) == "openvino"
    assert choose_engine(Run(device="Ascend")) == choose_engine(Run(device="GPU")) == "mindspore"
    for name in ("mindspore", *ENGINES):
        assert choose_engine(replace(run, engine=name)) == name
    with pytest.raises(ValueError, match="openvino runs on a CPU only; set --run.device=CPU"):
        choose_engine(Run(device="Ascend", engine="openvino"))
    monkeypatch.setattr(engine, "find_spec", lambda name: name == "onnxruntime" or None)
    assert choose_engine(run) == "onnxruntime"
    with pytest.raises(ValueError, match="openvino is not installed: pip install openvino"):
        choose_engine(replace(run, engine="openvino"))
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert choose_engine(run) == "mindspore"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of exported checkpoints; empty."""
    monkeypatch.setattr(engine_cache, "get_base_folder", lambda: tmp_path)
    return tmp_path / ".cache" / "onnx"


@pytest.fixture
def opened(tiny_ckpt, cache) -> types.SimpleNamespace:
    """`build(**settings)` opens the tiny checkpoint; `loads` counts the networks it builds."""
    opened = types.SimpleNamespace(loads=0)

    def build(*settings: str) -> CachedNetwork:
        toy = ["model.num_classes=8", "model.first_width=8", "data.segments=2"]
        cfg = load_toy_config(*toy, "data.swap_labels=[[0,1]]", *settings)

        def load(level: str, **changes: str):
            opened.loads += 1
            return inference.load_checkpoint(TSM, cfg, str(tiny_ckpt), level, **changes)

        return CachedNetwork(TSM, cfg, tiny_ckpt, choose_engine(cfg.run), load)

    opened.build = build
    return opened


def test_a_checkpoint_is_exported_once_and_again_if_the_file_is_damaged(
    opened, cache, log_messages
):
    clips = make_clips(2, 2, 3, 32, 32)
    first = opened.build()
    expected = first.load("O0")(Tensor(clips)).asnumpy()
    scores = first(clips)
    assert np.abs(scores - expected).max() <= 1e-5 * np.ptp(expected)
    assert log_messages[0].startswith("exporting the network for openvino and onnxruntime")
    (file,) = cache.glob("*.onnx")
    assert first.engine == file.with_suffix(".engine").read_text()
    assert file.name.endswith("-2x2x3x32x32.onnx")
    loads = opened.loads
    again = opened.build("run.engine=onnxruntime")(clips)
    assert opened.loads == loads, "the second run builds no network"
    assert np.abs(again - expected).max() <= 1e-5 * np.ptp(expected)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    np.testing.assert_array_equal(opened.build()(clips), scores)
    assert engine_cache.is_sound(file)
    opened.build()(clips[:1])
    assert len([*cache.glob("*.onnx")]) == 2, "another shape is another file"


@pytest.mark.parametrize("fastest", ENGINES)
def test_auto_takes_the_engine_that_was_faster(fastest, opened, cache, monkeypatch):
    def open_slowly(path, shape, threads):
        def run(clips):
            time.sleep(0.05)
            return np.zeros((len(clips), 8), np.float32)

        return run

    def open_quickly(path, shape, threads):
        return lambda clips: np.ones((len(clips), 8), np.float32)

    for name in ENGINES:
        monkeypatch.setitem(engine.OPEN, name, open_quickly if name == fastest else open_slowly)
    net = opened.build()
    monkeypatch.setattr(net, "export", lambda file, shape: file.touch())
    assert net(make_clips(1, 2, 3, 32, 32)).all()
    assert net.engine == fastest


def test_openvino_does_not_see_the_cap_of_the_instruction_set(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.delenv("ZOO_CAPPED_BY", raising=False)
    with runtime.uncapped_instruction_set():
        assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2", "set by the user"
    monkeypatch.setenv("ZOO_CAPPED_BY", str(os.getpid()))
    with runtime.uncapped_instruction_set():
        assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


def test_the_key_depends_on_weights_settings_and_code(tiny_ckpt, tmp_path, monkeypatch):
    cfg = load_toy_config()
    keys = {engine_cache.compute_key("tsm", cfg, tiny_ckpt)}
    keys.add(engine_cache.compute_key("tsm", load_toy_config("model.arch=resnet50"), tiny_ckpt))
    other = tmp_path / "other.ckpt"
    other.write_bytes(tiny_ckpt.read_bytes()[:-1])
    keys.add(engine_cache.compute_key("tsm", cfg, other))
    (tmp_path / "tsm").mkdir()
    shutil.copy(ROOT / "tsm" / "model.py", tmp_path / "tsm")
    monkeypatch.setattr(engine_cache, "ROOT", tmp_path)
    keys.add(engine_cache.compute_key("tsm", cfg, tiny_ckpt))
    with open(tmp_path / "tsm" / "model.py", "a") as file:
        file.write("# changed\n")
    keys.add(engine_cache.compute_key("tsm", cfg, tiny_ckpt))
    assert len(keys) == 5
    assert engine_cache.compute_key("tsm", cfg, tiny_ckpt) in keys


def test_mindspore_computes_a_network_that_cannot_be_exported(opened, monkeypatch, log_messages):
    clips = make_clips(1, 2, 3, 32, 32)
    net = opened.build()
    expected = net.load("O0")(Tensor(clips)).asnumpy()
    failure = ValueError("--format onnx: the operator Roll has no translation to ONNX")
    monkeypatch.setattr(net, "export", lambda *_: (_ for _ in ()).throw(failure))
    np.testing.assert_array_equal(net(clips), expected)
    assert log_messages[-1].endswith(f"MindSpore computes the network: {failure}")
    forced = opened.build("run.engine=openvino")
    monkeypatch.setattr(forced, "export", lambda *_: (_ for _ in ()).throw(failure))
    with pytest.raises(ValueError, match="run.engine: .*Roll"):
        forced(clips)


def test_only_the_last_used_files_stay_in_the_cache(tmp_path):
    for k in range(5):
        for suffix in ("onnx", "engine"):
            (tmp_path / f"{k}.{suffix}").touch()
        subprocess.run(["touch", "-d", f"2020-01-0{k + 1}", tmp_path / f"{k}.onnx"], check=True)
    engine_cache.delete_old_files(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "3.engine", "3.onnx", "4.engine", "4.onnx",
    ]  # fmt: skip


def test_metrics_of_an_evaluation_are_the_same(tiny_args, tiny_ckpt, run_here, tmp_path):
    """For a checkpoint by every engine, and for an exported file."""
    results = []
    command = [*tiny_args, "--checkpoint_path", tiny_ckpt]
    target = tmp_path / "net.onnx"
    export = [*command, "--format", "onnx", "--target", target, "--batch=free"]
    assert run_here("tsm/export.py", *export).returncode == 0
    runs = [[*command, f"--run.engine={name}"] for name in ("mindspore", *ENGINES)]
    runs += [[*tiny_args, "--run.engine=auto", "--checkpoint_path", target]]
    for arguments in runs:
        metrics = read_result(run_here("tsm/eval.py", *arguments))
        results.append([metrics[key] for key in ("top1", "top5", "videos", "unreadable")])
    assert results == [results[0]] * 4


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
    tiny_args, tiny_ckpt, data_root, run_here, tmp_path
):
    """Nor the package by which OpenVINO reports its use over the network."""
    video = next((data_root / "videos" / "test").glob("*.mp4"))
    words = [*tiny_args, "--run.engine=openvino", "--checkpoint_path", tiny_ckpt, video]
    script = ROOT / "scripts" / "predict.py"
    command = [sys.executable, "-c", LIST_IMPORTS, tmp_path / "imports", script, *words]
    expected = read_result(run_here("scripts/predict.py", *words))["predictions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert read_result(done)["predictions"] == expected
    imported = (tmp_path / "imports").read_text().split()
    assert "openvino" in imported
    assert not {"mindspore", "openvino_telemetry"} & set(imported)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("eval.batch=3", "takes 2 clips at once and eval.batch is 3"),
        ("model.num_classes=7", "has 5 classes, and the yaml has 7"),
        ("run.engine=mindspore", "an ONNX file runs on a CPU by OpenVINO or ONNX Runtime"),
    ],
)
def test_an_onnx_file_that_does_not_fit_the_yaml_is_refused(files, override, words):
    with pytest.raises(ValueError, match=words):
        inference.load_network(TSM, load_toy_config(override), files("tsm"))


def test_an_onnx_file_of_another_network_or_shape_is_refused(files):
    with pytest.raises(ValueError, match="holds a network of resnet50, not of tsm"):
        load_onnx(files("resnet50"), TSM, load_toy_config())
    net = load_onnx(files("tsm"), TSM, load_toy_config())
    with pytest.raises(ValueError, match=r"takes clips \[2, 4, .* \[2, 4, 3, 40, 40\]"):
        net(make_clips(2, 4, 3, 40, 40))


def test_a_damaged_onnx_file_is_refused(files, tmp_path):
    file, content = tmp_path / "net.onnx", files("tsm").read_bytes()
    for damaged, words in (
        (b"", "not a readable ONNX file"),
        (b"nonsense", "not a readable ONNX file"),
        (content[:-1] + b"0", "its checksum differs from its content|has no checksum"),
        (content[:5000] + b"\1" + content[5001:], "its checksum differs from its content"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=words):
            load_onnx(file, TSM, load_toy_config())
    with pytest.raises(ValueError, match="no such file"):
        load_onnx(tmp_path / "none.onnx", TSM, load_toy_config())


def test_an_onnx_file_that_refers_to_another_file_is_refused(files, tmp_path):
    import onnx

    model = onnx.load(str(files("tsm")))
    del model.metadata_props[:]  # with the checksum
    onnx.save(model, str(tmp_path / "net.onnx"), save_as_external_data=True, location="weights")
    with pytest.raises(ValueError, match="its weights are in other files"):
        load_onnx(tmp_path / "net.onnx", TSM, load_toy_config())


def test_a_mindir_is_not_run_by_an_engine():
    with pytest.raises(ValueError, match="openvino cannot run net.mindir; export it to ONNX"):
        inference.load_network(TSM, load_toy_config("run.engine=openvino"), "net.mindir")
