"""utils/inference/cam.py against PyTorch, and its pictures."""

import json
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.golden_cases import find_case, generate_input, load_case
from tests.helpers import find_smoke_yaml, load_smoke_config, run_script, save_random_weights
from tests.toy_recipes import draw_samples, list_toy_settings, load_toy_config
from utils.files import ROOT
from utils.inference.cam import GradCam, scale_maps
from utils.inference.model import build_model
from utils.networks import find_network, list_networks
from utils.nn.layers import CamCells
from utils.tests.parity import mark_slow_except, without_values

RECORDED = json.loads((ROOT / "tests/golden/cam.json").read_text())


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: Path(record["case"]).stem)
def test_heat_maps_equal_those_of_pytorch(record):
    network = find_network(record["case"].split("/")[0])
    net = find_case(network.name, load_case(ROOT / record["case"])).build_model()
    clip = generate_input(record["input_seed"], record["input_shape"])
    maps = GradCam(net, ()).compute(clip, record["head"], record["label"])
    expected = np.array(record["maps"])
    assert np.ptp(expected) > 0.2 * expected.max(), "a map without a pattern shows nothing"
    np.testing.assert_allclose(maps, expected, atol=1e-4 * expected.max())
    frames = {"resnet50": 1, "tsm": clip.shape[0]}.get(network.name, clip.shape[1])
    scaled = scale_maps(maps, (frames, *clip.shape[-2:]))
    assert scaled.max() == 1
    assert scaled.sum() == pytest.approx(record["scaled"]["sum"], rel=1e-3)
    np.testing.assert_allclose(scaled[0].diagonal(), record["scaled"]["diagonal"], atol=1e-3)


@pytest.mark.slow
def test_the_recorded_heat_maps_are_the_results_of_the_torch_networks():
    pytest.importorskip("torch")
    done = run_script("tests/golden/cam_reference.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


class Corner(nn.Cell):
    """Class 1 counts the first channel, class 0 the second; scores are probabilities."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()
        self.scores = nn.Dense(2, 2, Tensor(np.float32([[0, 1], [1, 0]])), has_bias=False)

    def construct(self, x):
        return ops.softmax(self.scores(self.layer(x).mean((2, 3))), -1)

    def find_cam_cells(self) -> CamCells:
        return CamCells(self.layer, scores=[self.scores], arrange=np.asarray)


def test_a_heat_map_shows_where_the_class_gets_its_score():
    net = Corner().set_train(False)
    clip = np.zeros((2, 3, 3), np.float32)
    clip[0, 0, 0] = 9  # for class 1
    clip[1, 2, 2] = 9
    clip[1, 0, 1] = -9  # against class 0
    heat_maps = GradCam(net, ())
    for label, (y, x) in {1: (0, 0), 0: (2, 2)}.items():
        maps = heat_maps.compute(clip, 0, label)
        assert maps.shape == (1, 3, 3)
        assert maps[0, y, x] == pytest.approx(9 / 9)
        assert np.count_nonzero(maps) == 1


@without_values
@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("tsm", {"arch": "resnet18", "dropout": 0.0}),
        ("tsm", {"arch": "mobilenetv2", "dropout": 0.5}),
        ("tsm", {"arch": "mobilenetv2", "dropout": 0.0}),
        ("resnet50", {"arch": "se_resnet50", "mean": (0, 0, 0), "std": (1, 1, 1)}),
    ],
)
def test_every_architecture_has_a_layer_and_raw_scores(network, settings):
    segments = {"segments": 2} if network == "tsm" else {"padding": "same"}
    net = find_network(network).build_model(num_classes=7, **settings, **segments)
    cells = net.find_cam_cells()
    assert cells.scores[0].weight.shape[0] == 7
    assert {cells.layer, *cells.scores} <= {cell for _, cell in net.cells_and_names()}


def test_another_class_has_another_heat_map(tmp_path):
    cfg = load_toy_config("resnet50", "run.engine=mindspore")
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", "resnet50")
    model = build_model(find_network("resnet50"), cfg, weights)
    cam = GradCam(model.load_cell(), model.heads)
    view = np.random.RandomState(0).randint(0, 256, (1, 3, 64, 96), np.uint8)
    best, label = cam.overlay(view, head=0, probabilities=np.array([0.1, 0.2, 0.4, 0.3]))
    assert (label, best.shape) == (2, (1, 1, 64, 96, 3))
    other, label = cam.overlay(view, head=0, probabilities=np.array([0.4, 0.2, 0.1, 0.3]))
    assert label == 0
    assert np.ptp(best.astype(int) - other) > 20


@pytest.mark.parametrize("network", mark_slow_except(list_networks(), "tsm", "resnet50"))
def test_a_prediction_names_the_files_of_its_heat_maps(network, run_here, tmp_path):
    """Encoded videos, an image for resnet50; run.engine openvino computes the scores of tsm."""
    sample = draw_samples(network, tmp_path / "data")
    settings = [f"data.root={tmp_path / 'data'}", *list_toy_settings(network)]
    cfg = load_smoke_config(network, *settings)
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", network)
    engine = "auto" if network == "tsm" else "mindspore"
    words = ["--config_path", find_smoke_yaml(network), *(f"--{word}" for word in settings)]
    words += [f"--run.engine={engine}", "--checkpoint_path", weights, "--out", tmp_path / "out"]
    done = run_here("scripts/predict.py", *words, "--cam", sample)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout.splitlines()[-1])["predictions"]
    heads = find_network(network).list_label_spaces(cfg)
    videos = [f"{sample.stem}_cam{'_' if head.name else ''}{head.name}.mp4" for head in heads]
    names = [f"{sample.stem}_cam.png", *(videos if network != "resnet50" else [])]
    assert [Path(path).name for path in record["cam"]] == names
    plain = cv2.imread(record["picture"])
    hot = cv2.imread(record["cam"][0])
    assert hot.shape == plain.shape
    assert np.abs(hot.astype(int) - plain).max() > 50
    for path, head in zip(record["cam"][1:], heads):
        with av.open(path) as container:
            assert container.streams.video[0].codec_context.name == "h264"
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(frames) == head.clips * 4
        assert np.ptp(frames[0]) > 20
