"""bf16 and int8 of OpenVINO on a CPU: scores, report, cache, calibration, refusals."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import find_smoke_yaml, load_smoke_config, read_result, save_random_weights
from utils.networks import find_network
from utils.predict import model as api
from utils.scoring import cache as cache_module
from utils.scoring import engines as onnx
from utils.scoring import int8
from utils.scoring.engines import choose_engine
from utils.settings import Run

needs_nncf = pytest.mark.skipif(not find_spec("nncf"), reason="needs nncf: pip install '.[int8]'")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of exported networks; empty."""
    for module in (cache_module, int8):
        monkeypatch.setattr(module, "get_cache_folder", lambda: tmp_path)
    return tmp_path / "onnx"


@pytest.fixture(scope="module")
def settings(tiny_args) -> list[str]:
    """Those of the tiny TSM by OpenVINO, `section.key=value`."""
    words = [str(word)[2:] for word in tiny_args[2:]]
    return [*words, "run.engine=openvino", "eval.clips=1", "eval.crops=1"]


@pytest.fixture(scope="module")
def weights(settings, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "tiny.ckpt"
    return save_random_weights(load_smoke_config("tsm", *settings), file, "tsm")


@pytest.fixture(scope="module")
def arguments(settings, weights) -> list:
    """Those of a command."""
    words = ["--config_path", find_smoke_yaml("tsm"), f"--checkpoint_path={weights}"]
    return [*words, *(f"--{setting}" for setting in settings)]


def check_report(result: dict, expected: dict) -> None:
    """Asserts that an evaluation reports its difference from `expected`, that in f32."""
    assert result["f32_top1"] == expected["top1"]
    assert result["top1_change"] == pytest.approx(result["top1"] - expected["top1"], abs=1e-6)
    assert result["max_score_difference"] > 0
    assert not {"f32_top1", "top1_change", "max_score_difference"} & set(expected)
    loss = expected["loss"]
    assert abs(result["loss"] - loss) <= 0.1 * loss


def test_an_evaluation_in_bf16_reports_what_it_changes(arguments, cache, run_here):
    """The engine files are in f32."""
    if "BF16" not in onnx.list_capabilities():
        pytest.skip("this processor has no bfloat16")
    expected = read_result(run_here("tsm/eval.py", *arguments))
    done = run_here("tsm/eval.py", *arguments, "--run.engine_precision=bf16")
    check_report(read_result(done), expected)
    assert "OpenVINO computes the network, in bfloat16" in done.stderr
    assert len(list(cache.glob("*.onnx"))) == 1


@needs_nncf
@pytest.mark.slow
def test_int8_is_calibrated_once_and_reported(arguments, cache, run_here, videos):
    """The network of the cache serves predictions too; other clips are another calibration."""
    expected = read_result(run_here("tsm/eval.py", *arguments))
    command = [*arguments, "--run.engine_precision=int8", "--run.calibration_clips=4"]
    first = run_here("tsm/eval.py", *command)
    check_report(read_result(first), expected)
    assert "quantising the network by 4 clips, once" in first.stderr
    again = run_here("tsm/eval.py", *command, "--data.workers=1", "--eval.batch=1")
    assert "quantising" not in again.stderr
    keys = ("top1", "loss", "max_score_difference")
    results = [read_result(done) for done in (first, again)]
    assert [results[0][key] for key in keys] == pytest.approx([results[1][key] for key in keys])
    (file,) = cache.glob("*-openvino-int8.npz")
    assert [path.name for path in cache.iterdir() if path.suffix == ".tmp"] == []
    done = run_here("scripts/predict.py", *command, f"--out={cache.parent / 'out'}", videos[0])
    assert read_result(done)["failed"] == 0
    assert "quantising" not in done.stderr
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for change in ("--run.seed=0", "--run.calibration=train", "--data.resize=48"):
        assert "quantising" in run_here("tsm/eval.py", *command, change).stderr
    assert len(list(cache.glob("*.npz"))) == 3


@needs_nncf
@pytest.mark.slow
def test_the_python_interface_computes_scores_and_features_in_int8(
    settings, weights, cache, capsys
):
    """It prints nothing; an exported file gives the same numbers."""
    network = find_network("tsm")
    recipe = find_smoke_yaml("tsm")
    in_int8 = [*settings, "run.engine_precision=int8", "run.calibration_clips=3"]
    cfg = load_smoke_config("tsm", *in_int8)
    records = int8.choose_records(network.read_records(cfg, "val"), cfg)
    clips = np.stack([*int8.read_clips(network, cfg, records)])
    expected = api.load(recipe, weights, settings=settings)
    model = api.load(recipe, weights, settings=in_int8)
    scores = model.scores(clips)
    exact_features = expected.features(clips)
    pairs = [(scores, expected.scores(clips)), (model.features(clips), exact_features)]
    for values, exact in pairs:
        assert 0 < np.abs(values - exact).max() < 0.1 * np.ptp(exact)
    (file,) = cache.glob("*-openvino.onnx")
    exported = api.load(recipe, file, settings=in_int8)
    np.testing.assert_array_equal(exported.scores(clips), scores)
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="frame by frame"):
        model.open_steps((3, 32, 32))


def test_clips_are_from_all_parts_of_the_list(settings, monkeypatch):
    network = find_network("tsm")
    cfg = load_smoke_config("tsm", *settings, "run.calibration_clips=3")
    records = network.read_records(cfg, "train")
    chosen = int8.choose_records(records, cfg)
    assert [records.index(record) for record in chosen] == [0, 11, 23]
    assert len(int8.choose_records(records[:2], cfg)) == 2
    bad = [chosen[0]._replace(path="none.mp4"), *chosen[1:]]
    clips = list(int8.read_clips(network, cfg, bad))
    assert [clip.shape for clip in clips] == [(2, 3, 32, 32)] * 2
    monkeypatch.setattr(int8, "read_clips", lambda *_: iter(()))
    with pytest.raises(ValueError, match="run.calibration"):
        int8.find_int8(network, cfg, Path(), Path("net.onnx"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "onnxruntime"}, "not by onnxruntime on CPU"),
        ({"engine": "mindspore"}, "not by mindspore on CPU"),
        ({"device": "Ascend"}, "not by mindspore on Ascend"),
        ({"engine_precision": "int8"}, onnx.NNCF),
        ({"engine_precision": "bf16"}, "processor"),
    ],
)
def test_a_precision_that_cannot_be_computed_is_named(settings, words, monkeypatch):
    monkeypatch.setattr(onnx, "find_spec", lambda name: name in onnx.ENGINES)
    monkeypatch.setattr(onnx, "list_capabilities", lambda: ["FP32", "INT8"])
    run = replace(Run(device="CPU", engine_precision="bf16"), **settings)
    with pytest.raises(ValueError, match=f"run.engine_precision: .*{re.escape(words)}"):
        choose_engine(run)
