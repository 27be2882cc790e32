"""Jobs on several nodes, which are several launchers on this host."""

import json

import psutil
import pytest

from tests.helpers import (
    assert_same_weights,
    build_rank_table,
    list_processes,
    pick_port,
    start_launcher,
    wait_for_step,
    write_json,
)
from utils.files import ROOT

TRAIN = ROOT / "tsm" / "train.py"


def launch_nodes(*arguments, **variables: str) -> list:
    """Starts one launcher for each of two nodes, node 1 first."""
    variables = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": pick_port(), **variables}
    return [start_launcher(*arguments, **variables, NODE_RANK=str(node)) for node in (1, 0)][::-1]


def collect_outputs(nodes: list) -> list:
    """Waits for the launchers; (stdout, stderr) of each."""
    return [node.communicate(timeout=600) for node in nodes]


@pytest.mark.slow
@pytest.mark.parametrize("table", [False, True])
def test_two_nodes_train_the_weights_of_one_node_with_two_devices(
    table, pair_args, pair_run, tmp_path
):
    """With variables, or with a rank table in their place."""
    variables = {}
    if table:
        path = write_json(tmp_path / "hccl.json", build_rank_table())
        variables = {"NODES": "", "MASTER_ADDR": "", "RANK_TABLE_FILE": path}
    nodes = launch_nodes("1", TRAIN, *pair_args, f"--run.out={tmp_path / 'run'}", **variables)
    (output_0, errors_0), (output_1, errors_1) = collect_outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors_0 + errors_1
    assert json.loads(output_0.splitlines()[-1])["steps"] == 12
    assert output_1 == ""
    assert_same_weights(pair_run[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_on_one_of_two_nodes_ends_both_and_changes_no_weight(
    pair_args, pair_run, tmp_path, victim
):
    """MindSpore needs up to a minute to end the other node. The same commands continue."""
    out = tmp_path / "run"
    arguments = ["1", TRAIN, *pair_args, "--run.save_steps=1", f"--run.out={out}"]
    nodes = launch_nodes(*arguments)
    wait_for_step(nodes[0], out, 3)
    processes = [p for node in nodes for p in list_processes(node).values()]
    list_processes(nodes[victim])[victim].kill()
    outputs = collect_outputs(nodes)
    assert not psutil.wait_procs(processes, timeout=600)[1]
    assert [node.returncode for node in nodes] == [1, 1], outputs
    assert f"rank {victim} was killed by SIGKILL" in outputs[victim][1].splitlines()[-1]
    collect_outputs(launch_nodes(*arguments))
    assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")
