"""scripts/predict.py: scores, windows, pictures, class names and user errors."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mvit_multi.network import NETWORK as MVIT
from resnet50.network import NETWORK as RESNET
from scripts.data.synthetic.motion_videos import draw_sets
from scripts.data.synthetic.pattern_images import PATTERNS
from scripts.predict import IMAGE_SUFFIXES
from scripts.prediction.records import (
    PredictOptions,
    Predictor,
    format_table,
    list_videos,
    write_tables,
)
from tests.helpers import FileModel, NoNetwork, load_smoke_config, save_random_weights
from tests.numbered_videos import read_number, write_numbered_video
from tsm.network import NETWORK
from utils.data.annotation_file import BUILTIN_NAMES, find_class_names
from utils.evaluate.label_space import LabelSpace, softmax
from utils.evaluate.scorer import video_scores
from utils.evaluate.windows import read_windows
from utils.files import ROOT
from utils.inference.model import build_model
from utils.inference.prediction import make_file_names
from utils.load_config import load_config
from utils.networks import find_network, list_networks
from utils.runtime import Runtime
from utils.video.decoders import open_video
from utils.video.images import FrameFolder
from utils.video.reader import VideoError
from utils.video.windows import Window, split_into_windows

TINY = {
    "x3d": "model.depth_factor=0.4 data.frames=4 data.scales=[32,36] data.crop=32",
    "mvit_multi": "data.frames=4 data.crop=32 model.depth=2 model.stage_starts=[1] model.dim=8",
    "resnet50": "data.source=folder data.augment=crop model.num_classes=4",
}
COLUMNS = ("name", "label", "probability")  # of a rank in predictions.csv


def load_toy_config(arguments: list, more: list = ()):
    overrides = [word[2:] for word in [*arguments[2:], *more]]
    return load_config(find_network("tsm").config, Path(arguments[1]), overrides)


def load_small_config(network: str, root: Path, *more: str):
    settings = ["run.engine=mindspore", *TINY[network].split(), *more]
    return load_smoke_config(network, f"data.root={root}", *settings)


def build_predictor(cfg, network: str, path: Path, out: Path, **settings) -> Predictor:
    model = build_model(find_network(network), cfg, path)
    top = max(head.classes for head in model.heads)
    return Predictor(model, PredictOptions(out, top=top, **settings))


def order_by_label(entries: list) -> list:
    return [entry["probability"] for entry in sorted(entries, key=lambda e: e["label"])]


@pytest.fixture(scope="module")
def weights(tiny_args, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "net.ckpt"
    return save_random_weights(load_toy_config(tiny_args), path, "tsm")


def test_a_prediction_gives_the_scores_of_an_evaluation_for_every_set(tmp_path):
    draw_sets(tmp_path, train_per_motion=1, test_per_motion=1, seed=1)
    cfg = load_small_config("mvit_multi", tmp_path)
    path = save_random_weights(cfg, tmp_path / "net.ckpt", "mvit_multi")
    result = build_predictor(cfg, network="mvit_multi", path=path, out=tmp_path, window=0.5)
    whole = Predictor(result.model, PredictOptions(tmp_path, top=8, window=0))
    for head, rows in MVIT.build_eval_rows(cfg, Runtime()).items():
        record = whole.predict(rows.records[0].path, "video")
        columns = result.model.heads[head].columns
        expected = video_scores(result.model.scorer, rows[0][0][None], columns=columns)[0]
        probabilities = order_by_label(record["sets"][rows.settings.name])
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert np.ptp(expected) > 0.01
    joint = [entry["probability"] for entry in record["joint"]]
    assert joint == sorted(joint, reverse=True)
    best = record["sets"][record["joint"][0]["set"]][0]
    assert joint[0] == pytest.approx(best["probability"] / 3, abs=1e-6)
    assert len(result.predict(rows.records[0].path, "cut")["windows"]) > 1


def test_a_prediction_of_an_image_gives_the_scores_of_an_evaluation(pictures, tmp_path):
    cfg = load_small_config("resnet50", pictures, "eval.batch=1")
    path = save_random_weights(cfg, tmp_path / "net.ckpt", "resnet50")
    result = build_predictor(cfg, network="resnet50", path=path, out=tmp_path)
    names = sorted(PATTERNS[:4])
    assert list(result.heads[0].names) == names, "the names of the class folders"
    rows = RESNET.build_eval_rows(cfg, Runtime())[0]
    batches = RESNET.create_dataset(cfg, rows, 1)
    files = rows.records.list_names()
    for file, (views, _, _) in zip(files, batches.create_tuple_iterator(output_numpy=True)):
        record = result.predict(str(pictures / "val" / file), Path(file).stem)
        expected = softmax(video_scores(result.model.scorer, views)[0])
        np.testing.assert_allclose(order_by_label(record["top"]), expected, atol=1e-6)
    assert np.ptp(expected) > 0.02
    with pytest.raises(VideoError, match="not a readable image"):
        result.predict(__file__, "text")


def test_a_folder_stands_for_the_videos_below_it(weights, videos, run_here, tmp_path):
    """Also in subfolders; hidden files are left out. The checkpoint needs no config file.

    A damaged video is named and does not stop the others; the exit status is 1.
    """
    names = ["a.MP4", "sub/b c/a.mp4", "sub/predictions.mp4", ".hidden.mp4", ".trash/a.mp4"]
    for name, video in zip(names, videos):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, tmp_path / "in" / name)
    damaged = tmp_path / "in" / "sub" / "cut.avi"
    damaged.write_bytes(videos[0].read_bytes()[:900])
    (tmp_path / "in" / "notes.txt").touch()
    arguments = [tmp_path / "in", videos[5], "--top=2", "--window", "0.5", "--step=0.25"]
    done = run_here("scripts/predict.py", "--checkpoint_path", weights, *arguments)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert str(damaged) in line
    *table, last = done.stdout.splitlines()
    result = json.loads(last)
    out = weights.parent / "predictions"
    assert (result["failed"], result["out"]) == (1, str(out))
    records = result["predictions"]
    expected = [names[0], names[1], "sub/cut.avi", names[2]]
    expected = [*(str(tmp_path / "in" / name) for name in expected), str(videos[5])]
    assert [record["video"] for record in records] == expected
    lines = (out / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    first = records[0]
    assert table[1].split()[1:3] == [first["top"][0]["name"], str(first["top"][0]["label"])]
    heading, *rows = csv.reader((out / "predictions.csv").read_text().splitlines())
    classes = ["class_1", "label_1", "probability_1", "class_2", "label_2", "probability_2"]
    assert heading == ["video", *classes, "error"]
    for row, record in zip(rows, records):
        values = [str(e[key]) for e in record.get("top", []) for key in COLUMNS] or [""] * 6
        assert row == [record["video"], *values, record.get("error", "")]
    assert "cut.avi" in rows[2][-1]
    pictures = {Path(record["picture"]).name for record in records if "picture" in record}
    assert {"a.png", "a_2.png", "predictions_2.png"} < pictures
    assert len(first["windows"]) > 2
    files = {path.name for path in out.iterdir()}
    assert files == {".lock", "predictions.csv", "predictions.jsonl"} | pictures


def test_a_folder_of_images_stands_for_its_images(tmp_path, capsys):
    """A line counts what is left out."""
    for name in ("b.JPG", "a/c.Webp", "a.mp4", "d.txt", "__MACOSX/e.png", "a/._c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("same size")
    images = [str(tmp_path / name) for name in ("a/c.Webp", "b.JPG")]
    assert list_videos([str(tmp_path)], IMAGE_SUFFIXES) == images
    (left_out,) = capsys.readouterr().err.splitlines()
    assert "a.mp4, d.txt" in left_out
    frames = [str(tmp_path / "a")]  # a folder of frames, or a mistake: opening it tells
    assert list_videos(frames, (".mp4",)) == frames
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: "):
        list_videos([str(tmp_path / "empty")], (".mp4",))


class NumberReader(LabelSpace):
    """A head whose views are the numbers in every `step`-th frame of a numbered video."""

    classes = 2

    def __init__(self, step: int, offset: int = 0):
        self.step = step
        self.offset = offset

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.arange(self.offset, len(window), self.step)

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return np.array([read_number(frames[position]) for position in positions])

    def preview_frames(self, views: np.ndarray) -> np.ndarray:
        return views

    def predict_probs(self, net, views: np.ndarray) -> np.ndarray:
        return np.array([0.25, 0.75])


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("reader", ["pyav", "decord"])
def test_a_window_gets_its_frames_and_holds_no_others(tmp_path, reader, step):
    """Each frame is decoded once and in order, also if windows or heads overlap."""
    path = tmp_path / "numbered.mp4"
    write_numbered_video(path, frames=97, width=64, height=48, rate=8)
    with open_video(path, reader) as source:
        calls = []
        decode = source._decode
        source._decode = lambda numbers: calls.append(numbers) or decode(numbers)
        windows = split_into_windows(source, 4.0, step)
        assert {len(window) for window in windows} == {32}
        assert (windows[0].start, windows[-1].start) == (0, 97 - 32)
        assert [window.start for window in windows[:-1]] == [*range(0, 65, 8 * (step or 4))]
        heads = [NumberReader(4), NumberReader(6, 1)]
        for window, views in read_windows(source, windows, heads):
            for head, numbers in zip(heads, views):
                expected = window.start + head.frame_indices(window)
                np.testing.assert_array_equal(numbers, expected)
    decoded = sum(calls, [])
    assert decoded == sorted(set(decoded))
    assert max(map(len, calls)) <= 32


def test_unusual_names_of_videos_and_classes_are_escaped(tmp_path, capsys):
    """Names without UTF-8, of 255 bytes, with control characters, or equal when truncated."""
    long = "ü" * 125
    names = [b"caf\xe9.mp4", f"{long}a.mp4".encode(), f"{long}b.mp4".encode(), b"\x1b[2J$.mp4"]
    write_numbered_video(tmp_path / "plain.mp4", frames=40, width=64, height=48, rate=8)
    videos = [tmp_path / os.fsdecode(name) for name in names]
    for video in videos:
        shutil.copy(tmp_path / "plain.mp4", video)
    head = NumberReader(10)
    head.make_views = lambda frames, positions: frames[:3, None]
    head.preview_frames = lambda views: views.transpose(1, 0, 2, 3, 4)
    head.clips = 1
    classes = ["\x1b[2Jone", "two\x9b31m", "\u202ethree", "a\x0bb", "c\x85d", "e\u2028f", "\x07"]
    head.names = [*classes, "n" * 100_000]
    head.predict_probs = lambda *_: np.full(8, 0.125)
    options = PredictOptions(tmp_path / "out", top=8, window=2.0)
    predictor = Predictor(FileModel(NoNetwork(), [head]), options)
    paths = [str(video) for video in videos]
    options.folder.mkdir()
    records = [record for _, record in predictor.run_jobs(zip(paths, make_file_names(paths)))]
    write_tables(options.folder, records)
    for record, path in zip(records, paths):
        assert record["video"] == path
        assert Path(record["picture"]).is_file()
        print(format_table(record))
    files = [path.name for path in options.folder.iterdir()]
    assert len(files) == len(videos) + 2  # the tables
    assert all(name.isprintable() for name in files)
    assert "caf\\xe9.png" in files
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (1 + 8) * len(videos)
    assert all(line.isprintable() and len(line) < 700 for line in lines)
    assert lines[-9].startswith(rf"{tmp_path}/\x1b[2J$.mp4")
    assert r"\x1b[2Jone" in lines[-8]
    assert make_file_names(["a/x.mp4", "b/x.mp4", "x.avi", "y.mp4"]) == ["x", "x_2", "x_3", "y"]


def test_long_videos_are_split_into_windows(tmp_path):
    write_numbered_video(tmp_path / "long.mp4", frames=125, width=64, height=48, rate=4)
    write_numbered_video(tmp_path / "short.mp4", frames=120, width=64, height=48, rate=4)
    with open_video(tmp_path / "long.mp4") as long, open_video(tmp_path / "short.mp4") as short:
        assert [window.start for window in split_into_windows(long, None, None)] == [0, 40, 80, 85]
        assert split_into_windows(long, 0.0, None) == [Window(0, 125, 4.0)]
        assert split_into_windows(short, None, None) == [Window(0, 120, 4.0)]
        assert len(split_into_windows(short, 15.0, None)) == 2


def test_a_prediction_reads_a_folder_of_flow(tiny_args, tmp_path):
    """Pictures show the x component of flow in grey; views are those of an evaluation."""
    for k in range(1, 8):
        for axis in "xy":
            level = 10 * k + (100 if axis == "y" else 0)
            image = Image.fromarray(np.full((48, 60), level, np.uint8))
            image.save(tmp_path / f"flow_{axis}_{k:05d}.jpg")
    flow = ["--data.source=frames", "--data.modality=flow", "--data.frames_per_segment=2"]
    flow += ["--data.image_tmpl=flow_{}_{:05d}.jpg", "--eval.crops=10"]
    cfg = load_toy_config(tiny_args, flow)
    (head,) = NETWORK.list_label_spaces(cfg)
    with NETWORK.open_frames(cfg, str(tmp_path)) as source:
        assert len(source) == 7
        (window,) = split_into_windows(source, None, None)
        views = head.make_views(*source.read(head.frame_indices(window), head.crop_frames))
    assert views.shape == (20, 2, 4, 32, 32)
    preview = head.preview_frames(views)
    assert preview.shape == (2, 2, 32, 32, 3)
    assert np.ptp(preview, axis=-1).max() == 0
    np.testing.assert_array_equal(preview[..., 0], views[16:18, :, 0])
    assert preview.max() < 100
    assert len(FrameFolder(tmp_path, None, "flow_x_{:05d}.jpg")) == 7
    with pytest.raises(VideoError, match="no frame named"):
        FrameFolder(tmp_path, None, "img_{:05d}.jpg")
    with pytest.raises(ValueError, match="folders of flow images"):
        NETWORK.open_frames(cfg, str(tmp_path / "flow_x_00001.jpg"))


COUNTS = {
    "activitynet": 200, "cifar10": 10, "cifar100": 100, "diving48": 48, "hmdb51": 51,
    "imagenet": 1000, "jester": 27, "kinetics400": 400, "ssv2": 174, "ucf101": 101,
}  # fmt: skip


def test_builtin_class_names_are_complete_and_unique():
    assert {file.stem for file in BUILTIN_NAMES.iterdir()} == set(COUNTS)
    for name, count in COUNTS.items():
        names = find_class_names(None, name, count)
        assert len(set(names)) == count
        assert all(names)
        if name not in ("cifar10", "imagenet"):
            assert names == sorted(names), "labels are alphabetical"
    assert find_class_names(None, "jester", 27)[2] == "No gesture"
    path = ROOT / "tsm" / "configs" / "tsm_r50_sthv2_8f_swap.yaml"
    names = find_class_names(None, "ssv2", 174)
    # the pairs that were published with the network
    for a, b in load_config(find_network("tsm").config, path).data.swap_labels:
        assert names[a].replace("left", "L") != names[a]
        swapped = names[a].replace("left", "L").replace("right", "left").replace("L", "right")
        assert swapped == names[b]


@pytest.mark.parametrize("network", list_networks())
def test_a_yaml_names_class_names_that_fit(network):
    spaces = []
    for path in (ROOT / network / "configs").glob("*.yaml"):
        cfg = load_config(find_network(network).config, path)
        spaces += find_network(network).list_label_spaces(cfg)
    spaces = [space for space in spaces if space.builtin_names]
    for space in spaces:
        assert len(find_class_names(None, space.builtin_names, space.classes)) == space.classes
    assert spaces or not (ROOT / network / "tests" / "golden").is_dir()
