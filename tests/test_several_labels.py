"""`model.labels: multi`: settings, targets, and whole trainings on real videos."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers import load_smoke_config, read_result, read_rows
from tests.test_predict import load_toy_config
from utils.evaluate.metrics import compute_metrics
from utils.networks import find_network
from utils.runtime import Runtime
from utils.train.plan import compute_class_weights

NETWORKS = ("tsm", "x3d", "resnet50")
MULTI = {name: ["model.labels=multi"] for name in NETWORKS}
MULTI["resnet50"] += ["data.source=list", "data.augment=crop", "train.smoothing=0"]
MULTI["resnet50"] += ["data.mixup=0", "data.cutmix=0"]


@pytest.mark.parametrize(
    ("network", "setting", "name"),
    [
        ("tsm", "train.class_weights=[1,2]", "train.class_weights"),
        ("tsm", "model.before_softmax=false", "model.before_softmax"),
        ("resnet50", "data.source=folder", "data.source"),
        ("resnet50", "train.smoothing=0.1", "train.smoothing"),
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
    """Multi-label lists for the videos of `root`, in a folder of their own."""
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
    assert tests.example()[1].tolist() == [0.0] * 4


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


@pytest.mark.slow
def test_training_evaluation_and_prediction_of_several_labels(
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
