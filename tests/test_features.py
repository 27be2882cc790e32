"""Features: of golden cases, of files and engines, and scripts/extract_features.py."""

import base64
import csv
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mindspore import Parameter, Tensor
from PIL import Image

from scripts.analysis.activations import record_activations
from scripts.data.synthetic.pattern_images import PATTERNS, draw_image
from scripts.executors.process_pool import PROCESSES, Part
from scripts.executors.video_jobs import RECORDS, VideoJobs, lock_records
from scripts.prediction.features import FEATURES, UNLISTED, Source, read_source, write_features
from tests.golden_cases import find_case, load_case
from tests.helpers import assert_one_line_error, load_smoke_config, read_result, save_random_weights
from tests.test_predict import TINY, load_toy_config
from tests.toys import TOYS, build_toy
from utils.data.annotation_file import Record
from utils.files import ROOT
from utils.inference.model import build_model, load
from utils.networks import find_network
from utils.runtime import Runtime, eager_mode
from utils.tests.parity import make_clip
from utils.video.windows import split_into_windows
from utils.weights import checkpoint
from utils.weights.checkpoint_file import read
from utils.weights.description import describe

EXTRACT = "scripts/extract_features.py"
# network -> case, its activation that is the classifier's input, the classifier
CASES = {
    "resnet50": ("resnet50_small", "avgpool", "fc"),
    "tsm": ("tsm_r50_8f_small", "base_model.avgpool", "new_fc"),
    "x3d": ("x3d_s_small", "head.lin_5_relu", "head.projection"),
    "mvit_multi": ("mvit_v2_small", "norm", "head.projection"),
}


@pytest.mark.parametrize("network", CASES)
def test_features_equal_the_activation_that_the_original_recorded(network):
    """And the original's classifier maps them to the original's logits."""
    name, point, classifier = CASES[network]
    case = load_case(ROOT / network / "tests" / "golden" / f"{name}.json")
    net = find_case(network, case).build_model()
    clip = make_clip(case)
    with eager_mode():
        *outputs, features = (output.asnumpy() for output in net(clip, True))
        scores = net(clip)
    scores = scores if isinstance(scores, tuple) else (scores,)
    for output, score in zip(outputs, scores, strict=True):
        np.testing.assert_array_equal(output, score.asnumpy())
    recorded = case["eval"]["taps"][point]
    if network == "tsm":  # the frames of each clip
        frames = record_activations(net, ["base_model"], clip.asnumpy())["base_model"]
        np.testing.assert_allclose(features, frames.reshape(2, 8, -1).mean(1), rtol=1e-6, atol=1e-7)
        assert_recorded(frames, recorded)
    elif network == "mvit_multi":  # all tokens of each clip, the class token first
        tokens = record_activations(net, [point], clip.asnumpy())[point]
        np.testing.assert_array_equal(features, tokens[:, 0])
        assert_recorded(tokens, recorded)
        assert np.abs(features[0, :8] - recorded["first"]).max() < 1e-3 * recorded["std"]
    else:
        assert_recorded(features, recorded)
    cell = dict(net.cells_and_names())[classifier]
    raw = features @ cell.weight.asnumpy().T + cell.bias.asnumpy()
    expected = np.array(case["eval"]["logits"])
    assert np.abs(raw - expected).max() <= 1e-4 * np.ptp(expected)


def assert_recorded(values: np.ndarray, recorded: dict) -> None:
    """Within the limits of `assert_activations`."""
    assert values.size == np.prod(recorded["shape"])
    assert abs(values.mean() - recorded["mean"]) < 1e-4 * recorded["std"]
    assert abs(values.std() - recorded["std"]) < 1e-4 * recorded["std"]
    assert np.abs(values.reshape(-1)[:8] - recorded["first"]).max() < 1e-3 * recorded["std"]


def test_features_of_a_larger_clip_of_x3d_are_the_mean_over_its_positions():
    case = load_case(ROOT / "x3d" / "tests" / "golden" / "x3d_s_small.json")
    net = find_case("x3d", case).build_model()
    clip = make_clip(case["eval_large"])
    with eager_mode():
        features = net(clip, True)[-1].asnumpy()
    maps = record_activations(net, ["head.lin_5_relu"], clip.asnumpy())["head.lin_5_relu"]
    assert maps[0, 0].size > 1
    np.testing.assert_allclose(features, maps.reshape(*maps.shape[:2], -1).mean(2), rtol=1e-5)


@pytest.mark.parametrize("consensus", ["avg", "identity"])
@pytest.mark.parametrize("dropout", [0, 0.5])
def test_a_classifier_in_the_trunk_of_tsm_takes_the_same_features(dropout, consensus):
    net = build_toy("tsm", {**TOYS["tsm"][1], "dropout": dropout, "consensus": consensus}, "O0")
    clips = Tensor(np.random.RandomState(1).randint(0, 256, (2, 4, 3, 32, 32)).astype(np.uint8))
    with eager_mode():
        scores, features = (output.asnumpy() for output in net(clips, True))
    classifier = net.new_fc if dropout else net.base_model.fc
    raw = features @ classifier.weight.asnumpy().T + classifier.bias.asnumpy()
    scores = scores.mean(1) if consensus == "identity" else scores
    np.testing.assert_allclose(raw, scores, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def weights(tiny_args, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "net.ckpt"
    return save_random_weights(load_toy_config(tiny_args), path, "tsm")


@pytest.fixture
def arguments(weights, monkeypatch, tmp_path) -> list:
    """The checkpoint alone is enough, from any folder."""
    monkeypatch.chdir(tmp_path)
    return ["--checkpoint_path", weights]


def read_index(folder: Path) -> list[list[str]]:
    heading, *rows = csv.reader((folder / "index.csv").read_text().splitlines())
    assert heading == ["path", "start", "end", "label"]
    return rows


def read_both(folder: Path) -> tuple[bytes, bytes]:
    """The bytes of features.npy and index.csv, if there is no other file."""
    names = sorted(path.name for path in folder.iterdir())
    assert names == [".lock", "features.npy", "index.csv"]
    return (folder / "features.npy").read_bytes(), (folder / "index.csv").read_bytes()


def test_rows_are_means_over_the_views_of_an_evaluation(
    arguments, weights, tiny_args, data_root, run_here, tmp_path
):
    """For each video of the list, for each of its clips, and for each window."""
    cfg = load_toy_config(tiny_args)
    network = find_network("tsm")
    rows = network.build_eval_rows(cfg, Runtime())[0]
    model = build_model(network, cfg, weights)
    views = [rows[index][0] for index in range(len(rows.records))]  # (crops * clips, ...) each
    features = model.scorer.features
    expected = np.stack([[features(view[None])[0] for view in video] for video in views])
    lines = [line.rsplit(" ", 1) for line in (data_root / "test.txt").read_text().splitlines()]
    source = data_root / "test.txt"
    results = {}
    for per in ("video", "clip", "window"):
        out = tmp_path / per
        more = ["--window=0.5", "--step=0.25"] if per == "window" else []
        done = run_here(EXTRACT, *arguments, source, f"--per={per}", f"--out={out}", *more)
        result = read_result(done)
        results[per] = np.load(out / "features.npy", mmap_mode="r")
        assert isinstance(results[per], np.memmap)
        assert results[per].dtype == np.float32
        assert result["features"] == [*results[per].shape]
        assert (result["videos"], result["failed"], result["out"]) == (8, 0, str(out))
        names = [".lock", "features.npy", "index.csv"]
        assert sorted(path.name for path in out.iterdir()) == names
    np.testing.assert_allclose(results["video"], expected.mean(1), atol=1e-6)
    np.testing.assert_array_equal(results["video"][3], model.features(rows.records[3].path))
    assert [[row[0], row[3]] for row in read_index(tmp_path / "video")] == lines
    clips = expected.reshape(8, 3, 2, -1).mean(1)  # the views of TSM: 3 crops of 2 clips
    assert np.abs(clips[:, 0] - clips[:, 1]).max() > 1e-3
    np.testing.assert_allclose(results["clip"], clips.reshape(16, -1), atol=1e-6)
    twice = [row for row in lines for _ in "ab"]
    assert [row[::3] for row in read_index(tmp_path / "clip")] == twice
    windows = read_index(tmp_path / "window")
    spans = []
    for record in rows.records:
        with network.open_frames(cfg, record.path) as video:
            spans += [window.span for window in split_into_windows(video, 0.5, 0.25)]
    times = [[float(time) for time in row[1:3]] for row in windows]
    np.testing.assert_allclose(times, spans, atol=1e-3)
    assert len(windows) == len(results["window"]) > 16


def test_a_checkpoint_without_a_classifier_gives_the_same_features(data_root, run_here, tmp_path):
    small = ["model.first_width=8", "data.segments=2", "data.crop=32", "data.resize=40"]
    cfg = load_smoke_config("tsm", *small, "run.device=CPU")
    whole = save_random_weights(cfg, tmp_path / "whole.ckpt", "tsm")
    weights = {name: Parameter(Tensor(value)) for name, value in read(whole).items()}
    backbone = {name: weights[name] for name in weights if "base_model.fc." not in name}
    path = tmp_path / "backbone.ckpt"
    checkpoint.save(path, backbone, description=describe("tsm", cfg))
    assert len(backbone) == len(weights) - 2
    video = str(data_root / "videos" / "test" / "left_000.mp4")
    model = load(path)
    np.testing.assert_allclose(model.features(video), load(whole).features(video), rtol=1e-5)
    with pytest.raises(ValueError, match=f"^{path} has no classifier"):
        model.predict(video)
    done = run_here("scripts/predict.py", "--checkpoint_path", path, video)
    assert_one_line_error(done, "backbone.ckpt has no classifier", "train.new_head=true")
    target = ["--format=mindir", f"--target={tmp_path / 'a.mindir'}"]
    done = run_here("tsm/export.py", "--checkpoint_path", path, *target)
    assert_one_line_error(done, "backbone.ckpt", "base_model.fc.weight", "train.new_head=true")


class CountedJobs:
    """Replaces a network: a row for each video; stops with an error after `limit` of them."""

    def __init__(self, limit: int = 1000):
        self.limit = limit
        self.done: list[str] = []

    def run_jobs(self, jobs: list[Record]):
        for job in jobs:
            if len(self.done) == self.limit:
                raise RuntimeError("killed")
            self.done.append(job.path)
            if job.path.endswith("broken.mp4"):
                yield job, {"video": job.path, "error": f"{job.path}: it is broken"}
                continue
            values = np.full((2, 3), len(job.path) / 8, "<f4")
            data = base64.b64encode(values.tobytes()).decode()
            times = [["0.000", "1.000"], ["1.000", "2.000"]]
            yield job, {"times": times, "width": 3, "features": data}


@pytest.fixture
def source(tmp_path) -> Source:
    """Seven videos; the last one is the second one again, with another label."""
    (tmp_path / "in").mkdir()
    (tmp_path / "net.ckpt").write_text("weights")
    paths = [tmp_path / "in" / f"{'x' * k}.mp4" for k in (4, 2, 3, 1, 6, 5)]
    for path in paths:
        path.write_text("video")
    lines = enumerate([*paths, paths[1]], 1)
    return Source([Record(str(p), None, k, k) for k, p in lines], str(tmp_path / "in"))


@pytest.fixture
def extract(source, tmp_path, monkeypatch):
    """Writes the features of the source, or of a part, as the command; returns the paths read."""

    def extract(out: str, limit: int = 1000, options: str = "", part=None, videos=source) -> list:
        counted = CountedJobs(limit)
        monkeypatch.setattr(VideoJobs, "build_runner", lambda _: counted)
        work = VideoJobs("tsm", None, str(tmp_path / "net.ckpt"), None, options)
        jobs = [record._replace(label=0, line=0) for record in videos.records]
        with lock_records(tmp_path / out, FEATURES, part):
            records = work.compute_records(jobs, PROCESSES, tmp_path / out, FEATURES, part)
            if part:
                list(records)
            else:
                write_features(videos, records, tmp_path / out)
                shutil.rmtree(tmp_path / out / RECORDS.format(FEATURES))
        return counted.done

    return extract


def test_rows_are_in_the_order_of_the_source(source, extract, tmp_path):
    extract("out")
    paths = [Path(record.path).name for record in source.records for _ in range(2)]
    assert [row[0] for row in read_index(tmp_path / "out")] == paths
    assert [row[3] for row in read_index(tmp_path / "out")] == [*"11223344556677"]
    expected = [len(record.path) / 8 for record in source.records for _ in range(2)]
    values = np.load(tmp_path / "out" / "features.npy")
    np.testing.assert_array_equal(values, np.repeat(np.float32(expected)[:, None], 3, axis=1))


def test_a_command_that_was_stopped_computes_no_video_twice(source, extract, tmp_path):
    """Nor does it leave an incomplete array. The seventh line names the second video again."""
    extract("whole")
    with pytest.raises(RuntimeError, match="killed"):
        extract("out", limit=4)
    records = tmp_path / "out" / "features.records"
    assert {path.name for path in records.parent.iterdir()} == {records.name, ".lock"}
    assert extract("out") == [record.path for record in source.records[4:6]]
    assert read_both(tmp_path / "out") == read_both(tmp_path / "whole")


def test_other_settings_weights_and_videos_are_computed_again(source, extract, tmp_path):
    half = [record.path for record in source.records[::2]]
    run = partial(extract, "out", part=Part(1, 2))
    assert run() == half
    assert run() == []
    assert run(options="b") == half
    (tmp_path / "net.ckpt").write_text("others")
    assert run(options="b") == half
    Path(source.records[2].path).write_text("another video")
    assert run(options="b") == [source.records[2].path]


def test_parts_are_joined(source, extract, tmp_path):
    """The last command also computes what a part has left."""
    extract("whole")
    extract("out", part=Part(2, 3))
    with pytest.raises(RuntimeError, match="killed"):
        extract("out", limit=1, part=Part(3, 3))
    extract("out", part=Part(1, 3))
    assert extract("out") == [source.records[5].path]
    assert read_both(tmp_path / "out") == read_both(tmp_path / "whole")


def test_a_second_process_in_one_folder_is_refused(tmp_path):
    """Parts may run at the same time, but no joining."""
    with lock_records(tmp_path, FEATURES, Part(1, 2)), pytest.raises(ValueError, match="--out"):
        lock_records(tmp_path, FEATURES, None)
    with lock_records(tmp_path, FEATURES, None), pytest.raises(ValueError, match="--out"):
        lock_records(tmp_path, FEATURES, Part(1, 2))
    with lock_records(tmp_path, FEATURES, Part(1, 2)):
        lock_records(tmp_path, FEATURES, Part(2, 2)).close()


def test_a_table_is_missing_while_the_array_is_of_another_run(source, extract, tmp_path):
    """A process that is killed between both files leaves no pair of two runs."""
    out = tmp_path / "out"
    two = Source(source.records[:2])
    extract("out")
    replace = os.replace

    def stop(source, target) -> None:
        replace(source, target)
        if Path(target).name == "features.npy":
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(RuntimeError, match="killed"):
            extract("out", videos=two)
    assert not (out / "index.csv").exists()
    assert extract("out", videos=two) == []
    assert len(read_index(out)) == len(np.load(out / "features.npy")) == 4


def test_a_source_is_one_list_or_videos_and_folders(data_root, tmp_path):
    tsm = find_network("tsm")
    cfg = load_smoke_config("tsm", f"data.root={data_root}")
    sources = [str(data_root / "test.txt")]
    with pytest.raises(ValueError, match="SOURCE: .*test.txt"):
        read_source(tsm, cfg, [*sources, "a.mp4"])
    images = find_network("resnet50")
    with pytest.raises(ValueError, match="SOURCE: .*images"):
        read_source(images, load_smoke_config("resnet50"), sources)
    folder = read_source(tsm, cfg, [str(data_root / "videos" / "test")])
    assert [record.label for record in folder.records] == [UNLISTED] * 8
    other = tmp_path / "own.txt"  # of a data set with more classes, below the same data.root
    lines = (data_root / "test.txt").read_text().splitlines()
    other.write_text("".join(f"{line}00\n" for line in lines))
    labels = [record.label for record in read_source(tsm, cfg, [str(other)]).records]
    own = read_source(tsm, cfg, sources)
    assert own.root == str(data_root)
    assert labels == [100 * record.label for record in own.records]


def test_images_have_rows(run_here, tmp_path):
    """An image has no times; a damaged one is named, and the exit status is 1."""
    for name in PATTERNS[:3]:
        image = Image.fromarray(draw_image(name, np.random.RandomState(0))).resize((80, 61))
        (tmp_path / "in").mkdir(exist_ok=True)
        image.save(tmp_path / "in" / f"{name}.png")
    damaged = tmp_path / "in" / "zz.png"
    damaged.write_bytes(b"no image")
    settings = [f"data.root={tmp_path}", "run.engine=mindspore", *TINY["resnet50"].split()]
    cfg = load_smoke_config("resnet50", *settings)
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", "resnet50")
    words = ["--checkpoint_path", weights, tmp_path / "in", f"--out={tmp_path / 'out'}"]
    done = run_here(EXTRACT, *words, "--run.engine=mindspore")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["features"][0] == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert str(damaged) in line
    paths = [str(tmp_path / "in" / f"{name}.png") for name in sorted(PATTERNS[:3])]
    assert read_index(tmp_path / "out") == [[path, "", "", ""] for path in paths]
    assert np.ptp(np.load(tmp_path / "out" / "features.npy"), axis=0).max() > 1e-3


def test_the_example_of_the_document_prints_the_neighbours(
    source, extract, tmp_path, monkeypatch, capsys
):
    code = (ROOT / "docs" / "features.md").read_text().partition("```python\n")[2].split("```")[0]
    monkeypatch.chdir(tmp_path)
    extract("out/features")
    capsys.readouterr()
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    names = {Path(record.path).name for record in source.records}
    assert {line.split()[0] for line in lines} <= names
