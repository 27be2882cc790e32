"""Commands of MViTv2 on three synthetic data sets; runs on two workers; killed runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.data.synthetic.motion_videos import SETS, draw_sets
from tests.helpers import (
    assert_close_weights,
    assert_fine_tuning,
    assert_kills_change_no_weight,
    assert_mindir_matches,
    assert_report,
    find_smoke_yaml,
    read_result,
    read_weights,
    run_json,
    run_script,
)

SMOKE = str(find_smoke_yaml("mvit_multi"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list:
    """A network of two blocks on clips of 4 x 32 x 32; 22 training videos of three sets."""
    root = tmp_path_factory.mktemp("sets")
    draw_sets(root, train_per_motion=1, test_per_motion=1, seed=1)
    data = ["--data.frames=4", "--data.crop=32", "--data.batch=4", "--data.repeated_aug=2"]
    model = ["--model.depth=2", "--model.stage_starts=[1]", "--model.dim=8"]
    train = ["--train.epochs=2", "--train.warmup_epochs=1", "--run.save_every=1"]
    arguments = ["--config_path", SMOKE, f"--data.root={root}", *data, *model, *train]
    return [*arguments, "--run.log_every=2", "--run.engine=mindspore"]


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory) -> Path:
    """A checkpoint of a run with all augmentations, mixup and cutmix."""
    out = tmp_path_factory.mktemp("trained_mvit") / "run"
    return Path(
        run_json("mvit_multi/train.py", *small, *AUGMENTED, f"--run.out={out}")["checkpoint"]
    )


AUGMENTED = ["--data.rand_augment=rand-m7-n4-mstd0.5-inc1", "--data.erase=0.5"]
AUGMENTED += ["--data.mixup=0.8", "--data.cutmix=1", "--model.drop_path=0.1", "--model.dropout=0.5"]


def test_an_evaluation_prints_a_table_of_all_sets_and_one_json_line(
    small, trained, run_here, tmp_path
):
    command = ["mvit_multi/eval.py", *small, "--checkpoint_path", trained]
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
    assert json.loads(trained.with_suffix(".json").read_text()) == result
    one = read_result(run_here(*command, "--eval.sets=[axes]"))
    assert {**one["sets"]["axes"], "seconds": 0} == {**result["sets"]["axes"], "seconds": 0}
    assert list(one["sets"]) == ["axes"]


@pytest.mark.slow
def test_two_ranks_give_the_metrics_of_one(small, trained):
    alone = run_json("mvit_multi/eval.py", *small, "--checkpoint_path", trained)
    done = run_script(
        "scripts/run_eval.sh", "mvit_multi", SMOKE, trained, *small[2:],
        environment={"DEVICES": "2"},
    )  # fmt: skip
    both = read_result(done)
    for name in SETS:
        assert {**both["sets"][name], "seconds": 0} == {**alone["sets"][name], "seconds": 0}


def test_a_prediction_ranks_the_classes_of_all_sets_jointly(small, trained, run_here, tmp_path):
    root = Path(small[2].split("=")[1])
    video = next((root / "eight" / "videos" / "test").glob("*.mp4"))
    files = ["--checkpoint_path", trained, video, "--out", tmp_path, "--window", "0"]
    (result,) = read_result(run_here("scripts/predict.py", *small, *files))["predictions"]
    assert {name: len(top) for name, top in result["sets"].items()} == {
        "eight": 5, "axes": 4, "moves": 5,
    }  # fmt: skip
    joint = result["joint"]
    assert [e["probability"] for e in joint] == sorted(e["probability"] for e in joint)[::-1]
    best = result["sets"][joint[0]["set"]][0]
    assert joint[0]["probability"] == pytest.approx(best["probability"] / 3, abs=1e-6)
    assert all(e["name"] in SETS[e["set"]] for e in joint)
    assert result["views"] == "1x3, 2x3, 1x1"


@pytest.mark.slow
def test_a_mindir_gives_the_results_of_its_checkpoint(small, trained, tmp_path):
    """This MINDIR takes normalised clips and returns the scores of all heads, concatenated."""
    video = next((Path(small[2].split("=")[1]) / "axes" / "videos" / "test").glob("*.mp4"))
    assert_mindir_matches("mvit_multi", small, trained, video, tmp_path, "--input", "float32")


@pytest.mark.slow
def test_training_starts_from_a_network_of_other_sets(small, trained, tmp_path):
    """The backbone is loaded; heads and projections are initialized."""
    sets = "[{name: axes, num_classes: 4, videos: axes, lists: axes}]"
    single = [f"--data.sets={sets}", "--model.single_head=true", "--model.cross_projections=false"]
    single += ["--model.expander=false", "--train.informative_weight=0", "--train.epochs=1"]
    single += ["--train.warmup_epochs=0", "--data.batch=2"]
    source = run_json("mvit_multi/train.py", *small, *single, f"--run.out={tmp_path / 'one'}")
    begin = [f"--train.pretrained={source['checkpoint']}", "--train.lr=1e-12", "--train.epochs=1"]
    begin += ["--train.warmup_epochs=0", "--train.end_lr=0", "--train.weight_decay=0"]
    begin += ["--run.amp=O2", "--run.loss_scale=1024", "--run.dynamic_loss_scale=true"]
    begin += ["--model.recompute=true", "--train.accumulation_steps=2"]
    begin += [f"--run.out={tmp_path / 'two'}"]
    done = run_script("mvit_multi/train.py", *small, *begin)
    assert done.returncode == 2
    assert "head" in done.stderr
    result = run_json("mvit_multi/train.py", *small, *begin, "--train.new_head=true")
    before = read_weights(source["checkpoint"])
    after = read_weights(result["checkpoint"])
    kept = [name for name in before if not name.startswith("head")]
    assert len(kept) == len(before) - 2
    for name in kept:
        np.testing.assert_allclose(before[name], after[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_scanned_lists_of_equal_names_do_not_overwrite_each_other(small, tmp_path):
    """One setting, data.lists, selects the scanned lists."""
    out = ["--out", tmp_path / "lists", "--frames", "ends"]
    result = run_json("scripts/data/check_videos.py", *small, *out)
    assert (result["videos"], result["bad"], len(result["lists"])) == (66, 0, 9)
    assert len(list((tmp_path / "lists").rglob("labels.txt"))) == len(SETS)
    good = [f"--data.lists={tmp_path / 'lists'}", f"--run.out={tmp_path / 'run'}"]
    good += ["--train.epochs=1", "--train.warmup_epochs=0"]
    assert run_json("mvit_multi/train.py", *small, *good)["steps"] == 5


@pytest.mark.slow
def test_training_logs_its_validations(small, tmp_path):
    often = ["--run.eval_every=1", "--eval.val_skip=2", f"--run.out={tmp_path / 'run'}"]
    run_json("mvit_multi/train.py", *small, *often, "--train.epochs=1", "--train.warmup_epochs=0")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert any("top5" in line for line in lines)


@pytest.mark.slow
def test_two_workers_equal_one_with_twice_the_accumulation_steps(small, tmp_path):
    """Without the informative loss, which is a function of a whole micro-batch.

    Some gradients are zero except for rounding. A large eps keeps Adam from normalizing this noise.
    """
    plain = ["--train.informative_weight=0", "--train.epochs=1", "--train.warmup_epochs=0"]
    plain += ["--train.eps=1e-2", "--train.end_lr=1e-3"]  # the rate differs by half a micro-batch
    plain += ["--data.batch=2", "--data.dataset_repeats=4"]  # whole groups of batches
    once = ["--train.accumulation_steps=2", "--run.all_reduce=[blocks.0, blocks.1]"]
    out = f"--run.out={tmp_path / 'a'}"
    alone = run_json("mvit_multi/train.py", *small, *plain, "--train.accumulation_steps=4", out)
    done = run_script(
        "scripts/run_distribute_train.sh", "mvit_multi", "2", SMOKE, *small[2:], *plain, *once,
        f"--run.out={tmp_path / 'b'}",
    )  # fmt: skip
    assert "gradients are reduced in 3 segments" in done.stderr
    assert_close_weights(alone["checkpoint"], read_result(done)["checkpoint"])


def compute_gradients(small: list, out: Path, workers: int, *settings: str) -> dict:
    script = Path(__file__).parent / "gradients.py"
    more = [*settings, "--train.clip_norm=0", f"--run.out={out}"]
    command = [script] if workers == 1 else ["scripts/launch.py", str(workers), script]
    done = run_script(*map(str, command), *small, *more)
    assert done.returncode == 0, done.stderr
    return dict(np.load(out / "gradients.npz"))


@pytest.mark.slow
def test_gradients_of_two_workers_are_those_of_the_whole_batch(small, tmp_path):
    """Including the informative loss. With `gradient: original` they are half as large."""
    alone = compute_gradients(small, tmp_path / "alone", 1, "--data.batch=4")
    exact = compute_gradients(small, tmp_path / "exact", 2, "--data.batch=2")
    half = compute_gradients(
        small, tmp_path / "half", 2, "--data.batch=2", "--train.gradient=original"
    )
    noise = 1e-6 * max(np.abs(value).max() for value in alone.values())
    for name, value in alone.items():
        np.testing.assert_allclose(exact[name], value, rtol=1e-3, atol=noise, err_msg=name)
        np.testing.assert_allclose(half[name], value / 2, rtol=1e-3, atol=noise, err_msg=name)


@pytest.mark.slow
def test_kills_at_random_moments_change_no_weight(small, tmp_path):
    assert_kills_change_no_weight("mvit_multi/train.py", [*small, *AUGMENTED], tmp_path)


@pytest.mark.slow
def test_a_frozen_backbone_with_all_settings_of_fine_tuning(small, tmp_path):
    result = assert_fine_tuning("mvit_multi", small, tmp_path / "run")
    assert result["steps"] > 0
