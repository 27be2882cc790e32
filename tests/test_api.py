"""utils/inference/model.py: predictions, features, errors; the examples of docs/python.md."""

import itertools
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY
from tests.helpers import FileModel, NoNetwork, load_smoke_config, save_random_weights
from tests.numbered_videos import write_numbered_video
from tests.test_predict import TINY as SMALL
from tests.test_predict import NumberReader
from utils.evaluate.label_space import softmax
from utils.evaluate.scorer import video_scores
from utils.files import ROOT
from utils.inference import model as api
from utils.load_config import find_recipes, load_config, resolve_yaml
from utils.networks import find_network
from utils.runtime import Runtime
from utils.video.decoders import open_video
from utils.video.reader import VideoError

TOYS = {name: ["run.engine=mindspore", *words.split()] for name, words in SMALL.items()}
TOYS["tsm"] = [word[2:] for word in TINY]
FRAMES = np.random.RandomState(0).randint(0, 256, (20, 48, 64, 3)).astype(np.uint8)


def load_toy(toy: str, folder: Path, *more: str, **options) -> api.Model:
    """A toy network whose random weights are written into `folder`."""
    settings = ["run.device=CPU", f"data.root={folder}", *TOYS[toy], *more]
    recipe = resolve_yaml(Path(options.pop("recipe", f"{toy}_smoke")))
    checkpoint = folder / options.pop("checkpoint", f"{toy}.ckpt")
    if not checkpoint.exists():
        cfg = load_config(find_network(toy).config, recipe, settings)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        save_random_weights(cfg, checkpoint, toy)
    return api.load(recipe, checkpoint, settings=settings, **options)


@pytest.fixture(scope="module")
def model(data_root, tmp_path_factory) -> api.Model:
    folder = tmp_path_factory.mktemp("tsm")
    for name in ("labels.txt", "test.txt", "videos"):
        (folder / name).symlink_to(data_root / name)
    return load_toy("tsm", folder, "eval.batch=1")


def test_a_prediction_equals_that_of_an_evaluation_bit_for_bit(model):
    """Of a path, a string, and frames in memory."""
    rows = model.network.build_eval_rows(model.cfg, Runtime())[0]
    for index in (0, 5):
        views, *_ = rows[index]
        path = rows.records[rows.samples_of_rank[index]].path
        scores = video_scores(model.scorer, views[None], 1)[0].astype(np.float64)
        ranking = model.predict(path, top=100)
        assert dict(ranking) == dict(zip(model.names, softmax(scores).tolist()))
        assert [p for _, p in ranking] == sorted((p for _, p in ranking), reverse=True)
        with open_video(path) as source:
            frames = source.frames(range(len(source)))
        assert model.predict(frames, top=100, fps=source.fps) == ranking
        assert model.predict(Path(path), top=2, threshold=np.float32(0)) == ranking[:2]
    assert len({p for _, p in ranking}) == len(model.names) == 8
    assert ranking.top(3) == ranking[:3]
    assert ranking.mean[0][model.names.index(ranking[0][0])] == ranking[0][1]
    assert (ranking.windows.shape, ranking.probabilities[0].shape) == ((1, 2), (1, 8))


def test_a_network_of_several_data_sets_gives_a_ranking_of_each(tmp_path, videos):
    model = load_toy("mvit_multi", tmp_path)
    result = model.predict(videos[0], top=3)
    assert list(result) == list(model.names) == [dataset.name for dataset in model.cfg.data.sets]
    for name, ranking in result.items():
        assert len(ranking) == 3
        assert {label for label, _ in ranking} <= set(model.names[name])
    assert model.features(videos[0]).shape == model.features(make_clips(model))[0].shape
    assert model.scores(make_clips(model)).shape == (3, sum(map(len, model.names.values())))


def make_clips(model: api.Model, count: int = 3) -> np.ndarray:
    shape = (count, *model.network.get_input_shape(model.cfg))
    return np.random.RandomState(2).randint(0, 256, shape).astype(np.uint8)


def test_a_network_for_images_takes_one_image(tmp_path):
    model = load_toy("resnet50", tmp_path)
    Image.fromarray(FRAMES[0]).save(tmp_path / "image.png")
    expected = model.predict(tmp_path / "image.png")
    assert [label for label, _ in sorted(expected)] == model.names == ["0", "1", "2", "3"]
    assert model.predict(FRAMES[0]) == model.predict(FRAMES[:1]) == expected
    with pytest.raises(ValueError, match="one image"):
        model.predict(FRAMES)


WRONG = [
    (FRAMES / 255.0, {}, "uint8"),
    (FRAMES.transpose(0, 3, 1, 2), {}, "channels last"),
    (FRAMES[0], {}, "takes a video"),
    ("missing.mp4", {}, "missing.mp4"),
    (FRAMES, {"top": 0}, "top"),
    (FRAMES, {"fps": float("nan")}, "fps"),
    (FRAMES, {"window": 1e16}, "window"),
    (FRAMES, {"threshold": np.float32(1.5)}, "threshold"),
]


@pytest.mark.parametrize(("source", "options", "message"), WRONG)
def test_a_wrong_argument_of_a_prediction_is_one_line(model, source, options, message):
    with pytest.raises(ValueError, match=message) as info:
        model.predict(source, **options)
    assert "\n" not in str(info.value)


def test_scores_and_features_of_clips_are_computed_clip_by_clip(model, videos):
    clips = make_clips(model)
    scores = model.scores(clips)
    features = model.features(clips)
    assert (scores.shape, scores.dtype, features.dtype) == ((3, 8), np.float32, np.float32)
    np.testing.assert_array_equal(model.scores(clips[1:2]), scores[1:2])
    np.testing.assert_array_equal(model.features(clips[1:]), features[1:])
    ((_, (views,)),) = model.read(videos[0])
    expected = model.features(views).mean(axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(model.features(videos[0]), expected)
    assert np.ptp(expected) > 0
    for wrong in (clips / 2, clips[0], clips[:, :1], clips[:0]):
        for function in (model.scores, model.features):
            with pytest.raises(ValueError, match=r"clips must be uint8 \(N, 2, 3, H, W\), not "):
                function(wrong)
    with pytest.raises(VideoError, match="missing.mp4"):
        model.features("missing.mp4")


class NumberedModel(FileModel):
    """Predicts the numbers of the first frames; counts the videos that are open."""

    def __init__(self):
        head = NumberReader(1)
        head.predict_probs = lambda _, views: np.array([views[0] / 1000, 1 - views[0] / 1000])
        super().__init__(NoNetwork(), [head])
        self.opened = []

    def open(self, source, fps=None):
        self.opened.append(source)
        return super().open(source)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> list:
    """Six videos, of which the third is damaged."""
    paths = [tmp_path_factory.mktemp("numbered") / f"{number}.mp4" for number in range(6)]
    for path in paths:
        write_numbered_video(path, frames=24, width=64, height=48, rate=8)
    paths[2].write_bytes(paths[2].read_bytes()[:500])
    return paths


@pytest.mark.parametrize("workers", [1, 2, 9])
@pytest.mark.parametrize("window", [None, 1.0])
def test_many_predictions_equal_single_ones_in_the_order_of_the_paths(numbered, workers, window):
    model = NumberedModel()
    results = [*model.predict_many(iter(numbered), workers=workers, window=window)]
    assert [path for path, _ in results] == numbered
    for path, result in results:
        if path == numbered[2]:
            assert isinstance(result, VideoError)
            assert str(path) in str(result)
        else:
            assert result == model.predict(path, window=window)


def test_many_predictions_decode_few_videos_ahead_and_may_stop_early(numbered):
    """Each path is taken when a worker is free for it; no thread is left."""
    model = NumberedModel()
    taken = []
    paths = (taken.append(path) or path for path in itertools.cycle(numbered[:2]))
    threads = threading.active_count()
    results = model.predict_many(paths, workers=2)
    assert taken == []
    next(results)
    assert len(taken) == 3
    results.close()
    assert threading.active_count() == threads
    assert len(model.opened) <= 3


def test_threads_take_turns_with_the_networks_of_a_process(numbered):
    model = NumberedModel()
    other = NumberedModel()
    busy = threading.Lock()

    def predict_probs(*_) -> np.ndarray:
        assert busy.acquire(blocking=False)
        time.sleep(0.01)
        busy.release()
        return np.array([0.25, 0.75])

    for each in (model, other):
        each.heads[0].predict_probs = predict_probs
    with ThreadPoolExecutor(4) as pool:
        predictions = [pool.submit(m.predict, numbered[0]) for m in (model, other) * 6]
    assert {prediction.result()[0][1] for prediction in predictions} == {0.75}


def test_a_batch_in_memory_is_as_many_videos(model, videos):
    batch = np.stack([FRAMES, FRAMES[::-1]])
    results = [result for _, result in model.predict_many(batch, fps=30)]
    assert results == [model.predict(frames, fps=30) for frames in batch]
    assert results[0] != results[1]
    (_, vector), (path, error) = model.features_many([videos[0], "missing.mp4"])
    np.testing.assert_array_equal(vector, model.features(videos[0]))
    assert (path, type(error)) == ("missing.mp4", VideoError)


WRONG_LOADS = [
    ("my/tsm.yaml", {}, "my/tsm.yaml"),
    ("tsm_smoke", {"settings": {"eval.clip": 2}}, "eval.clip; nearest: clips"),
    ("tsm_smoke", {"network": "tms"}, "network tms; nearest: tsm"),
    ("tsm_smoke", {}, "none.ckpt"),
]


@pytest.mark.parametrize(("recipe", "options", "message"), WRONG_LOADS)
def test_a_wrong_argument_of_load_is_one_line(recipe, options, message):
    with pytest.raises(ValueError, match=message) as info:
        api.load(recipe, "none.ckpt", **options)
    assert "\n" not in str(info.value)


def test_a_config_file_elsewhere_needs_the_name_of_its_network(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(find_recipes()["tsm_smoke"].read_text())
    with pytest.raises(ValueError, match="--network=mvit_multi"):
        api.load(recipe, "a.ckpt")
    model = load_toy("tsm", tmp_path, "eval.clips=1", recipe=recipe, network="tsm")
    assert (model.heads[0].clips, model.names[0]) == (1, "0")


def test_settings_of_any_kind_are_those_of_the_command_line():
    values = {"eval.clips": 2, "data.flip": False, "data.scales": (1, 0.5), "run.out": Path("a b")}
    lines = ["eval.clips=2", "data.flip=false", "data.scales=[1, 0.5]", 'run.out="a b"']
    assert api.list_overrides({**values, "run.amp": "O0"}) == [*lines, "run.amp=O0"]


def test_the_program_keeps_its_mode_and_its_random_numbers(model, videos):
    """Two models alternate; MindSpore's own default is to run operator by operator."""
    other = load_toy("tsm", Path(model.scorer.name).parent, "eval.clips=1")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        np.random.seed(5)
        expected = np.random.rand()
        np.random.seed(5)
        load_toy("tsm", Path(model.scorer.name).parent)
        first = model.predict(videos[0])
        assert other.predict(videos[0]) != first
        assert model.predict(videos[0]) == first
        assert np.random.rand() == expected
        assert ms.get_context("mode") == ms.PYNATIVE_MODE
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


EXAMPLES = {"tsm": ["model.arch=resnet18"], "x3d": ["eval.clips=1"]}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def run_blocks(monkeypatch, videos, tmp_path):
    """Runs the Python of a document with a function `load`; returns its names."""

    def run(document: str, load) -> dict:
        module = type(sys)("mindspore_video_zoo")
        vars(module).update(load=load, list_recipes=api.list_recipes)
        monkeypatch.setitem(sys.modules, "mindspore_video_zoo", module)
        names: dict = {}
        for block in BLOCK.findall((ROOT / document).read_text()):
            exec(block, names)
        return names

    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.mp4").symlink_to(videos[0])
    return run


def test_the_lines_of_the_readme_run(model, data_root, run_blocks, tmp_path, capsys):
    """With the toy network in the place of the quickstart's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "synthetic").symlink_to(data_root)
    names = []
    run_blocks("README.md", lambda *words: names.extend(words) or model)
    assert names == ["out/quickstart_tsm/epoch_014.ckpt"]
    expected = model.predict(data_root / "videos/test/left_000.mp4")
    assert capsys.readouterr().out == f"{expected}\n"


def test_the_examples_of_the_page_run(run_blocks, tmp_path, capsys):
    """In one program, with toy checkpoints, which describe themselves, and short videos."""

    def load(checkpoint: str, **options):
        network = Path(checkpoint).stem.split("_")[0]
        more = [*TOYS[network], *EXAMPLES[network], "model.num_classes=8"]
        (tmp_path / checkpoint).parent.mkdir(exist_ok=True)
        save_random_weights(load_smoke_config(network, *more), tmp_path / checkpoint, network)
        return api.load(checkpoint, **options)

    names = run_blocks("docs/python.md", load)
    lines = capsys.readouterr().out.splitlines()
    streamed = [line for line in lines if " s: " in line]
    assert streamed
    assert len(lines) == 8 + len(streamed)
    assert lines[-1].startswith("skipped: cannot read missing.mp4")
    assert len(names["best"]) == 1
    assert names["scores"].shape == (2, 8)
    assert names["features"].shape[1:] == names["vector"].shape
