"""`model.labels: multi`: settings, targets, PyTorch twins, and whole trainings on real videos."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor
from PIL import Image

from scripts.analysis.activations import relative_error, set_weights
from tests import golden_cases as golden
from tests.helpers import (
    find_smoke_yaml,
    load_smoke_config,
    read_result,
    read_rows,
)
from tests.test_predict import load_toy_config
from tests.test_torch_twins import randomize_weights
from utils.data.sampler import TrainSampler
from utils.evaluate.metrics import compute_metrics
from utils.inference import model as api
from utils.networks import find_network
from utils.runtime import Runtime
from utils.train import optimizers
from utils.train.plan import compute_class_weights
from utils.weights.convert import convert, read_source

NETWORKS = ("tsm", "x3d", "resnet50")
MULTI = {name: ["model.labels=multi"] for name in NETWORKS}
MULTI["resnet50"] += ["data.source=list", "data.augment=crop", "train.smoothing=0"]
MULTI["resnet50"] += ["data.mixup=0", "data.cutmix=0"]


@pytest.mark.parametrize(
    ("network", "setting", "name"),
    [
        ("tsm", "train.class_weights=[1,2]", "train.class_weights"),
        ("tsm", "model.before_softmax=false", "model.before_softmax"),
        ("tsm", "model.consensus=identity", "model.before_softmax"),
        ("resnet50", "data.source=folder", "data.source"),
        ("resnet50", "train.smoothing=0.1", "train.smoothing"),
        ("resnet50", "data.mixup=0.2", "data.mixup"),
        ("mvit_multi", "model.labels=multi", "unknown setting model.labels"),
    ],
)
def test_a_setting_of_one_label_is_refused(network, setting, name):
    with pytest.raises(ValueError, match=re.escape(name)):
        load_smoke_config(network, *MULTI.get(network, ()), setting)


# The labels of the synthetic motions: moves, to the left, to the right, changes its size.
NAMES = ("moves", "to the left", "to the right", "changes size")
LABELS = {"left": "0,1", "right": "0,2", "up": "0", "down": "0", "grow": "3", "shrink": "3"}


def write_lists(root: Path, folder: Path) -> Path:
    """Lists of several labels for the videos of `root`, in a folder of their own."""
    folder.mkdir(parents=True)
    for name in ("train.txt", "test.txt"):
        lines = []
        for line in (root / name).read_text().splitlines():
            path = line.split(" ")[0]
            motion = Path(path).stem.split("_")[0]
            lines.append(f"{path} {LABELS.get(motion, '-')}\n")
        (folder / name).write_text("".join(lines))
    (folder / "labels.txt").write_text("\n".join(NAMES) + "\n")
    return folder


@pytest.fixture(scope="module")
def multi_args(tiny_args, data_root, tmp_path_factory) -> list:
    folder = write_lists(data_root, tmp_path_factory.mktemp("multi") / "lists")
    lists = [f"--data.train_list={folder}/train.txt", f"--data.test_list={folder}/test.txt"]
    settings = ["--model.labels=multi", "--model.num_classes=4", "--data.swap_labels=[[1,2]]"]
    return [*tiny_args, *lists, *settings]


def test_targets_of_training_and_test_have_all_labels(multi_args):
    cfg = load_toy_config(multi_args, ["--train.class_weights=balanced"])
    network = find_network("tsm")
    whole = network.read_records(load_toy_config(multi_args), "train")
    sampler = network.build_train_sampler(cfg, whole, Runtime())
    rows = network.train_rows(whole, cfg=cfg, sampler=sampler, epochs=20, skip=0)
    seen = set()
    for index in range(30):
        clip, target = rows[index]
        sample = whole[sampler.sample_at(index)[0]]
        labels = tuple(np.flatnonzero(target).tolist())
        mirrored = {(0, 1): (0, 2), (0, 2): (0, 1)}.get(sample.label, sample.label)
        assert labels in (sample.label, mirrored)
        seen.add((sample.label, labels))
    assert ((0, 1), (0, 2)) in seen, "no clip was mirrored"
    assert (target.dtype, target.shape) == (np.float32, (4,))
    # 24 videos: 12 move, 3 of them to each side, 6 change their size.
    assert compute_class_weights(cfg, sampler) == ((1.0, 7.0, 7.0, 3.0),)
    tests = network.build_eval_rows(cfg, Runtime())[0]
    assert tests[0][1].tolist() == [float(k in tests.records[0].label) for k in range(4)]
    assert tests.blank()[1].tolist() == [0.0] * 4


def test_balanced_weights_need_a_video_with_and_one_without_each_class():
    cfg = load_smoke_config("tsm", *MULTI["tsm"], "train.class_weights=balanced")
    for count, message in ((0, "class 7 has no training video"), (9, "all training videos have")):
        positives = np.array([1] * 7 + [count])
        sampler = TrainSampler(9, batch=1, rank=0, size=1, seed=0, class_samples=[positives])
        with pytest.raises(ValueError, match=message):
            compute_class_weights(cfg, sampler)


def test_images_of_a_list_have_all_labels(tmp_path):
    for k in range(4):
        Image.fromarray(np.full((40, 48, 3), 60 * k, np.uint8)).save(tmp_path / f"{k}.png")
    (tmp_path / "list.txt").write_text("0.png 1,3\n1.png 0\n2.png -\n3.png 1,2\n")
    lists = [f"data.root={tmp_path}", "data.train=list.txt", "data.test=list.txt"]
    sizes = ["data.crop=32", "data.resize=40", "model.num_classes=5", "data.batch=2"]
    settings = [*MULTI["resnet50"], *lists, *sizes]
    cfg = load_smoke_config("resnet50", *settings)
    network = find_network("resnet50")
    images = network.read_records(cfg, "train")
    assert images.list_names() == ["0.png", "1.png", "2.png", "3.png"]
    sampler = network.build_train_sampler(cfg, images, Runtime())
    rows = network.train_rows(images, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    for index in range(4):
        _, target = rows[index]
        label = images[sampler.sample_at(index)[0]].label
        assert tuple(np.flatnonzero(target).tolist()) == label
    tests = network.build_eval_rows(cfg, Runtime())[0]
    assert tests[0][1].tolist() == [0, 1, 0, 1, 0]
    assert network.build_targets(cfg, np.array([2])).tolist() == [[0, 0, 1, 0, 0]]
    cfg = load_smoke_config("resnet50", *settings, "train.class_weights=balanced")
    sampler = network.build_train_sampler(cfg, images, Runtime())
    assert sampler.class_samples[0].tolist() == [1, 2, 1, 1, 0]


TOY = {
    "tsm": ["model.first_width=8", "data.segments=2", "data.crop=32", "data.resize=40"],
    "x3d": ["data.scales=[32,36]", "data.frames=4", "data.crop=32", "model.depth_factor=0.4"],
    "resnet50": ["data.crop=64", "data.resize=64", "model.arch=resnet18", "model.first_width=8"],
}
WEIGHTS = (0.5, 3.0, 1.0, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_loss_gradients_and_five_updates_are_those_of_a_torch_twin(network, tmp_path):
    torch = pytest.importorskip("torch")
    cfg = load_smoke_config(network, *MULTI[network], *TOY[network], "model.num_classes=4",
                            *([] if network == "resnet50" else ["model.dropout=0",
                            "data.swap_labels=[]"]))  # fmt: skip
    ours = find_network(network)
    arguments = cfg.model_arguments()
    torch.manual_seed(0)
    twin = importlib.import_module(f"benchmarks.torch.{network}").build_network(**arguments)
    randomize_weights(torch, twin)

    def convert_arrays(arrays: dict) -> dict:
        state = {name: torch.as_tensor(value) for name, value in arrays.items()}
        torch.save(state, tmp_path / "twin.pth")
        return convert(read_source(tmp_path / "twin.pth").arrays, shapes, ours).arrays

    net = ours.build_model(**arguments).set_train(True)
    shapes = golden.get_shapes(net)
    set_weights(net, convert_arrays(twin.state_dict()))
    rng = np.random.RandomState(0)
    clips = rng.randint(0, 256, (4, *ours.get_input_shape(cfg))).astype(np.uint8)
    targets = (rng.rand(4, 4) < 0.4).astype(np.float32)
    weights = net.trainable_params()
    groups = [{"params": weights, "lr": np.full(golden.UPDATES, 0.01), "weight_decay": 0.0}]
    loss = importlib.import_module(f"{network}.loss").build_loss(cfg, WEIGHTS)
    step = golden.build_train_step(net, loss, optimizers.SGD(weights, groups, 0.9))
    inputs = (Tensor(clips), Tensor(targets))

    twin.train()
    torch_loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHTS))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    for update in range(golden.UPDATES):
        if update == 0:
            statistics = {k: v.asnumpy().copy() for k, v in step.state().items() if "moving_" in k}
            value, _, grads = step.backward(*inputs)
            for name, before in statistics.items():
                step.state()[name].set_data(Tensor(before))
        optimizer.zero_grad()
        expected = torch_loss(twin(torch.from_numpy(clips)), torch.from_numpy(targets))
        expected.backward()
        if update == 0:
            np.testing.assert_allclose(float(value), expected.item(), rtol=1e-5)
            blank = {k: torch.zeros_like(v) for k, v in twin.state_dict().items()}
            blank.update((k, p.grad) for k, p in twin.named_parameters())
            theirs = convert_arrays(blank)
            for weight, grad in zip(weights, grads):
                error = relative_error(grad.asnumpy(), theirs[weight.name])
                assert error < 2e-3 or np.abs(theirs[weight.name]).max() < 1e-6, weight.name
        np.testing.assert_allclose(step(*inputs).asnumpy()[0], expected.item(), rtol=1e-3)
        optimizer.step()
    theirs = convert_arrays(twin.state_dict())
    for name, parameter in golden.weights_of(net).items():
        assert relative_error(parameter.asnumpy(), theirs[name]) < 2e-3, name
    twin.eval()
    net.set_train(False)
    with torch.no_grad():
        expected = twin(torch.from_numpy(clips)).numpy()
    ours_scores = golden.compute_scores(net, Tensor(clips))
    np.testing.assert_allclose(ours_scores, expected, atol=5e-3 * np.ptp(expected))


@pytest.mark.slow
def test_training_evaluation_prediction_and_fusion_of_several_labels(
    multi_args, run_here, data_root, tmp_path
):
    run = tmp_path / "run"
    settings = ["--train.class_weights=balanced", "--run.eval_every=1", "--run.keep_best=map"]
    done = run_here("tsm/train.py", *multi_args, *settings, f"--run.out={run}")
    result = read_result(done)
    assert "train.class_weights balanced: 1 to 7" in done.stderr
    best = json.loads((run / "best.json").read_text())["validation"]
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    maps = [line["map"] for line in lines if "map" in line]
    assert (len(maps), best["map"], result["validation_map"]) == (2, max(maps), maps[-1])

    checkpoint = ["--checkpoint_path", run / "best.ckpt"]
    report = tmp_path / "report"
    metrics = read_result(run_here("tsm/eval.py", *multi_args, *checkpoint, "--report", report))
    assert (metrics["videos"], metrics["classes"]) == (8, 4)
    table = read_rows(report / "scores.csv")
    columns = [f"{k} {name}" for k, name in enumerate(NAMES)]
    scores = np.array([[float(line[column]) for column in columns] for line in table])
    sets = [line["labels"].split(",") for line in table]
    assert ["-"] in sets
    targets = np.array([[float(str(k) in labels) for k in range(4)] for labels in sets])
    expected = compute_metrics(scores, targets, raw_scores=False)
    assert metrics["map"] == pytest.approx(expected["map"], abs=1e-6)
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-4)

    words = [*multi_args, *checkpoint, data_root / table[0]["path"], "--threshold=0.01"]
    out = read_result(run_here("scripts/predict.py", *words, "--out", tmp_path / "predictions"))
    (record,) = out["predictions"]
    for entry in record["top"]:
        column = f"{entry['label']} {entry['name']}"
        assert entry["probability"] == pytest.approx(float(table[0][column]), abs=1e-5)
    assert len(record["top"]) == (scores[0] >= 0.01).sum()
    settings = [word[2:] for word in multi_args[2:]]
    model = api.load(find_smoke_yaml("tsm"), run / "best.ckpt", settings=settings)
    ranking = model.predict(data_root / table[0]["path"], threshold=0.01)
    entries = [(entry["name"], entry["probability"]) for entry in record["top"]]
    assert [(name, round(probability, 6)) for name, probability in ranking] == entries
    assert model.predict(data_root / table[0]["path"], threshold=1)[0][0] == "none"

    for average in ("logarithms", "probabilities"):
        words = [report, report, "--average", average, "--report", tmp_path / average]
        fused = read_result(run_here("scripts/analysis/fuse_scores.py", *words))
        assert fused["map"] == metrics["map"]
        assert fused["loss"] == pytest.approx(metrics["loss"], abs=1e-4)
        again = read_rows(tmp_path / average / "scores.csv")
        assert [line["predicted"] for line in again] == [line["predicted"] for line in table]
