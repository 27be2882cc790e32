"""Jobs on several nodes, which are several launchers on this host."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from scripts.launcher.launch_config import Job
from scripts.launcher.rendezvous import Rendezvous
from tests.helpers import (
    assert_same_weights,
    build_rank_table,
    list_processes,
    pick_port,
    read_step,
    run_script,
    start_launcher,
    write_json,
)
from utils.config import ROOT

FAKE_WORKER = ROOT / "tests" / "fake_worker.py"
TRAIN = ROOT / "tsm" / "train.py"
NODE_0 = {"NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def launch_nodes(*arguments, **variables: str) -> list:
    """Starts one launcher for each of two nodes, node 1 first."""
    variables = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": pick_port(), **variables}
    return [start_launcher(*arguments, **variables, NODE_RANK=str(node)) for node in (1, 0)][::-1]


def collect_outputs(nodes: list) -> list:
    """Waits for the launchers; (stdout, stderr) of each."""
    return [node.communicate(timeout=600) for node in nodes]


def test_a_user_error_is_one_line_and_status_2():
    completed = run_script("scripts/launch.py", "2", FAKE_WORKER, environment={"NODES": "two"})
    assert completed.returncode == 2
    assert completed.stderr.startswith("error: NODES must be an integer")
    assert len(completed.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("node", "words"),
    [("0", "node 1 did not come to 127.0.0.1"), ("1", "MASTER_ADDR: node 0 did not answer at")],
)
def test_a_missing_node_is_named_after_the_timeout(node, words):
    variables = {**NODE_0, "NODE_RANK": node, "MASTER_PORT": pick_port(), "MASTER_TIMEOUT": "1"}
    completed = run_script(
        "scripts/launch.py", "--restarts=1", "1", FAKE_WORKER, environment=variables
    )
    assert completed.returncode == 2
    assert words in completed.stderr
    assert f"127.0.0.1:{variables['MASTER_PORT']}" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def open_all(*jobs: Job) -> list:
    """Opens the rendezvous of several nodes at once; the plan of each, or its error message."""

    async def run() -> list:
        nodes = [Rendezvous(job) for job in jobs]
        opening = [node.open(f"folder{number}") for number, node in enumerate(nodes)]
        results = await asyncio.gather(*opening, return_exceptions=True)
        for node in nodes:
            node.close()
        return results

    return [str(plan) if isinstance(plan, ValueError) else plan for plan in asyncio.run(run())]


def test_nodes_agree_on_a_plan(caplog):
    port = int(pick_port())
    plans = open_all(
        *(Job(2, script="x", nodes=3, node=node, port=port, timeout=20) for node in range(3))
    )
    assert plans[0] == plans[1] == plans[2]
    assert plans[0]["logs"] == "folder0"
    assert plans[0]["port"] > port
    assert caplog.messages == [], "asyncio logs errors of tasks that were not awaited"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"devices": 4}, "node 1 was started with NODES=2 DEVICES=4, node 0 with NODES=2"),
        ({"nodes": 3}, "node 1 was started with NODES=3 DEVICES=2, node 0 with NODES=2"),
        ({"node": 2, "nodes": 2}, "NODE_RANK=2 was given to two nodes"),
    ],
)
def test_both_nodes_name_their_different_settings(other, words):
    common = {"script": "x", "port": int(pick_port()), "timeout": 20}
    node_0 = Job(**{"devices": 2, "nodes": 2, "node": 0, **common})
    node_1 = Job(**{"devices": 2, "nodes": 2, "node": 1, **common, **other})
    for message in open_all(node_0, node_1):
        assert message.startswith(words)


def test_a_node_behind_a_dead_network_is_named():
    """The operating system raises a TimeoutError, which asyncio also uses for other things."""
    port = int(pick_port())

    async def run() -> list:
        jobs = [Job(1, script="x", nodes=3, node=node, port=port, timeout=20) for node in range(3)]
        nodes = [Rendezvous(job) for job in jobs]
        await asyncio.gather(*(node.open("logs") for node in nodes))
        nodes[0].peers[1].reader.set_exception(TimeoutError(110, "Connection timed out"))
        await asyncio.sleep(0.2)
        messages = [node.poll() for node in nodes]
        for node in nodes:
            node.close()
        return messages

    lost = {"line": "node 1 (127.0.0.1) is gone: its launcher or host ended"}
    lost |= {"status": 1, "severity": 0}
    message_0, _, message_2 = asyncio.run(run())
    assert message_0 == message_2 == [lost]


def test_a_failure_on_one_node_ends_the_other_and_names_the_rank():
    nodes = launch_nodes("1", FAKE_WORKER, "1:kill")
    (output, errors_0), (_, errors_1) = collect_outputs(nodes)
    assert [node.returncode for node in nodes] == [1, 1]
    assert errors_0.splitlines()[-1].startswith("node 1: rank 1 was killed by SIGKILL; see ")
    assert errors_1.splitlines()[-1].startswith("rank 1 was killed by SIGKILL; see ")
    assert output == ""


def test_a_killed_node_is_named():
    nodes = launch_nodes("1", FAKE_WORKER, "all:wait")
    deadline = time.monotonic() + 600
    while [len(list_processes(node)) for node in nodes] != [2, 1] and time.monotonic() < deadline:
        time.sleep(0.05)
    processes = [p for node in nodes for p in list_processes(node).values()]
    nodes[1].kill()
    (_, errors_0), _ = collect_outputs(nodes)
    assert nodes[0].returncode == 1
    assert errors_0.splitlines()[-1].startswith("node 1 (127.0.0.1) is gone")
    assert not psutil.wait_procs(processes, timeout=600)[1]


def test_both_nodes_restart_and_node_0_prints_the_result():
    nodes = launch_nodes("--restarts=1", "1", FAKE_WORKER, "0:fail")
    (output_0, errors_0), (output_1, errors_1) = collect_outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors_0 + errors_1
    assert (output_0, output_1) == ('{"rank": 0}\n', "")
    assert "restart 1 of 1" in errors_0
    assert "restart 1 of 1" in errors_1
    assert "rank 1 of 2" in errors_1, "a node shows the log of its lowest rank"


def test_two_nodes_train_the_weights_of_one_node_with_two_devices(pair_args, pair_run, tmp_path):
    nodes = launch_nodes("1", TRAIN, *pair_args, f"--run.out={tmp_path / 'run'}")
    (output_0, errors_0), (output_1, errors_1) = collect_outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors_0 + errors_1
    assert json.loads(output_0.splitlines()[-1])["steps"] == 12
    assert output_1 == ""
    assert_same_weights(pair_run[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.mark.slow
def test_a_job_by_rank_table_trains_the_same_weights(pair_args, pair_run, tmp_path):
    path = write_json(tmp_path / "hccl.json", build_rank_table())
    out = f"--run.out={tmp_path / 'run'}"
    nodes = launch_nodes(
        "1", TRAIN, *pair_args, out, NODES="", MASTER_ADDR="", RANK_TABLE_FILE=path
    )
    (output_0, errors_0), (_, errors_1) = collect_outputs(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors_0 + errors_1
    assert_same_weights(pair_run[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.fixture
def hosts() -> Iterator[list]:
    """Command prefixes for two connected network namespaces, 10.99.0.1 and 10.99.0.2.

    Skips the test if the system does not allow them.
    """
    sleepers = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(2)]
    inside = [["nsenter", "--net", "--target", str(sleeper.pid)] for sleeper in sleepers]
    time.sleep(0.5)
    commands = [
        f"ip link add end0 netns {sleepers[0].pid} type veth peer name end1 "
        f"netns {sleepers[1].pid}",
        *(f"{' '.join(inside[k])} ip link set lo up" for k in (0, 1)),
        *(f"{' '.join(inside[k])} ip addr add 10.99.0.{k + 1}/24 dev end{k}" for k in (0, 1)),
        *(f"{' '.join(inside[k])} ip link set end{k} up" for k in (0, 1)),
    ]
    try:
        for command in commands:
            completed = subprocess.run(command.split(), capture_output=True, text=True)
            if completed.returncode:
                pytest.skip(f"no network namespaces here: {command}: {completed.stderr.strip()}")
        yield inside
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.slow
def test_two_hosts_train_the_same_weights_and_end_after_a_cut_cable(
    hosts, pair_args, pair_run, tmp_path
):
    """Two network namespaces: all processes end after the cut."""
    arguments = ["1", TRAIN, *pair_args, "--run.save_steps=1"]
    for name, epochs in (("whole", 2), ("cut", 2000)):
        out = tmp_path / name
        rest = [f"--train.epochs={epochs}", f"--run.out={out}"]
        variables = {"NODES": "2", "MASTER_ADDR": "10.99.0.1"}
        nodes = [
            start_launcher(*arguments, *rest, inside=hosts[node], NODE_RANK=str(node), **variables)
            for node in (0, 1)
        ]
        if name == "cut":
            while read_step(out) < 3:
                assert nodes[0].poll() is None, nodes[0].stderr.read()
                time.sleep(0.01)
            subprocess.run([*hosts[1], "ip", "link", "set", "end1", "down"], check=True)
        (_, errors_0), (_, errors_1) = collect_outputs(nodes)
        if name == "whole":
            assert [node.returncode for node in nodes] == [0, 0], errors_0 + errors_1
            assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")
    assert [node.returncode for node in nodes] == [1, 1]
    assert errors_0.splitlines()[-1].startswith("node 1 (10.99.0.2) is gone")
    assert errors_1.splitlines()[-1].startswith("node 0 (10.99.0.1) is gone")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_on_one_of_two_nodes_changes_no_weight(pair_args, pair_run, tmp_path, victim):
    """Without a restart all processes end; with one restart the job resumes."""
    out = tmp_path / "run"
    arguments = ["1", TRAIN, *pair_args, "--run.save_steps=1", f"--run.out={out}"]
    for steps, restarts in ((2, 0), (5, 1)):
        nodes = launch_nodes(f"--restarts={restarts}", *arguments)
        while read_step(out) < steps:
            assert nodes[0].poll() is None, nodes[0].stderr.read()
            time.sleep(0.01)
        processes = [p for node in nodes for p in list_processes(node).values()]
        list_processes(nodes[victim])[victim].kill()
        if not restarts:
            assert not psutil.wait_procs(processes, timeout=600)[1]
        outputs = collect_outputs(nodes)
        expected = [0, 0] if restarts else [1, 1]
        assert [node.returncode for node in nodes] == expected, outputs
        for _, errors in outputs:
            assert f"rank {victim} was killed by SIGKILL" in errors
    assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")
