"""scripts/predict.py: the scores of an evaluation, windows, streams, pictures, mistakes."""

import csv
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from mindspore import Tensor
from PIL import Image

from tests.helpers import call
from tests.numbered_videos import read_number, write_numbered_video
from utils import signals
from utils.config import ROOT, load_config
from utils.data.class_names import BUILTIN_NAMES, find_class_names
from utils.data.synthetic.motion_videos import MOTIONS, draw_sets, write_video
from utils.data.synthetic.pattern_images import PATTERNS, draw_image
from utils.evaluate.metrics import video_scores
from utils.evaluate.predict import (
    Head,
    Predictor,
    Window,
    assign_class_names,
    make_file_names,
    run_windows,
    softmax,
    split_into_windows,
)
from utils.export import inference
from utils.networks import find_network, list_networks
from utils.runtime import Runtime
from utils.testing.golden import build_state_dict, load_weights
from utils.video.decoders import count_frames, open_video
from utils.video.reader import VideoError
from utils.weights import checkpoint

TINY = {
    "x3d": ["model.depth_factor=0.4", "data.frames=4", "data.scales=[32,36]", "data.crop=32"],
    "mvit_multi": ["data.frames=4", "data.crop=32", "model.depth=2", "model.stage_starts=[1]"],
    "resnet50": ["data.source=folder", "data.augment=crop", "model.num_classes=4"],
}
TINY["mvit_multi"].append("model.dim=8")
ONLINE = ["--model.online=true", "--data.segments=4"]


def load(arguments: list, more: list = (), network: str = "tsm"):
    overrides = [word[2:] for word in [*arguments[2:], *more]]
    config = find_network(network).config
    return load_config(config, Path(arguments[1]), overrides)


def save(cfg, path: Path, network: str = "tsm") -> Path:
    """A checkpoint of the network of `cfg` whose scores lie apart."""
    net = find_network(network).model.build_network(**cfg.model_arguments())
    load_weights(net, build_state_dict({}, net), find_network(network))
    checkpoint.save(path, checkpoint.weights_of(net))
    return path


def predictor(cfg, network: str, path: Path, out: Path, **settings) -> Predictor:
    prediction = find_network(network).predict
    heads = prediction.build_heads(cfg)
    assign_class_names(heads, "")
    build = find_network(network).model.build_network
    classifier = find_network(network).classifier
    net = inference.load_network(build, cfg, path, classifier)
    top = max(head.classes for head in heads)
    return Predictor(net, heads, lambda p: prediction.open_source(p, cfg), out, top, **settings)


def by_label(entries: list) -> list:
    return [entry["probability"] for entry in sorted(entries, key=lambda e: e["label"])]


@pytest.fixture(scope="module")
def filled(tiny, tmp_path_factory) -> Path:
    return save(load(tiny), tmp_path_factory.mktemp("filled") / "net.ckpt")


@pytest.fixture(scope="module")
def online(tiny, tmp_path_factory) -> Path:
    return save(load(tiny, ONLINE), tmp_path_factory.mktemp("online") / "net.ckpt")


@pytest.fixture(scope="module")
def videos(synthetic) -> list:
    return sorted((synthetic / "videos" / "test").glob("*.mp4"))


@pytest.mark.parametrize("network", ["tsm", "x3d"])
def test_scores_are_those_of_an_evaluation(network, tiny, synthetic, tmp_path):
    """The same views, one compilation for videos of different lengths."""
    if network == "x3d":
        config = ROOT / "x3d" / "configs" / "x3d_smoke.yaml"
        tiny = ["", config, f"--data.root={synthetic}", *(f"--{word}" for word in TINY["x3d"])]
    cfg = load(tiny, network=network)
    dataset = find_network(network).dataset
    rows = dataset.EvalVideos(dataset.read_records(cfg, "test"), cfg, Runtime())
    result = predictor(cfg, network, save(cfg, tmp_path / "net.ckpt", network), tmp_path)
    for index in (0, 3):
        views, _, valid = rows[index]
        assert valid
        record = result.predict(rows.records[rows.mine[index]].path, f"video{index}")
        scores = video_scores(result.net, views[None])[0]
        expected = softmax(scores) if network == "tsm" else scores
        assert np.ptp(expected) > 0.01
        np.testing.assert_allclose(by_label(record["top"]), expected, atol=1e-6)
        assert [e["name"] for e in sorted(record["top"], key=lambda e: e["label"])] == [*MOTIONS]
    assert len(result.net.compile_cache) == 1
    assert record["views"] == "2x3"


def test_every_set_has_the_scores_of_its_evaluation(tmp_path):
    from mvit_multi.evaluation import HeadSelector, build_eval_videos

    draw_sets(tmp_path, train_per_motion=1, test_per_motion=1, seed=1)
    config = ROOT / "mvit_multi" / "configs" / "mvit_multi_smoke.yaml"
    words = ["", config, f"--data.root={tmp_path}", *(f"--{word}" for word in TINY["mvit_multi"])]
    cfg = load(words, network="mvit_multi")
    path = save(cfg, tmp_path / "net.ckpt", "mvit_multi")
    result = predictor(cfg, "mvit_multi", path, tmp_path, window=0.5)
    whole = Predictor(result.net, result.heads, result.open, tmp_path, 8, window=0)
    for which, rows in build_eval_videos(cfg, Runtime()).items():
        record = whole.predict(rows.records[0].path, "video")
        expected = video_scores(HeadSelector(result.net, which), rows[0][0][None])[0]
        np.testing.assert_allclose(
            by_label(record["sets"][rows.settings.name]), expected, atol=1e-6
        )
    assert np.ptp(expected) > 0.01
    cut = result.predict(rows.records[0].path, "cut")
    heading, *lines = csv.reader((tmp_path / "cut.csv").read_text().splitlines())
    assert heading[:3] == ["start", "end", "eight/left"]
    assert heading[-1] == "moves/left"
    assert len(lines) == len(cut["windows"]) > 1
    assert np.array(lines, float)[:, 2:].sum(axis=1) == pytest.approx(3, abs=1e-5)


def test_an_image(tmp_path):
    rng = np.random.RandomState(0)
    for name in PATTERNS[:4]:
        for split in ("train", "val"):
            (tmp_path / split / name).mkdir(parents=True)
            image = Image.fromarray(draw_image(name, rng)).resize((80, 61))
            image.save(tmp_path / split / name / "0.jpg")
    config = ROOT / "resnet50" / "configs" / "resnet50_smoke.yaml"
    words = ["", config, f"--data.root={tmp_path}", *(f"--{word}" for word in TINY["resnet50"])]
    cfg = load([*words, "--eval.batch=1"], network="resnet50")
    from resnet50.dataset import build_eval_dataset

    path = save(cfg, tmp_path / "net.ckpt", "resnet50")
    result = predictor(cfg, "resnet50", path, tmp_path)
    names = sorted(PATTERNS[:4])
    assert list(result.heads[0].names) == names, "the class folders' names"
    for views, label, _ in build_eval_dataset(cfg, Runtime()).create_tuple_iterator(
        output_numpy=True
    ):
        name = names[int(label[0])]
        record = result.predict(str(tmp_path / "val" / name / "0.jpg"), name)
        expected = softmax(video_scores(result.net, views)[0])
        np.testing.assert_allclose(by_label(record["top"]), expected, atol=1e-6)
    assert np.ptp(expected) > 0.02
    with pytest.raises(VideoError, match="not a readable image"):
        result.predict(str(config), "yaml")


def test_one_broken_video_among_others(tiny, filled, videos, tmp_path):
    """The others are predicted; the broken one is named; status 1."""
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(videos[0].read_bytes()[:1500])
    twin = tmp_path / videos[0].name
    shutil.copy(videos[0], twin)
    arguments = [videos[0], broken, twin, "--top", "3", "--window", "0.5", "--step=0.25"]
    done = call("scripts/predict.py", *tiny, "--checkpoint_path", filled, *arguments)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert str(broken) in line
    *table, last = done.stdout.splitlines()
    result, out = json.loads(last), filled.parent / "predictions"
    assert (result["failed"], result["out"]) == (1, str(out))
    first, second, third = result["predictions"]
    assert "error" in second
    assert first["top"] == third["top"]
    assert first["picture"] != third["picture"]
    assert table[0] == f"{videos[0]}  (2x3 views)"
    assert [row.split()[0] for row in table[1:4]] == ["1", "2", "3"]
    assert table[1].split()[1:3] == [first["top"][0]["name"], str(first["top"][0]["label"])]
    lines = (out / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["predictions"]
    for file in (first["picture"], first["timeline"]):
        with Image.open(file) as image:
            assert np.ptp(np.asarray(image.convert("L"))) == 255
    heading, *rows = csv.reader(Path(first["csv"]).read_text().splitlines())
    assert heading == ["start", "end", *MOTIONS]
    mean = np.array(rows, float)[:, 2:].mean(axis=0)
    assert first["top"][0]["label"] == mean.argmax()
    assert first["top"][0]["probability"] == pytest.approx(mean.max(), abs=2e-6)
    starts = [each["start"] for each in first["windows"]]
    assert [float(row[0]) for row in rows] == pytest.approx(starts, abs=1e-3)


class Reading(Head):
    """Reads the numbers off the frames of a numbered video: every `step`-th of a part."""

    classes = 2

    def __init__(self, step: int, offset: int = 0):
        self.step, self.offset = step, offset

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.arange(self.offset, len(window), self.step)

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return np.array([read_number(frames[position]) for position in positions])

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        return views

    def predict_probs(self, net, views: np.ndarray) -> np.ndarray:
        return np.array([0.25, 0.75])


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("reader", ["pyav", "opencv"])
def test_windows_see_their_own_frames_and_no_more_than_they_hold(tmp_path, reader, step):
    """Each frame is decoded once, forward, however windows and heads overlap."""
    path = tmp_path / "numbered.mp4"
    write_numbered_video(path, 97, 64, 48, 8)
    with open_video(path, reader) as source:
        asked, frames = [], source.frames
        source.frames = lambda numbers: asked.append([int(n) for n in numbers]) or frames(numbers)
        windows = split_into_windows(source, 4.0, step)
        assert {len(window) for window in windows} == {32}
        assert (windows[0].start, windows[-1].start) == (0, 97 - 32)
        assert [window.start for window in windows[:-1]] == [*range(0, 65, 8 * (step or 4))]
        heads = [Reading(4), Reading(6, 1)]
        for result in run_windows(None, source, windows, heads):
            for head, views in zip(heads, result.views):
                expected = result.window.start + head.frame_indices(result.window)
                np.testing.assert_array_equal(views, expected)
    together = sum(asked, [])
    assert together == sorted(set(together))
    assert max(map(len, asked)) <= 32


def test_odd_names_of_videos_get_their_files(tmp_path, capsys):
    """No UTF-8, 255 bytes, control characters; two names that are cut to one."""
    long = "ü" * 125
    names = [b"caf\xe9.mp4", f"{long}a.mp4".encode(), f"{long}b.mp4".encode(), b"\x1b[2J$.mp4"]
    write_numbered_video(tmp_path / "plain.mp4", 40, 64, 48, 8)
    videos = [tmp_path / os.fsdecode(name) for name in names]
    for video in videos:
        shutil.copy(tmp_path / "plain.mp4", video)
    shown = Reading(10)
    shown.make_views = lambda frames, positions: frames[:3, None]
    shown.preview_frames = lambda views: views.transpose(1, 0, 2, 3, 4)
    shown.clips = 1
    predictor = Predictor(None, [shown], open_video, tmp_path / "out", 2, window=2.0)
    result = predictor.run([str(video) for video in videos])
    assert result["failed"] == 0
    for record, video in zip(result["predictions"], videos):
        assert record["video"] == str(video)
        assert all(Path(record[key]).is_file() for key in ("picture", "csv", "timeline"))
    files = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(files) == 3 * len(videos) + 1
    assert all(name.isprintable() for name in files)
    assert "caf\\xe9.png" in files
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith(rf"{tmp_path}/\x1b[2J$.mp4") for line in lines)


def test_a_video_whose_name_is_too_long_is_a_mistake(tiny, filled):
    checkpoint = ["--checkpoint_path", filled]
    done = call("scripts/predict.py", *tiny, *checkpoint, "\x1b" + "n" * 300)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(r"error: \x1bnnn")
    assert last.endswith("does not exist")


def test_control_characters_in_class_names_are_escaped(
    main, tiny, filled, videos, tmp_path, capsys
):
    names = ["\x1b[2Jone", "two\x9b31m", "\u202ethree", "a\x0bb", "c\x85d", "e\u2028f", "\x07"]
    (tmp_path / "names.txt").write_text("\n".join([*names, "n" * 100_000]), encoding="utf-8")
    options = {"labels": tmp_path / "names.txt", "top": 8, "out": tmp_path / "out"}
    options = {"checkpoint_path": filled, "videos": [str(videos[0])], **options}
    assert main(find_network("tsm"), load(tiny), **options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 8 + 1
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines[:-1])) < 300
    assert any(r"\x1b[2Jone" in line for line in lines)


def test_which_videos_are_cut(tmp_path):
    write_numbered_video(tmp_path / "long.mp4", 125, 64, 48, 4)
    write_numbered_video(tmp_path / "short.mp4", 120, 64, 48, 4)
    with open_video(tmp_path / "long.mp4") as long, open_video(tmp_path / "short.mp4") as short:
        assert [window.start for window in split_into_windows(long, None, None)] == [0, 40, 80, 85]
        assert split_into_windows(long, 0.0, None) == [Window(0, 125, 4.0)]
        assert split_into_windows(short, None, None) == [Window(0, 120, 4.0)]
        assert len(split_into_windows(short, 15.0, None)) == 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length(tmp_path):
    """Seven minutes, whose every frame is looked at: 70 MB a window of 10 seconds."""
    picture = np.random.RandomState(0).randint(0, 255, (15, 20, 3), np.uint8)
    picture = picture.repeat(16, axis=0).repeat(16, axis=1)
    frames = (np.roll(picture, k % 320, axis=1) for k in range(7 * 60 * 30))
    write_video(tmp_path / "long.mp4", frames, 30)

    class Every(Reading):
        def make_views(self, frames, positions):
            return frames[:1]

    process, sizes = psutil.Process(), []
    with open_video(tmp_path / "long.mp4") as source:
        for seen in run_windows(None, source, split_into_windows(source, None, None), [Every(1)]):
            assert seen.views[0].shape == (1, 240, 320, 3)
            sizes.append(process.memory_info().rss)
    assert len(sizes) == 42
    assert max(sizes[3:]) - sizes[2] < 70e6


def test_a_stream_equals_the_offline_network_frame_by_frame(tiny, online, videos, tmp_path):
    arguments = [*tiny, *ONLINE, "--checkpoint_path", online, "--stream", videos[0]]
    done = call("scripts/predict.py", *arguments, "--fps", "1000", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    *messages, last = map(json.loads, done.stdout.splitlines())
    heading, *rows = csv.reader(Path(last["csv"]).read_text().splitlines())
    assert heading == ["time", *MOTIONS]
    result = np.array(rows, float)[:, 1:]

    from tsm.model import TSM
    from tsm.network import NETWORK
    from tsm.transforms import make_test_views

    with open_video(videos[0]) as source:
        frames, fps = source.frames(range(len(source))), source.fps
    assert last["frames"] == len(frames) == len(result) == len(messages)
    whole = [f"--data.segments={len(frames)}", "--model.consensus=identity"]
    cfg = load(tiny, ["--model.online=true", *whole])
    net = inference.load_network(TSM, cfg, online, NETWORK.classifier)
    clip = make_test_views(frames, 1, len(frames), cfg.data.resize, cfg.test_crop, 1)
    scores = net(Tensor(clip)).asnumpy()[0].astype(np.float64)  # (T, classes)
    for k, fraction in enumerate(result):
        expected = softmax(scores[max(k - 3, 0) : k + 1].mean(axis=0))
        np.testing.assert_allclose(fraction, expected, atol=1e-5)
        assert messages[k]["label"] == fraction.argmax()
        assert messages[k]["time"] == pytest.approx(k / fps, abs=1e-3)
    assert np.ptp(result, axis=0).max() > 0.01
    assert Image.open(last["picture"]).size[0] > 500


class Camera:
    """OpenCV's, but opened on a file; after six frames somebody presses ctrl-C."""

    def __init__(self, path: Path):
        self.file, self.given, self.released = REAL(str(path)), 0, False

    def __getattr__(self, name: str):
        return getattr(self.file, name)

    def read(self):
        self.given += 1
        if self.given == 6:
            signals.handlers[-1](signal.SIGINT)
        return self.file.read()

    def release(self):
        self.released = True


REAL = cv2.VideoCapture


def test_ctrl_c_ends_a_camera_with_what_was_seen(tiny, online, videos, tmp_path, monkeypatch):
    from tsm import predict as prediction
    from tsm import streaming

    camera = Camera(videos[0])
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: camera if number == 3 else REAL(""))
    cfg = load(tiny, ONLINE)
    (head,) = prediction.build_heads(cfg)
    result = streaming.run_stream(cfg, online, "3", head, 5, 1000.0, tmp_path)
    assert (result["frames"], result["interrupted"], camera.released) == (6, True, True)
    lines = (tmp_path / "camera_3_stream.csv").read_text().splitlines()
    assert len(lines) == 1 + 6
    assert not list(tmp_path.glob("*.tmp"))
    with pytest.raises(ValueError, match="camera 4 cannot be opened"):
        streaming.run_stream(cfg, online, "4", head, 5, 1000.0, tmp_path)
    assert len(signals.handlers) == 1


def test_frames_a_second_of_a_stream(tiny):
    from tsm import streaming

    assert streaming.compute_frame_rate(load(tiny, ONLINE), 30.0) == pytest.approx(4 / 3)
    dense = load(tiny, [*ONLINE, "--data.sampling=dense"])
    assert streaming.compute_frame_rate(dense, 32.0) == pytest.approx(2.0)
    taken = [k for k, _ in streaming.subsample_frames(((k, None) for k in range(31)), 5 / 15)]
    assert taken == list(range(0, 31, 3))
    assert len(list(streaming.subsample_frames(((k, None) for k in range(30)), 1.0))) == 30
    assert len(list(streaming.subsample_frames(((k, None) for k in range(300)), 8 / 3 / 30))) == 27


def test_folders_of_frames_and_of_flow(tiny, tmp_path):
    """Flow is shown by its x, in grey; the views are those of the evaluation's frames."""
    from tsm import predict as prediction

    for k in range(1, 8):
        for axis in "xy":
            level = 10 * k + (100 if axis == "y" else 0)
            Image.fromarray(np.full((48, 60), level, np.uint8)).save(
                tmp_path / f"flow_{axis}_{k:05d}.jpg"
            )
    flow = ["--data.source=frames", "--data.modality=flow", "--data.frames_per_segment=2"]
    cfg = load(tiny, [*flow, "--data.image_tmpl=flow_{}_{:05d}.jpg", "--eval.crops=10"])
    (head,) = prediction.build_heads(cfg)
    with prediction.open_source(str(tmp_path), cfg) as source:
        assert len(source) == 7
        (window,) = split_into_windows(source, None, None)
        views = head.make_views(*source.frames_once(head.frame_indices(window)))
    assert views.shape == (20, 2, 4, 32, 32)
    shown = head.preview_frames(views)
    assert shown.shape == (2, 2, 32, 32, 3)
    assert np.ptp(shown, axis=-1).max() == 0
    np.testing.assert_array_equal(shown[..., 0], views[16:18, :, 0])
    assert shown.max() < 100
    assert count_frames(tmp_path, "flow_x_{:05d}.jpg") == 7
    with pytest.raises(VideoError, match="no frame named"):
        count_frames(tmp_path, "img_{:05d}.jpg")
    with pytest.raises(ValueError, match="folders of flow images"):
        prediction.open_source(str(tmp_path / "flow_x_00001.jpg"), cfg)


COUNTS = {
    "cifar10": 10, "cifar100": 100, "hmdb51": 51, "imagenet": 1000, "jester": 27,
    "kinetics400": 400, "ssv2": 174, "ucf101": 101,
}  # fmt: skip


def test_builtin_names():
    assert {file.stem for file in BUILTIN_NAMES.iterdir()} == set(COUNTS)
    for name, count in COUNTS.items():
        names = find_class_names(None, name, count)
        assert len(set(names)) == count
        assert all(names)
        if name not in ("cifar10", "imagenet"):
            assert names == sorted(names), "labels are places in the alphabet"
    assert find_class_names(None, "jester", 27)[2] == "No gesture"
    pairs = load_config(
        find_network("tsm").config, ROOT / "tsm" / "configs" / "tsm_r50_sthv2_8f_swap.yaml"
    ).data.swap_labels
    for a, b in pairs:  # published with the network
        names = find_class_names(None, "ssv2", 174)
        assert names[a].replace("left", "L") != names[a]
        swapped = names[a].replace("left", "L").replace("right", "left").replace("L", "right")
        assert swapped == names[b]


@pytest.mark.parametrize("network", list_networks())
def test_a_yaml_names_a_list_that_fits(network):
    named = 0
    for path in (ROOT / network / "configs").glob("*.yaml"):
        cfg = load_config(find_network(network).config, path)
        for head in find_network(network).predict.build_heads(cfg):
            if head.builtin_names:
                assert len(find_class_names(None, head.builtin_names, head.classes)) == head.classes
                named += 1
    assert named


def test_files_of_one_name_do_not_replace_each_other():
    assert make_file_names(["a/x.mp4", "b/x.mp4", "x.avi", "y.mp4"]) == ["x", "x_2", "x_3", "y"]


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location("predict", ROOT / "scripts" / "predict.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: videos"),
        (["none.mp4"], "none.mp4 does not exist"),
        (["VIDEO", "--top=0"], "--top: must be a whole number of at least 1"),
        (["VIDEO", "--window=-1"], "--window: must be a number of at least 0"),
        (["VIDEO", "--step=x"], "--step: must be a number"),
        (["VIDEO", "--step=0"], "--step must be above 0"),
        (["FOLDER"], "is a folder of videos; name them"),
        (["VIDEO", "--labels=none.txt"], "--labels: none.txt does not exist"),
        (["VIDEO", "--labels=LIST"], "has 24 names, the network 8 classes"),
        (["VIDEO", "--fps=5"], "--fps goes with it"),
        (["VIDEO", "--stream"], "model.online=true"),
        (["BROKEN"], "cannot read"),
        (["BROKEN", "LIST"], "none of the videos"),
        (["VIDEO", "--out=VIDEO"], "--out: cannot write"),
    ],
)
def test_a_mistake_is_reported(main, tiny, filled, synthetic, videos, tmp_path, words, said):
    from utils import cli

    (tmp_path / "broken.mp4").write_bytes(videos[0].read_bytes()[:1500])
    real = {"VIDEO": videos[0], "LIST": synthetic / "train.txt", "BROKEN": tmp_path / "broken.mp4"}
    real["FOLDER"] = videos[0].parent
    for name, path in real.items():
        words = [word.replace(name, str(path)) for word in words]
    parser, required = cli.Parser("", [], main), ["--checkpoint_path", str(filled)]

    def predict() -> None:
        options = parser.parse([*required, *words])[2]
        main(find_network("tsm"), load(tiny), **{"out": tmp_path / "out", **options})

    with pytest.raises(ValueError, match=said):
        predict()
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topp=3", "video.mp4"], "unknown option --topp; did you mean --top?"),
        (["BROKEN"], "broken.mp4 with pyav: it does not open"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tiny, filled, tmp_path, words, said):
    (tmp_path / "broken.mp4").write_bytes(os.urandom(2000))
    words = [word.replace("BROKEN", str(tmp_path / "broken.mp4")) for word in words]
    done = call("scripts/predict.py", *tiny, "--checkpoint_path", filled, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """As `... | head` does, in the middle of what is written."""
    code = (
        "from pathlib import Path; from utils import cli, files\n"
        "def work():\n"
        "    with files.report_write_errors(Path('out')):\n"
        "        print('x' * 10**6, flush=True)\n"
        "cli.main_guard('', work)"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_networks_without_a_stream_say_so(main, tmp_path):
    cfg = load(["", ROOT / "x3d" / "configs" / "x3d_smoke.yaml"], network="x3d")
    with pytest.raises(ValueError, match="x3d cannot read frame by frame"):
        main(find_network("x3d"), cfg, checkpoint_path="none.ckpt", videos=["0"], stream=True)
