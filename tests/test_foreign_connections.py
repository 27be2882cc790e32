"""Foreign connections to the port of a job on several nodes are dropped; the job continues."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest

from scripts.launcher import rendezvous
from scripts.launcher.launch_config import Job, listen
from scripts.launcher.rendezvous import Rendezvous, decode_message
from tests.helpers import pick_port, start_launcher
from utils.config import ROOT

HELLO = b'{"nodes":2,"devices":1,"node":1}\n'
FOREIGN_DATA = {
    "60,000 brackets": b"[" * 60000 + b"\n",
    "an empty object": b"{}\n",
    "half a line": b'{"nodes":2,"dev',
    "silence": b"",
    "a web browser": b"GET / HTTP/1.0\r\n\r\n",
    "a line without an end": b"x" * 300_000,
    "control characters": bytes(range(256)) + b"\n",
    "a node without a token": HELLO,
    "a node with another token": b'{"token":"x",' + HELLO[1:],
    "a token that is a list": b'{"token":["x"],' + HELLO[1:],
}
DROPPED = "dropped a foreign connection from 127.0.0.1: "


def make_job(node: int, port: int, **settings) -> Job:
    return Job(1, "x", nodes=2, node=node, port=port, **{"timeout": 20, **settings})


class Opening(threading.Thread):
    """A rendezvous that opens in a thread: its `plan` or `error`, and the `lines` of its log."""

    def __init__(self, job: Job):
        super().__init__(daemon=True)
        self.job = job
        self.lines = []
        self.plan = None
        self.error = ""
        self.opened = threading.Event()
        self.closed = threading.Event()
        self.start()

    def run(self) -> None:
        asyncio.run(self.open())

    async def open(self) -> None:
        node = Rendezvous(self.job, self.lines.append)
        try:
            self.plan = await node.open("logs")
        except ValueError as error:
            self.error = str(error)
        self.opened.set()
        while self.plan and not self.closed.is_set():
            await asyncio.sleep(0.01)
        node.close()

    def finish(self) -> None:
        self.closed.set()
        self.join(600)
        assert not self.is_alive()


def connect(port: int, data: bytes = b"") -> socket.socket:
    """Connects as soon as a launcher listens, and sends `data`."""
    deadline = time.monotonic() + 600
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with contextlib.suppress(OSError):  # node 0 may close the connection before it has read all
        connection.sendall(data)
    return connection


async def wait_for_messages(node: Rendezvous) -> list:
    while not (messages := node.poll()):
        await asyncio.sleep(0.01)
    return messages


def assert_same_plan(*nodes: Opening) -> None:
    """Asserts that two nodes get the same plan, and that both end."""
    for node in nodes:
        assert node.opened.wait(600)
    assert nodes[0].plan == nodes[1].plan
    assert nodes[0].plan["logs"] == "logs"
    for node in nodes:
        node.finish()


@pytest.mark.parametrize("name", FOREIGN_DATA)
def test_a_foreign_connection_before_node_1_is_dropped(name):
    port = int(pick_port())
    node_0 = Opening(make_job(0, port))
    with connect(port, FOREIGN_DATA[name]):
        assert_same_plan(node_0, Opening(make_job(1, port)))
    assert all(line.startswith(DROPPED) for line in node_0.lines)
    assert len(node_0.lines) == (name not in ("half a line", "silence"))


def test_silent_foreign_connections_do_not_block_node_1():
    port = int(pick_port())
    node_0 = Opening(make_job(0, port))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(port))
        assert_same_plan(node_0, Opening(make_job(1, port)))
    assert node_0.lines == []


def test_foreign_connections_do_not_fill_the_log():
    port = int(pick_port())
    node_0 = Opening(make_job(0, port))
    for _ in range(rendezvous.MAX_WARNINGS):
        for data in (b"x\n", FOREIGN_DATA["a node with another token"]):
            with connect(port, data) as connection, contextlib.suppress(ConnectionResetError):
                while connection.recv(100):
                    pass
    assert_same_plan(node_0, Opening(make_job(1, port)))
    assert len(node_0.lines) == rendezvous.MAX_WARNINGS


def test_a_silent_foreign_connection_is_dropped_after_a_timeout(monkeypatch):
    monkeypatch.setattr(rendezvous, "HELLO_TIMEOUT", 0.3)
    port = int(pick_port())
    node_0 = Opening(make_job(0, port))
    with connect(port) as connection:
        assert connection.recv(100) == b""
    assert_same_plan(node_0, Opening(make_job(1, port)))
    assert node_0.lines == [f"{DROPPED}it sent nothing"]


def test_the_port_is_closed_while_the_job_runs():
    port = int(pick_port())

    async def run() -> None:
        nodes = [Rendezvous(make_job(node, port)) for node in (0, 1)]
        await asyncio.gather(*(node.open("logs") for node in nodes))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        nodes[1].broadcast({"finished": 1})
        assert await wait_for_messages(nodes[0]) == [{"finished": 1}]
        for node in nodes:
            node.close()

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"", b'{"port":1,"logs":"x"}\n', b"x" * 300_000])
def test_node_1_leaves_a_foreign_server_at_the_port_of_node_0(data):
    port = int(pick_port())
    with listen("127.0.0.1", port) as listener:
        node_1 = Opening(make_job(1, port))
        connection, _ = listener.accept()
        connection.sendall(data)
        time.sleep(0.3)
        assert node_1.plan is None
        connection.close()
    assert_same_plan(Opening(make_job(0, port)), node_1)


def test_different_tokens_are_named_on_both_nodes():
    port = int(pick_port())
    node_0 = Opening(make_job(0, port=port, timeout=2, token="one"))
    node_1 = Opening(make_job(1, port=port, timeout=2, token="another"))
    for node in (node_0, node_1):
        assert node.opened.wait(600)
        assert node.plan is None
        assert node.error.endswith("is ZOO_JOB_TOKEN the same on all nodes?")
        assert len(node.lines) == 1


TOKEN = '{"token": "secret", '


def test_a_message_with_the_token_is_read():
    line = f'{TOKEN}"finished": 1}}'.encode()
    assert decode_message(line, "secret") == {"finished": 1}
    with pytest.raises(ValueError, match="it does not know this job: is ZOO_JOB_TOKEN the same"):
        decode_message(line, "another")


def test_a_token_of_any_bytes_is_compared():
    """An environment variable that is not UTF-8 has surrogates."""
    token = b"\xff".decode(errors="surrogateescape")
    line = json.dumps({"token": token, "finished": 1}).encode()
    assert decode_message(line, token) == {"finished": 1}


@pytest.mark.parametrize(
    "line",
    [
        f'{TOKEN}"finished": [1]}}',
        f'{TOKEN}"line": "x"}}',
        f'{TOKEN}"nodes": 2, "devices": 1, "node": true}}',
        '{"token": "secret"}',
        '{"token": "\\ud800", "finished": 1}',
        "[]",
        "{}",
        "3",
    ],
)
def test_a_malformed_message_is_a_value_error(line):
    with pytest.raises(ValueError, match="^it sent what no launcher of this version sends"):
        decode_message(line.encode(), "secret")


def test_a_malformed_line_of_a_node_is_ignored_and_logged():
    port = int(pick_port())
    lines: list[str] = []

    async def run() -> list:
        nodes = [Rendezvous(make_job(node, port), lines.append) for node in (0, 1)]
        await asyncio.gather(*(node.open("logs") for node in nodes))
        for line in (b"x" * 300_000, b'{"finished": 1}'):
            nodes[1].peers[0].writer.write(line + b"\n")
        nodes[1].broadcast({"finished": 1})
        messages = await wait_for_messages(nodes[0])
        for node in nodes:
            node.close()
        return messages

    assert asyncio.run(run()) == [{"finished": 1}]
    assert lines
    assert all(line.startswith("ignored a line from node 1 (127.0.0.1): ") for line in lines)


def test_a_job_does_not_print_its_token():
    assert "secret" not in repr(make_job(0, 8118, token="secret"))


def test_a_job_completes_despite_foreign_connections():
    """Two launchers; foreign connections come repeatedly, before and after node 1 joins."""
    port = pick_port()
    ended = threading.Event()

    def connect_repeatedly() -> None:
        while not ended.is_set():
            for data in FOREIGN_DATA.values():
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", int(port)), timeout=1).sendall(data)
            time.sleep(0.05)

    foreign = threading.Thread(target=connect_repeatedly)
    foreign.start()
    variables = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    variables["ZOO_JOB_TOKEN"] = "s3"
    try:
        arguments = ["1", ROOT / "tests" / "fake_worker.py"]
        node_0 = start_launcher(*arguments, **variables, NODE_RANK="0")
        time.sleep(3)
        node_1 = start_launcher(*arguments, **variables, NODE_RANK="1")
        (output, errors_0), (_, errors_1) = (
            node.communicate(timeout=600) for node in (node_0, node_1)
        )
    finally:
        ended.set()
        foreign.join()
    assert (node_0.returncode, node_1.returncode) == (0, 0), errors_0 + errors_1
    assert json.loads(output) == {"rank": 0}
    assert "Traceback" not in errors_0 + errors_1
    dropped = [line for line in errors_0.splitlines() if line.startswith(DROPPED)]
    assert 0 < len(dropped) <= rendezvous.MAX_WARNINGS
