"""`train.feature_draws`: features that are computed once train the same classifier."""

import os
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import save_random_weights
from tests.toy_recipes import draw_samples, load_toy_config
from utils.data.rows import RowsWithDropout
from utils.evaluate.metrics import EvalSet, evaluate
from utils.evaluate.scorer import CellScorer
from utils.networks import Job, find_build, find_network, list_networks
from utils.runtime import Runtime
from utils.tests.parity import mark_slow_except
from utils.train import frozen_features
from utils.train.plan import Plan
from utils.train.train import build_training
from utils.weights import checkpoint

SETTINGS = ["run.eval_every=1", "train.freeze=backbone", "train.epochs=2", "train.warmup_epochs=0"]
ONCE = ["train.feature_draws=1"]
OWN = {"resnet50": ["data.val=train"], "tsm": ["model.dropout=0.5", "train.milestones=[1]"]}
OWN.update(x3d=["model.dropout=0.5"], mvit_multi=["model.dropout=0.5", "eval.val_skip=1"])


def start(network: str, root: Path, *settings: str):
    """The job, the train step, its rows and the sets of its validation, with saved weights."""
    if not root.exists():
        draw_samples(network, root)
        for path in root.rglob("test.csv"):  # of several data sets
            path.with_name("val.csv").write_bytes(path.read_bytes())
    own = [f"data.root={root}", f"run.out={root.parent / 'run'}", *SETTINGS, *OWN[network]]
    cfg = load_toy_config(network, *own, *settings)
    weights = root.parent / "w.ckpt"
    if not weights.exists():
        save_random_weights(cfg, weights, network)
    cfg = load_toy_config(network, *own, f"train.pretrained={weights}", *settings)
    job = Job(find_network(network), cfg, Runtime())
    records = job.network.read_records(cfg, "train")
    sampler = job.network.build_train_sampler(cfg, records, job.rt)
    step = build_training(Plan(job.network, cfg, job.rt, sampler), find_build(network))[0]
    rows = job.network.train_rows(records, cfg=cfg, sampler=sampler, epochs=2, skip=0)
    spaces = job.network.list_label_spaces(cfg)
    rows_of = job.network.build_eval_rows(cfg, job.rt, spaces, split="val")
    create = job.network.create_dataset
    eval_sets = [EvalSet(part, spaces[k], create) for k, part in rows_of.items()]
    if cfg.train.feature_draws:
        rows, eval_sets = frozen_features.use_features(job, step.net, rows, eval_sets)
    return job, step.set_train(), rows, eval_sets


def train(network: str, root: Path, *settings: str) -> tuple:
    """What every step returns, by how much it trains each weight, and a validation's metrics."""
    job, step, rows, eval_sets = start(network, root, *settings)
    first = [weight.asnumpy().copy() for weight in step.optimizer.parameters]
    if step.dropout.size:
        rows = RowsWithDropout(rows, step.dropout)
    data = job.network.create_dataset(job.cfg, rows, 1)
    batches = data.create_tuple_iterator(num_epochs=1, output_numpy=True)
    outputs = [step(*map(Tensor, batch)).asnumpy() for batch in batches]
    changes = [w.asnumpy() - old for w, old in zip(step.optimizer.parameters, first)]
    metrics = evaluate(CellScorer(step.net), eval_sets, job.rt)
    return np.stack(outputs), changes, metrics


@pytest.mark.parametrize("network", mark_slow_except(list_networks(), "tsm"))
def test_as_many_draws_as_epochs_train_as_without_them(network, tmp_path):
    """Also with augmentation, dropout, and several clips of a video."""
    root = tmp_path / "data"
    plain, changes, metrics = train(network, root)
    outputs, own_changes, own_metrics = train(network, root, "train.feature_draws=2")
    assert len(np.unique(plain[:, 0])) == len(plain), "the steps train on the same clips"
    np.testing.assert_allclose(outputs, plain, rtol=1e-4)
    # Of all weights: MViT's last bias has no gradient but rounding, which Adam's division enlarges.
    largest = max(np.abs(change).max() for change in changes)
    for own, expected in zip(own_changes, changes, strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=0.005 * largest)
    assert own_metrics["loss"] == pytest.approx(metrics["loss"], abs=1e-4)
    assert own_metrics["top1"] == metrics["top1"]
    once = train(network, root, *ONCE)[0]
    half = len(plain) // 2
    np.testing.assert_allclose(once[:half], plain[:half], rtol=1e-4)
    assert not np.allclose(once[half:, 0], plain[half:, 0], rtol=1e-4)


@pytest.mark.slow
def test_features_are_computed_again_only_if_what_decides_them_has_changed(tmp_path, monkeypatch):
    counts = []
    progress = frozen_features.Progress

    def count(rows, name, total, unit):
        counts.append(total)
        return progress(rows, name, total, unit)

    def compute(*settings: str) -> list[int]:
        counts.clear()
        start("tsm", tmp_path / "data", "train.feature_draws=2", *settings)
        return list(counts)

    monkeypatch.setattr(frozen_features, "Progress", count)
    assert compute() == [16, 8]  # clips of the training and of the validation
    assert compute("data.batch=3", "train.lr=1") == [0, 0]
    file = max((tmp_path / "features").iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    os.truncate(file, len(content) - 1)  # a kill cut off the last record
    assert compute() == [1, 0]
    assert file.read_bytes() == content
    file.write_bytes(content[:-50] + bytes(50))  # as after a power failure
    assert compute() == [1, 0]
    assert file.read_bytes() == content
    os.utime(next(tmp_path.rglob("train/*.mp4")), (1, 1))
    assert compute() == [16, 0]
    assert compute("data.flip=false", "data.swap_labels=[]") == [16, 8]
    assert not file.exists()
    assert compute() == [16, 8]
    (tmp_path / "data" / "test.txt").write_bytes((tmp_path / "data" / "train.txt").read_bytes())
    assert compute() == [0, 8]
    (tmp_path / "w.ckpt").unlink()
    cfg = load_toy_config("tsm", *OWN["tsm"], "model.num_classes=8", "train.epochs=2")
    net = find_network("tsm").build_model(**cfg.model_arguments())
    checkpoint.save(tmp_path / "w.ckpt", checkpoint.weights_of(net))
    assert compute() == [16, 8]
    assert len(list((tmp_path / "features").glob("*.run"))) == 2, "old files are deleted"


@pytest.mark.usefixtures("eager")
def test_a_training_that_goes_on_remembers_unreadable_samples(tmp_path):
    start("tsm", tmp_path / "data")
    for line in (tmp_path / "data" / "train.txt").read_text().splitlines()[:2]:
        (tmp_path / "data" / line.split()[0]).write_bytes(b"")
    with pytest.raises(ValueError, match="data.max_unreadable: 2 of 8"):
        start("tsm", tmp_path / "data", *ONCE, "data.max_unreadable=0.2")
    for _ in range(2):
        rows = start("tsm", tmp_path / "data", *ONCE, "data.max_unreadable=0.5")[2]
        assert rows.unreadable.count == 2
