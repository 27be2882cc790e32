"""Commands of the AllReduce planner."""

import csv
import json
import re
from pathlib import Path

import pytest
import yaml

from scripts.analysis import plan_allreduce
from tests.helpers import run_json, run_script
from tsm.config import Config
from tsm.model import TSM
from utils import cli
from utils.config import list_settings, load_config
from utils.networks import find_network

PLAN = "scripts/analysis/plan_allreduce.py"
PROFILE = "scripts/analysis/profile_backward.py"
SLOW = ["--bandwidth=0.01", "--latency=20", "--topology=64x4"]
SLOW += ["--run.cluster={tflops: 0.0002, jitter: 0.03}"]


@pytest.fixture(scope="module")
def plan(tiny_args, tmp_path_factory):
    """A plan of the tiny network for 8 and 64 devices of a slow network; its folder."""
    folder = tmp_path_factory.mktemp("plan")
    split = "--run.all_reduce=[layer2]"
    return run_json(PLAN, *tiny_args, "--devices=8,64", *SLOW, split, f"--out={folder}"), folder


def test_the_best_split_is_at_least_as_good_as_the_others(plan):
    result, _ = plan
    for results in result["devices"].values():
        assert set(results) == {"best", "one segment", "yaml's own", "one a layer"}
        least = min(row["exposed_ms"] for row in results.values() if row["segments"] <= 8)
        assert results["best"]["exposed_ms"] == least
    best, one = (result["devices"]["64"][name] for name in ("best", "one segment"))
    assert best["exposed_ms"] < 0.8 * one["exposed_ms"]
    assert best["segments"] > 1


def test_the_printed_yaml_line_gives_the_same_split(plan, tiny_args):
    result, folder = plan
    ends = yaml.safe_load(result["yaml"])["run"]["all_reduce"]
    rows = list(csv.DictReader((folder / "plan.csv").read_text().splitlines()))
    best = [row for row in rows if (row["devices"], row["split"]) == ("64", "best")]
    assert len(ends) == len(best) - 1
    assert sum(int(row["tensors"]) for row in best) == 62
    split = f"--run.all_reduce=[{', '.join(ends)}]"
    arguments = [*tiny_args, "--devices=64", *SLOW, split, f"--out={folder / 'again'}"]
    again = run_json(PLAN, *arguments)["devices"]["64"]
    assert again["yaml's own"] == again["best"]


def test_a_plan_writes_a_table_and_two_pictures(plan):
    _, folder = plan
    assert {path.name for path in folder.iterdir()} >= {"plan.csv", "timeline.png", "scaling.png"}
    for name in ("timeline.png", "scaling.png"):
        assert (folder / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_a_plan_uses_a_measured_profile(tiny_args, tmp_path):
    path = tmp_path / "profile.json"
    run_json(PROFILE, *tiny_args, f"--out={path}", "--points=1", "--repeats=3")
    result = json.loads(path.read_text())
    ready = list(result["ready_seconds"].values())
    assert 0 < result["forward_seconds"] <= min(ready) <= max(ready) <= result["step_seconds"]
    assert ready[0] == max(ready), "gradients of the first layer are complete last"
    done = run_script(PLAN, *tiny_args, "--devices=8", f"--profile={path}", f"--out={tmp_path}")
    assert f"measured, {path}" in done.stdout
    assert f"a step of {1e3 * result['step_seconds']:.1f} ms" in done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--devices=eight", "--devices: must be numbers above 0, as in 8,64,512, not eight"),
        ("--devices=12", "12 devices are not whole nodes of 8"),
        ("--topology=8", "--topology: must be NODESxDEVICES, as in 256x6, not 8"),
        ("--topology=1x4", "8 devices are more than --topology 1x4 has"),
        ("--bandwidth=fast", "--bandwidth: invalid float value: 'fast'"),
        ("--bandwidth=0", "run.cluster.bandwidth must be above 0, not 0"),
        ("--profile=none.json", "none.json: not a profile of a backward pass"),
        ("--chip=ascend911b", "--chip: invalid choice: 'ascend911b' (choose from"),
        ("--chip=gpu", "--chip gpu: a dry run shows the order of gradients on Ascend only"),
        ("--run.all_reduce=[layer9]", "no trainable parameter lies in a layer named layer9"),
        ("--run.cluster={latenzy: 1}", "unknown setting run.cluster.latenzy; nearest: latency"),
    ],
)
def test_a_wrong_option_is_a_user_error(tiny_args, option, words):
    def run_plan() -> None:
        parser = cli.Parser("", list_settings(Config), plan_allreduce.main)
        path, settings, options = parser.parse([*tiny_args, "--devices=8", option])
        plan_allreduce.main(find_network("tsm"), load_config(Config, path, settings), **options)

    with pytest.raises(ValueError, match=re.escape(words)):
        run_plan()


def test_control_characters_in_a_profile_are_escaped(tiny_args, tmp_path, capsys):
    """The title of the plot shows `$` as text, not as a formula."""
    cfg = load_config(Config, Path(tiny_args[1]), [word[2:] for word in tiny_args[2:]])
    ready = {weight.name: 2.0 for weight in TSM(**cfg.model_arguments()).trainable_params()}
    times = {"forward_seconds": 1.0, "ready_seconds": ready, "step_seconds": 3.0}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**times, "source": "\x1b[2J $\\x$"}))
    options = {"devices": [8], "profile": path, "out": tmp_path / "plan"}
    plan_allreduce.main(find_network("tsm"), cfg, **options)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert any(r"\x1b[2J $\x$, " in line for line in lines)


def test_a_profile_and_a_chip_exclude_each_other(tiny_args):
    cfg = load_config(Config, Path(tiny_args[1]), [])
    options = {"devices": [8], "chip": "ascend910b", "profile": Path("a.json")}
    with pytest.raises(ValueError, match="--chip and --profile exclude each other"):
        plan_allreduce.main(find_network("tsm"), cfg, **options)
