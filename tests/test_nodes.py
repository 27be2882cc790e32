"""Several nodes, as several launchers on this host."""

import asyncio
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.helpers import (
    assert_same,
    call,
    free_port,
    launch,
    members,
    position,
    rank_table,
    write_json,
)
from utils.config import ROOT
from utils.distributed.launch_config import Job
from utils.distributed.rendezvous import Rendezvous

FAKE_WORKER = ROOT / "tests" / "fake_worker.py"
TRAIN = ROOT / "tsm" / "train.py"
HERE = {"NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def launch_nodes(*arguments, **variables: str) -> list:
    """One launcher each for two nodes, the second one first."""
    given = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **variables}
    return [launch(*arguments, **given, NODE_RANK=str(node)) for node in (1, 0)][::-1]


def ends(nodes: list, seconds: int = 200) -> list:
    """What each launcher has written: (stdout, stderr)."""
    return [node.communicate(timeout=seconds) for node in nodes]


def test_a_mistake_is_one_line_and_status_2():
    done = call("scripts/launch.py", "2", FAKE_WORKER, environment={"NODES": "two"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: NODES must be a whole number")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("node", "words"),
    [("0", "node 1 did not come to 127.0.0.1"), ("1", "MASTER_ADDR: node 0 did not answer at")],
)
def test_a_node_that_never_comes_is_waited_for_so_long(node, words):
    variables = {**HERE, "NODE_RANK": node, "MASTER_PORT": free_port(), "MASTER_TIMEOUT": "1"}
    done = call("scripts/launch.py", "--restarts=1", "1", FAKE_WORKER, environment=variables)
    assert done.returncode == 2
    assert words in done.stderr
    assert f"127.0.0.1:{variables['MASTER_PORT']}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
    port = int(free_port())
    plans = open_all(*(Job(2, "x", nodes=3, node=node, port=port, timeout=20) for node in range(3)))
    assert plans[0] == plans[1] == plans[2]
    assert plans[0]["logs"] == "folder0"
    assert plans[0]["port"] > port
    assert caplog.messages == [], "asyncio reports errors of tasks that nobody awaits"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"devices": 4}, "node 1 was started with NODES=2 DEVICES=4, node 0 with NODES=2"),
        ({"nodes": 3}, "node 1 was started with NODES=3 DEVICES=2, node 0 with NODES=2"),
        ({"node": 2, "nodes": 2}, "NODE_RANK=2 was given to two nodes"),
    ],
)
def test_nodes_that_were_told_different_things_both_say_so(other, words):
    shared = {"script": "x", "port": int(free_port()), "timeout": 20}
    first = Job(**{"devices": 2, "nodes": 2, "node": 0, **shared})
    second = Job(**{"devices": 2, "nodes": 2, "node": 1, **shared, **other})
    for said in open_all(first, second):
        assert said.startswith(words)


def test_a_node_behind_a_dead_network_is_named():
    """The system reports a TimeoutError for its connection, which in asyncio has other meanings."""
    port = int(free_port())

    async def run() -> list:
        jobs = [Job(1, "x", nodes=3, node=node, port=port, timeout=20) for node in range(3)]
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
    first, _, third = asyncio.run(run())
    assert first == third == [lost]


def test_a_stranger_at_the_port_does_no_harm():
    port = int(free_port())

    def knock() -> None:
        for word in (b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b""):
            time.sleep(0.3)
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(word)

    stranger = threading.Thread(target=knock)
    stranger.start()

    def late() -> dict:
        time.sleep(2)
        return open_all(Job(1, "x", nodes=2, node=1, port=port, timeout=20))[0]

    plans = []
    second = threading.Thread(target=lambda: plans.append(late()))
    second.start()
    plans += open_all(Job(1, "x", nodes=2, node=0, port=port, timeout=20))
    stranger.join()
    second.join()
    assert plans[0] == plans[1]


def test_a_failure_on_one_node_ends_the_other_and_names_the_rank():
    nodes = launch_nodes("1", FAKE_WORKER, "1:kill")
    (output, first), (_, second) = ends(nodes)
    assert [node.returncode for node in nodes] == [1, 1]
    assert first.splitlines()[-1].startswith("node 1: rank 1 was killed by SIGKILL; see ")
    assert second.splitlines()[-1].startswith("rank 1 was killed by SIGKILL; see ")
    assert output == ""


def test_a_node_that_is_gone_is_named():
    nodes = launch_nodes("1", FAKE_WORKER, "all:wait")
    deadline = time.monotonic() + 60
    while [len(members(node)) for node in nodes] != [2, 1] and time.monotonic() < deadline:
        time.sleep(0.05)
    processes = [p for node in nodes for p in members(node).values()]
    nodes[1].kill()
    (_, first), _ = ends(nodes)
    assert nodes[0].returncode == 1
    assert first.splitlines()[-1].startswith("node 1 (127.0.0.1) is gone")
    assert not psutil.wait_procs(processes, timeout=10)[1]


def test_both_nodes_begin_again_and_one_speaks():
    nodes = launch_nodes("--restarts=1", "1", FAKE_WORKER, "0:fail")
    (first, errors), (second, others) = ends(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors + others
    assert (first, second) == ('{"rank": 0}\n', "")
    assert "restart 1 of 1" in errors
    assert "restart 1 of 1" in others
    assert "rank 1 of 2" in others, "a node shows its own first worker"


def test_two_nodes_equal_one_with_two_devices(two, pair, tmp_path):
    nodes = launch_nodes("1", TRAIN, *two, f"--run.out={tmp_path / 'run'}")
    (first, errors), (second, others) = ends(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors + others
    assert json.loads(first.splitlines()[-1])["steps"] == 12
    assert second == ""
    assert_same(pair[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.mark.slow
def test_a_rank_table_of_two_servers_trains_the_same(two, pair, tmp_path):
    path = write_json(tmp_path / "hccl.json", rank_table())
    out = f"--run.out={tmp_path / 'run'}"
    nodes = launch_nodes("1", TRAIN, *two, out, NODES="", MASTER_ADDR="", RANK_TABLE_FILE=path)
    (first, errors), (_, others) = ends(nodes)
    assert [node.returncode for node in nodes] == [0, 0], errors + others
    assert_same(pair[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.fixture
def hosts() -> Iterator[list]:
    """Two network namespaces, 10.99.0.1 and 10.99.0.2, joined by a cable: commands to enter them.

    Skips where they cannot be made.
    """
    sleepers = [subprocess.Popen(["unshare", "--net", "sleep", "600"]) for _ in range(2)]
    inside = [["nsenter", "--net", "--target", str(sleeper.pid)] for sleeper in sleepers]
    first, second = (sleeper.pid for sleeper in sleepers)
    time.sleep(0.5)
    commands = [
        f"ip link add end0 netns {first} type veth peer name end1 netns {second}",
        *(f"{' '.join(inside[k])} ip link set lo up" for k in (0, 1)),
        *(f"{' '.join(inside[k])} ip addr add 10.99.0.{k + 1}/24 dev end{k}" for k in (0, 1)),
        *(f"{' '.join(inside[k])} ip link set end{k} up" for k in (0, 1)),
    ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        yield inside
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.slow
def test_two_hosts_train_the_same_and_notice_a_cut_cable(hosts, two, pair, tmp_path):
    """Each with a network of its own: all must be gone within 60 s of the cut."""
    arguments = ["1", TRAIN, *two, "--run.save_steps=1"]
    for name, epochs in (("whole", 2), ("cut", 2000)):
        out = tmp_path / name
        rest = [f"--train.epochs={epochs}", f"--run.out={out}"]
        given = {"NODES": "2", "MASTER_ADDR": "10.99.0.1"}
        nodes = [
            launch(*arguments, *rest, inside=hosts[node], NODE_RANK=str(node), **given)
            for node in (0, 1)
        ]
        if name == "cut":
            while position(out) < 3:
                assert nodes[0].poll() is None, nodes[0].stderr.read()
                time.sleep(0.01)
            subprocess.run([*hosts[1], "ip", "link", "set", "end1", "down"], check=True)
            began = time.monotonic()
        (_, first), (_, second) = ends(nodes)
        if name == "whole":
            assert [node.returncode for node in nodes] == [0, 0], first + second
            assert_same(pair[1]["checkpoint"], out / "epoch_002.ckpt")
    assert [node.returncode for node in nodes] == [1, 1]
    print(f"all gone {time.monotonic() - began:.1f} s after the cut")
    assert time.monotonic() - began < 60
    assert first.splitlines()[-1].startswith("node 1 (10.99.0.2) is gone")
    assert second.splitlines()[-1].startswith("node 0 (10.99.0.1) is gone")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_on_one_of_two_nodes_costs_no_bit(two, pair, tmp_path, victim):
    """First without restarts, where all must be gone soon; then with one, from where it stood."""
    out = tmp_path / "run"
    arguments = ["1", TRAIN, *two, "--run.save_steps=1", f"--run.out={out}"]
    for steps, restarts in ((2, 0), (5, 1)):
        nodes = launch_nodes(f"--restarts={restarts}", *arguments)
        while position(out) < steps:
            assert nodes[0].poll() is None, nodes[0].stderr.read()
            time.sleep(0.01)
        processes = [p for node in nodes for p in members(node).values()]
        members(nodes[victim])[victim].kill()
        began = time.monotonic()
        if not restarts:
            assert not psutil.wait_procs(processes, timeout=60)[1]
            print(f"rank {victim} killed, all gone after {time.monotonic() - began:.1f} s")
        said = ends(nodes)
        expected = [0, 0] if restarts else [1, 1]
        assert [node.returncode for node in nodes] == expected, said
        for _, errors in said:
            assert f"rank {victim} was killed by SIGKILL" in errors
    assert_same(pair[1]["checkpoint"], out / "epoch_002.ckpt")
