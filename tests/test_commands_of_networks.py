"""train, eval, export and predict of all networks: two ranks, killed runs, pretrained weights."""

import json
from functools import cache
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

from scripts.data.synthetic.motion_videos import SETS, draw_sets
from tests.helpers import (
    assert_close_weights,
    assert_kills_change_no_weight,
    assert_mindir_matches,
    assert_report,
    assert_segments,
    build_dump_env,
    find_smoke_yaml,
    read_result,
    run_json,
    run_script,
)

ONE_EPOCH = ["--train.epochs=1", "--train.warmup_epochs=0"]
AUGMENTED = ["--data.rand_augment=rand-m7-n4-mstd0.5-inc1", "--data.erase=0.5"]
AUGMENTED += ["--data.mixup=0.8", "--data.cutmix=1", "--model.dropout=0.5"]
MVIT_AUGMENTED = [*AUGMENTED, "--model.drop_path=0.1"]
# Networks that compile in seconds; two epochs of six steps, of MViT five and a half.
SETTINGS = {
    "x3d": ["--model.depth_factor=0.4", "--data.frames=4", "--data.scales=[32,36]"]
    + ["--data.crop=32", "--data.batch=4", "--train.precise_bn=2", "--run.save_every=1"],
    "mvit_multi": ["--data.frames=4", "--data.crop=32", "--data.batch=4", "--data.repeated_aug=2"]
    + ["--model.depth=2", "--model.stage_starts=[1]", "--model.dim=8"]
    + ["--train.warmup_epochs=1", "--run.save_every=1"],
    "resnet50": ["--data.source=folder", "--data.augment=crop", "--model.num_classes=4"]
    + ["--data.batch=4", "--data.workers=2", "--eval.batch=2"],
}


@pytest.fixture(scope="module")
def toy(data_root, pictures, tiny_args, tmp_path_factory) -> Callable[[str], list]:
    """toy(network): the arguments of its commands."""

    @cache
    def build(network: str) -> list:
        if network == "tsm":
            return tiny_args
        root = pictures if network == "resnet50" else data_root
        if network == "mvit_multi":
            root = tmp_path_factory.mktemp(network)
            draw_sets(root, train_per_motion=1, test_per_motion=1, seed=1)
        arguments = ["--config_path", str(find_smoke_yaml(network)), f"--data.root={root}"]
        arguments += ["--run.engine=mindspore", "--run.log_every=2", "--train.epochs=2"]
        return [*arguments, *SETTINGS[network]]

    return build


@pytest.fixture(scope="module")
def trained(toy, tiny_ckpt, tmp_path_factory) -> Callable[[str], Path]:
    """trained(network): the checkpoint of a run; that of MViT has all augmentations."""

    @cache
    def train(network: str) -> Path:
        if network == "tsm":
            return tiny_ckpt
        more = MVIT_AUGMENTED if network == "mvit_multi" else []
        out = tmp_path_factory.mktemp("trained") / "run"
        result = run_json(f"{network}/train.py", *toy(network), *more, f"--run.out={out}")
        return Path(result["checkpoint"])

    return train


def find_root(arguments: list) -> Path:
    return Path(arguments[2].partition("=")[2])


def evaluate_on_two_ranks(network: str, arguments: list, weights: Path, *more) -> dict:
    done = run_script(
        "scripts/run_eval.sh", network, arguments[1], weights, *arguments[2:], *more,
        environment={"DEVICES": "2"},
    )  # fmt: skip
    return read_result(done)


def test_an_evaluation_prints_a_table_of_all_sets_and_one_json_line(
    toy, trained, run_here, tmp_path
):
    weights = trained("mvit_multi")
    command = ["mvit_multi/eval.py", *toy("mvit_multi"), "--checkpoint_path", weights]
    done = run_here(*command, "--report", tmp_path / "report")
    result = read_result(done)
    for name, metrics in result["sets"].items():
        rows = assert_report(tmp_path / "report" / name, metrics)
        assert list(rows[0])[5:] == [f"{k} {label}" for k, label in enumerate(SETS[name])]
        assert rows[0]["path"].startswith("videos/test/")
    page = (tmp_path / "report" / "index.html").read_text()
    assert all(f'<a href="{name}/scores.csv"' in page for name in SETS)
    assert "data:image/jpeg" in page
    assert list(result["sets"]) == list(SETS)
    assert [metrics["videos"] for metrics in result["sets"].values()] == [8, 8, 6]
    assert [metrics["views"] for metrics in result["sets"].values()] == ["1x3", "2x3", "1x1"]
    mean = np.mean([metrics["top1"] for metrics in result["sets"].values()])
    assert result["top1"] == pytest.approx(mean, abs=1e-6)
    table = done.stdout.splitlines()[:-1]
    assert [line.split()[0] for line in table] == ["data", *SETS, "average"]
    assert json.loads(weights.with_suffix(".json").read_text()) == result
    one = read_result(run_here(*command, "--eval.sets=[axes]"))
    assert {**one["sets"]["axes"], "seconds": 0} == {**result["sets"]["axes"], "seconds": 0}
    assert list(one["sets"]) == ["axes"]


def test_an_evaluation_counts_every_image_once_on_one_rank_and_on_two(
    toy, trained, run_here, tmp_path
):
    arguments = toy("resnet50")
    weights = trained("resnet50")
    alone = read_result(run_here("resnet50/eval.py", *arguments, "--checkpoint_path", weights))
    assert (alone["videos"], alone["unreadable"], alone["top5"]) == (7, 0, None)
    both = evaluate_on_two_ranks("resnet50", arguments, weights, "--report", tmp_path)
    assert {**both, "seconds": 0} == {**alone, "seconds": 0}
    rows = assert_report(tmp_path, both)
    root = find_root(arguments) / "val"
    files = sorted(path.relative_to(root) for path in root.glob("*/*"))
    assert [row["path"] for row in rows] == [str(file) for file in files]
    folders = sorted({file.parent.name for file in files})
    assert list(rows[0])[5:] == [f"{k} {name}" for k, name in enumerate(folders)]
    assert [folders[int(row["label"])] for row in rows] == [file.parent.name for file in files]


@pytest.mark.slow
def test_two_ranks_give_the_metrics_of_one_for_every_set(toy, trained):
    arguments = toy("mvit_multi")
    weights = trained("mvit_multi")
    alone = run_json("mvit_multi/eval.py", *arguments, "--checkpoint_path", weights)
    both = evaluate_on_two_ranks("mvit_multi", arguments, weights)
    for name in SETS:
        assert {**both["sets"][name], "seconds": 0} == {**alone["sets"][name], "seconds": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("tsm", ["--batch", "free"]),
        ("x3d", []),
        ("mvit_multi", ["--input", "float32"]),  # the scores of all heads, concatenated
        ("resnet50", []),
    ],
)
def test_a_mindir_gives_the_results_of_its_checkpoint(network, options, toy, trained, tmp_path):
    arguments = toy(network)
    pattern = "val/*/*.jpg" if network == "resnet50" else "*.mp4"
    sources = sorted(find_root(arguments).rglob(pattern))
    assert_mindir_matches(network, arguments, trained(network), sources[0], tmp_path, *options)


TWO_WORKERS = {
    # settings of both runs, of the run on one worker, of the run on two, and its segments
    "x3d": (["--train.lr=0.01"], [], ["--data.batch=2", "--run.all_reduce=[s2, s3, s4]"], 4),
    "resnet50": (
        ["--data.augment=none", "--train.lr=0.001"],
        [],
        ["--data.batch=2", "--run.all_reduce=[layer2, 14]"],
        3,
    ),
    # Without the informative loss, which is a function of a whole micro-batch. Some gradients are
    # zero except for rounding, and Adam would normalize this noise. The rate differs by half a
    # micro-batch.
    "mvit_multi": (
        ["--train.informative_weight=0", "--train.optimizer=sgd", "--train.end_lr=1e-3"]
        + ["--data.batch=2"],
        ["--train.accumulation_steps=4"],
        ["--train.accumulation_steps=2", "--run.all_reduce=[blocks.0, blocks.1]"],
        3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("network", TWO_WORKERS)
def test_two_workers_equal_one_with_twice_the_batch(network, toy, tmp_path):
    """Weights differ by the rounding of another order of additions. Batch norms are frozen."""
    same, one, two, segments = TWO_WORKERS[network]
    same = [*toy(network), *ONE_EPOCH, *same]
    if network == "mvit_multi":  # four times as many lines give whole groups of batches
        root = find_root(same)
        for path in root.glob("*/*.csv"):
            target = tmp_path / "lists" / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text() * 4)
        same += [f"--data.lists={tmp_path / 'lists'}"]
    else:
        same += ["--train.batch_norm=frozen"]
    alone = run_json(f"{network}/train.py", *same, *one, f"--run.out={tmp_path / 'one'}")
    arguments = [network, "2", *same[1:], *two, f"--run.out={tmp_path / 'two'}"]
    saving = build_dump_env(tmp_path / "graphs")
    done = run_script("scripts/run_distribute_train.sh", *arguments, environment=saving)
    if network == "mvit_multi":  # its AllReduces are in the branch of the last micro-batch
        assert done.stderr.count("segment of gradients") == segments
    else:
        assert len(assert_segments(done, tmp_path / "graphs")) == segments
    assert_close_weights(alone["checkpoint"], read_result(done)["checkpoint"])


@pytest.mark.slow
@pytest.mark.parametrize("network", ["x3d", "mvit_multi"])
def test_kills_at_random_moments_change_no_weight(network, toy, tmp_path):
    more = MVIT_AUGMENTED if network == "mvit_multi" else AUGMENTED
    assert_kills_change_no_weight(f"{network}/train.py", [*toy(network), *more], tmp_path)


@pytest.mark.slow
def test_scanned_lists_of_equal_names_do_not_overwrite_each_other(toy, tmp_path):
    """One setting, data.lists, selects the scanned lists."""
    out = ["--out", tmp_path / "lists", "--frames", "ends"]
    result = run_json("scripts/data/check_videos.py", *toy("mvit_multi"), *out)
    assert (result["videos"], result["bad"], len(result["lists"])) == (66, 0, 9)
    assert len(list((tmp_path / "lists").rglob("labels.txt"))) == len(SETS)
    good = [f"--data.lists={tmp_path / 'lists'}", f"--run.out={tmp_path / 'run'}", *ONE_EPOCH]
    assert run_json("mvit_multi/train.py", *toy("mvit_multi"), *good)["steps"] == 5


def compute_gradients(small: list, out: Path, workers: int, *settings: str) -> dict:
    script = Path(__file__).parent / "gradients.py"
    more = [*settings, "--train.clip_norm=0", f"--run.out={out}"]
    command = [script] if workers == 1 else ["scripts/launch.py", str(workers), script]
    done = run_script(*map(str, command), *small, *more)
    assert done.returncode == 0, done.stderr
    return dict(np.load(out / "gradients.npz"))


@pytest.mark.slow
def test_gradients_of_two_workers_are_those_of_the_whole_batch(toy, tmp_path):
    """Including the informative loss. With `gradient: original` they are half as large."""
    small = toy("mvit_multi")
    alone = compute_gradients(small, tmp_path / "alone", 1, "--data.batch=4")
    exact = compute_gradients(small, tmp_path / "exact", 2, "--data.batch=2")
    original = ["--data.batch=2", "--train.gradient=original"]
    half = compute_gradients(small, tmp_path / "half", 2, *original)
    noise = 1e-6 * max(np.abs(value).max() for value in alone.values())
    for name, value in alone.items():
        np.testing.assert_allclose(exact[name], value, rtol=1e-3, atol=noise, err_msg=name)
        np.testing.assert_allclose(half[name], value / 2, rtol=1e-3, atol=noise, err_msg=name)


@pytest.mark.slow
def test_a_recorded_step_is_compared_layer_by_layer(toy, trained, tmp_path):
    small = toy("resnet50")
    record = tmp_path / "step.npz"
    compare = ["scripts/analysis/compare_step.py", *small]
    weights = ["--checkpoint_path", trained("resnet50")]
    run_json(*compare, *weights, "--record", record)
    repeated = run_script(*compare, *weights, "--against", record)
    assert read_result(repeated)["first"] is None
    assert set(read_result(repeated)["largest"].values()) == {0.0}
    assert len([line for line in repeated.stdout.splitlines() if line.startswith("forward")]) > 40
    half = run_json(*compare, *weights, "--against", record, "--run.amp=O2")
    assert (half["first"]["stage"], half["first"]["name"]) == ("forward", "conv1")
    assert 1e-4 < half["first"]["error"] < 1e-2
    fresh = run_json(*compare, "--against", record, "--tolerance=1e-3")
    assert fresh["first"]["stage"] == "weights"
    assert fresh["largest"]["updates"] == 0.0, "updates are compared with the recorded weights"


@pytest.mark.slow
def test_training_writes_a_trace_of_a_few_steps(toy, tmp_path):
    profile = [f"--run.profile={tmp_path / 'trace'}", f"--run.out={tmp_path / 'run'}"]
    assert run_json("resnet50/train.py", *toy("resnet50"), *profile)["steps"] == 12
    (trace,) = (tmp_path / "trace").rglob("trace_view.json")
    names = [str(event.get("name")) for event in json.loads(trace.read_text())]
    assert any("/conv1-Conv2d/" in name for name in names)


@pytest.mark.parametrize("kind", ["step", "eval"])
def test_the_benchmark_prints_positive_rates(toy, kind, run_here):
    command = ["benchmarks/benchmark.py", kind, *toy("resnet50"), "--repeats=2", "--seconds=1"]
    result = read_result(run_here(*command))
    assert all(value is None or value > 0 for key, value in result.items() if "per" in key)
