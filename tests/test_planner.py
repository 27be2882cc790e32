"""The command of the AllReduce planner."""

import yaml

from tests.helpers import read_result, read_rows

SLOW = ["--bandwidth=0.01", "--latency=20", "--cluster={devices_per_node: 4, tflops: 0.0002}"]


def test_the_printed_yaml_line_gives_the_best_split(tiny_args, run_here, tmp_path):
    """Of the tiny network for 8 and 64 devices of a slow network."""

    def plan(*words: str) -> dict:
        command = ["scripts/analysis/plan_allreduce.py", *tiny_args, *SLOW, *words]
        return read_result(run_here(*command, f"--out={tmp_path}"))

    result = plan("--devices=8,64", "--run.all_reduce=[layer2]")
    for results in result["devices"].values():
        assert set(results) == {"best", "one segment", "yaml's own", "one a layer"}
    ends = yaml.safe_load(result["yaml"])["run"]["all_reduce"]
    rows = read_rows(tmp_path / "plan.csv")
    best = [row for row in rows if (row["devices"], row["split"]) == ("64", "best")]
    assert len(ends) == len(best) - 1 > 0
    assert sum(int(row["tensors"]) for row in best) == 62
    again = plan("--devices=64", f"--run.all_reduce=[{', '.join(ends)}]")["devices"]["64"]
    assert again["yaml's own"] == again["best"]
