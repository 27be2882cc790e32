"""Commands of the AllReduce planner."""

import pytest
import yaml

from tests.helpers import read_rows, run_json

PLAN = "scripts/analysis/plan_allreduce.py"
SLOW = ["--bandwidth=0.01", "--latency=20", "--cluster={devices_per_node: 4, tflops: 0.0002}"]


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
    rows = read_rows(folder / "plan.csv")
    best = [row for row in rows if (row["devices"], row["split"]) == ("64", "best")]
    assert len(ends) == len(best) - 1
    assert sum(int(row["tensors"]) for row in best) == 62
    split = f"--run.all_reduce=[{', '.join(ends)}]"
    arguments = [*tiny_args, "--devices=64", *SLOW, split, f"--out={folder / 'again'}"]
    again = run_json(PLAN, *arguments)["devices"]["64"]
    assert again["yaml's own"] == again["best"]
