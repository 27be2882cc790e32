"""Streams of all networks, by the command and in Python: scores, files, sources that break off."""

import csv
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import scripts.stream
from scripts.data.synthetic.motion_videos import MOTIONS
from scripts.stream import label_stream
from tests.helpers import find_smoke_yaml, read_result, save_random_weights
from tests.numbered_videos import write_numbered_video
from tests.test_predict import load_toy_config
from tests.video_server import Answer, serve, to_transport_stream
from tsm import streaming
from tsm.network import NETWORK
from tsm.transforms import cut_crops
from utils import cli, signals
from utils.evaluate.label_space import LabelSpace, softmax
from utils.evaluate.scorer import Scorer
from utils.evaluate.windows import read_windows
from utils.inference import load as cache
from utils.inference.load import open_scorer
from utils.inference.model import Model, build_model, load
from utils.inference.prediction import Prediction
from utils.networks import find_network
from utils.runtime import eager_mode
from utils.video import live
from utils.video.decoders import open_video
from utils.video.windows import split_into_windows
from utils.weights.checkpoint_file import read_checkpoint

ONLINE = ["--model.online=true", "--data.segments=4"]
HTML = Answer(b"<html><body>Not here</body></html>" * 50, "text/html")
COUNT = 60
RATE = 20.0


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "numbers.mp4"
    write_numbered_video(path, COUNT, 64, 48, RATE, g="5", bf="0")
    return path


@pytest.fixture(scope="module")
def online_weights(tiny_args, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("online") / "net.ckpt"
    return save_random_weights(load_toy_config(tiny_args, ONLINE), path, "tsm")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(live, "DELAY", 0.05)


def read_table(path: Path) -> tuple[list, np.ndarray]:
    with open(path, newline="") as file:
        heading, *rows = csv.reader(file)
    return heading, np.array(rows, float)


def test_online_tsm_equals_the_offline_network_frame_by_frame(
    tiny_args, online_weights, data_root, run_here, tmp_path
):
    path = data_root / "videos" / "test" / "clockwise_000.mp4"
    arguments = ["--checkpoint_path", online_weights, path]
    done = run_here("scripts/stream.py", *arguments, "--fps", "1000", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    *messages, last = map(json.loads, done.stdout.splitlines())
    heading, rows = read_table(last["csv"])
    assert heading == ["time", *MOTIONS]
    result = rows[:, 1:]

    with open_video(path) as source:
        frames = source.frames(range(len(source)))
        fps = source.fps
    assert last["frames"] == len(frames) == len(result) == len(messages)
    assert (last["dropped"], last["reopened"], last["interrupted"]) == (0, 0, False)
    whole = [f"--data.segments={len(frames)}", "--model.consensus=identity"]
    cfg = load_toy_config(tiny_args, ["--model.online=true", *whole])
    scorer = open_scorer(find_network("tsm"), cfg, read_checkpoint(online_weights))
    clip = cut_crops(frames, resize_to=cfg.data.resize, crop=cfg.test_crop, crops=1)
    clip = clip.swapaxes(0, 1)  # (1, T, 3, crop, crop)
    with eager_mode():
        scores = scorer(clip)[0].astype(np.float64)  # (T, classes)
    for k, fraction in enumerate(result):
        expected = softmax(scores[max(k - 3, 0) : k + 1].mean(axis=0))
        np.testing.assert_allclose(fraction, expected, atol=1e-5)
        assert messages[k]["label"] == fraction.argmax()
        assert messages[k]["time"] == pytest.approx(k / fps, abs=1e-3)
    assert np.ptp(result, axis=0).max() > 0.01
    assert Image.open(last["picture"]).size[0] > 500


@pytest.fixture(scope="module")
def online_results(tiny_args, online_weights, video) -> list:
    """Those of MindSpore."""
    model = build_model(NETWORK, load_toy_config(tiny_args, ONLINE), online_weights)
    return [result.probabilities for result in model.stream(video)]


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_an_engine_labels_a_stream_frame_by_frame(
    engine, tiny_args, online_weights, online_results, video, tmp_path, monkeypatch
):
    pytest.importorskip(engine)
    monkeypatch.setattr(cache, "get_cache_folder", lambda: tmp_path)
    cfg = load_toy_config(tiny_args, [*ONLINE, f"--run.engine={engine}"])
    results = build_model(NETWORK, cfg, online_weights).stream(video)
    for result, expected in zip(results, online_results, strict=True):
        np.testing.assert_allclose(result.probabilities, expected, atol=1e-5)
    assert list(tmp_path.glob(f"onnx/*-3x32x32-online-{engine}.onnx"))


@pytest.mark.parametrize(("kind", "dtype"), [("onnx", "uint8"), ("mindir", "float32")])
def test_an_exported_step_labels_a_stream_as_its_checkpoint(
    kind, dtype, tiny_args, online_weights, online_results, video, run_here, tmp_path
):
    words = ["tsm/export.py", *tiny_args, *ONLINE, "--checkpoint_path", online_weights]
    words += ["--run.engine=auto", "--input", dtype, "--format", kind, "--target"]
    result = read_result(run_here(*words, tmp_path / "step", "--online"))
    assert result["input"]["shape"] == [1, 3, 32, 32]
    names = [array["name"] for array in result["buffers"]]
    assert [array["name"] for array in result["outputs"]][1:] == [f"new_{name}" for name in names]
    model = load(result["file"])
    for stream_result, expected in zip(model.stream(video), online_results, strict=True):
        np.testing.assert_allclose(stream_result.probabilities, expected, atol=1e-5)
    with pytest.raises(ValueError, match="--online"):
        model.predict(video)
    whole = read_result(run_here(*words, tmp_path / "whole"))["file"]
    with pytest.raises(ValueError, match="--online"):
        load(whole).stream(video)


def test_an_interruption_makes_online_tsm_forget_the_frames_before(tiny_args, online_weights):
    model = build_model(NETWORK, load_toy_config(tiny_args, ONLINE), online_weights)
    source = live.StreamSource("toy", lambda: live.Connection(RATE, True, iter(())))
    timing = streaming.Timing(source, fps=RATE)
    scorer = streaming.OnlinePredictor(model.cfg, timing, model.open_steps)
    frames = np.random.RandomState(0).randint(0, 256, (3, 48, 64, 3)).astype(np.uint8)
    views = [scorer.prepare(frame)[0] for frame in frames]
    first = scorer.score(views[2])
    scorer.restart()
    scorer.score(views[0])
    assert np.abs(scorer.score(views[2]) - first).max() > 1e-6
    scorer.restart()
    np.testing.assert_array_equal(scorer.score(views[2]), first)


def test_the_windows_of_a_video_have_the_scores_of_a_prediction(tiny_args, tmp_path, video):
    """A stream of a file equals `predict.py` with the same windows; one compilation serves both."""
    cfg = load_toy_config(tiny_args)
    path = save_random_weights(cfg, tmp_path / "net.ckpt", "tsm")
    model = build_model(NETWORK, cfg, path)
    with model.open(str(video)) as source:
        windows = read_windows(source, split_into_windows(source, 1.0, 0.6), model.heads)
        prediction, _ = model.score_windows(windows, 3)
    expected = np.concatenate((prediction.windows, *prediction.probabilities), axis=1)
    stream = model.stream(video, 1.0, 0.6)
    summary = label_stream(model, stream, str(video), tmp_path / "stream", top=3)
    names, rows = read_table(summary["csv"])
    assert names[:2] == ["start", "end"]
    assert len(names) == 2 + sum(head.classes for head in model.heads)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert len(rows) == 5
    assert np.ptp(rows[:, 2:], axis=0).max() > 1e-4
    assert summary["top"] == prediction.describe(3)["top"]
    assert (summary["frames"], summary["results"], summary["dropped"]) == (COUNT, 5, 0)


class LevelScorer(Scorer):
    """Scores (N, 8): the mean level of the clip for the first class, ten times as much for all."""

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        scores = np.zeros((len(clips), 8), np.float32)
        scores[:, 0] = clips.reshape(len(clips), -1).mean(axis=1) / 64
        return scores

    def features(self, clips: np.ndarray) -> np.ndarray:
        raise AssertionError("a stream has no features")


@pytest.fixture
def toy(monkeypatch, tmp_path) -> list:
    """The words of a command whose network is a LevelScorer; nothing is compiled."""

    def build(network, cfg, checkpoint, labels: str = "") -> Model:
        heads = network.list_label_spaces(cfg)
        for head in heads:
            head.names = list(MOTIONS)
        return Model(network, cfg=cfg, scorer=LevelScorer(), heads=heads)

    monkeypatch.setattr(scripts.stream, "build_model", build)
    settings = ["--data.segments=2", "--data.crop=32", "--data.resize=40", "--run.device=CPU"]
    weights = tmp_path / "net.ckpt"
    weights.touch()
    words = ["--config_path", str(find_smoke_yaml("tsm")), "--checkpoint_path", str(weights)]
    return [*words, *settings, "--out", str(tmp_path / "out")]


@pytest.fixture
def run(run_here, toy):
    """Runs the command with further words."""

    def run(*words):
        main = lambda: cli.run_for_network(scripts.stream.main, scripts.stream.__doc__)  # noqa: E731
        return run_here("scripts/stream.py", *toy, *words, main=main)

    return run


def test_a_stream_that_stops_in_the_middle_ends_in_one_line_with_its_results(run, video, tmp_path):
    data = to_transport_stream(video, tmp_path)
    saved = tmp_path / "saved.mp4"
    with serve(Answer(data[: len(data) // 2]), Answer(data), HTML) as (address, requests):
        name = address.replace("//", "//me:secret@") + "/live"
        words = ["--window=0.5", "--step=0.25", "--retry=2", "--save", saved]
        done = run(name, *words)
    assert done.returncode == 1
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert (last["reopened"], last["interrupted"], last["saved"]) == (1, False, str(saved))
    assert "it broke off" in last["error"]
    assert "secret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert last["results"] == len(lines)
    # Of both connections: a busy machine drops frames, and has fewer windows of each.
    assert lines[0]["end"] < COUNT / RATE < lines[-1]["end"]
    assert len(requests) > 2
    assert len(read_table(last["csv"])[1]) == len(lines)
    assert Path(last["csv"]).name == f"{live.name_address(name)}_stream.csv"
    with open_video(saved) as reader:
        assert len(reader) > COUNT


class Set(LabelSpace):
    frame_indices = make_views = lambda *_: None  # noqa: E731

    def __init__(self, name: str):
        self.name = name


def test_a_threshold_is_that_of_each_data_set():
    heads = [Set("a"), Set("b")]
    sure = np.array([[0.1, 0.9]])
    unsure = np.array([[0.6, 0.4]])
    ranking = Prediction(heads, [(0, 1)], [sure, unsure], 0.8).describe(2)
    assert [(e["set"], e["label"], e["probability"]) for e in ranking["joint"]] == [("a", 1, 0.45)]
    assert ranking["sets"]["b"] == [{"set": "b", "label": -1, "name": "none", "probability": 0.6}]
    ranking = Prediction(heads, [(0, 1)], [unsure, unsure], 0.8).describe(2)
    assert [entry["label"] for entry in ranking["joint"]] == [-1]


def test_the_rate_of_online_tsm_is_that_of_training(tiny_args):
    online = load_toy_config(tiny_args, ONLINE)
    assert streaming.compute_frame_rate(online, 30.0) == pytest.approx(4 / 3)
    dense = load_toy_config(tiny_args, [*ONLINE, "--data.sampling=dense"])
    assert streaming.compute_frame_rate(dense, 32.0) == pytest.approx(2.0)


def test_ctrl_c_ends_a_stream_and_keeps_its_results(run, video, monkeypatch, tmp_path):
    """The SIGINT comes while a window is computed, and the result of this window is kept."""

    def interrupt(scorer: LevelScorer, clips: np.ndarray) -> np.ndarray:
        if len(signals.handlers) > 1:
            signals.handlers[-1](signal.SIGINT)
        return score(scorer, clips)

    score = LevelScorer.__call__
    monkeypatch.setattr(LevelScorer, "__call__", interrupt)
    done = run(video, "--window=0.5", "--step=0.1", "--save", tmp_path / "saved.mp4")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    _, rows = read_table(last["csv"])
    assert last["interrupted"]
    assert 0 < len(rows) == last["results"] < 26
    with open_video(last["saved"]) as saved:
        assert 0 < len(saved) < COUNT
    assert len(signals.handlers) == 1
