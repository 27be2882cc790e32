"""Strangers at the port of a job on several nodes: they are dropped, and the job goes on."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers import free_port, launch
from utils.config import ROOT
from utils.distributed import rendezvous
from utils.distributed.launch_config import Job, listen
from utils.distributed.link import GREETING, Link, is_message, job_key
from utils.distributed.rendezvous import Meeting

HELLO = b'{"nodes":2,"devices":1,"node":1}\n'
OWN = GREETING + b"0" * 32 + b"\n"
STRANGERS = {
    "a list for a node": b'{"nodes":2,"devices":1,"node":[1]}\n',
    "60,000 brackets": b"[" * 60000 + b"\n",
    "a list that has ended": HELLO + b'{"finished":[1]}\n',
    "half a failure": HELLO + b'{"line":"x"}\n',
    "an empty object": b"{}\n",
    "half a line": b'{"nodes":2,"dev',
    "silence": b"",
    "a web browser": b"GET / HTTP/1.0\r\n\r\n",
    "a line without an end": b"x" * 300_000,
    "control characters": bytes(range(256)) + b"\n",
    "a greeting alone": OWN,
    "two greetings": OWN + OWN,
    "a hello without a signature": OWN + HELLO,
    "a hello with another signature": OWN + b"f" * 64 + b" " + HELLO,
    "a signature that is no text": OWN + b"\xff" * 64 + b" " + HELLO,
}


def make_job(node: int, port: int, **settings) -> Job:
    return Job(1, "x", nodes=2, node=node, port=port, **{"patience": 20, **settings})


class Opening(threading.Thread):
    """A meeting that opens in the background: `plan`, or the `error`; and its log's `lines`."""

    def __init__(self, job: Job):
        super().__init__(daemon=True)
        self.lines, self.plan, self.error = [], None, ""
        self.meeting = Meeting(job, lambda: False, self.lines.append)
        self.start()

    def run(self) -> None:
        try:
            self.plan = self.meeting.open("logs")
        except ValueError as error:
            self.error = str(error)


def knock(port: int, words: bytes = b"") -> socket.socket:
    """Connects as soon as somebody listens there, and says something."""
    deadline = time.monotonic() + 10
    while True:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with contextlib.suppress(OSError):  # node 0 may hang up before it has read everything
        stranger.sendall(words)
    return stranger


def assert_agree(first: Opening, port: int) -> None:
    second = Opening(make_job(1, port))
    for each in (first, second):
        each.join(20)
    assert first.plan == second.plan
    assert first.plan["logs"] == "logs"
    for each in (first, second):
        each.meeting.close()


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_who_comes_first_keeps_no_node_out(name):
    port = int(free_port())
    first = Opening(make_job(0, port))
    with knock(port, STRANGERS[name]):
        assert_agree(first, port)
    assert all(line.startswith("a stranger at 127.0.0.1 was dropped: ") for line in first.lines)
    assert len(first.lines) == (name not in ("half a line", "silence", "a greeting alone"))


def test_a_flood_of_silent_strangers_keeps_no_node_out():
    port = int(free_port())
    first = Opening(make_job(0, port))
    with contextlib.ExitStack() as stack:
        for _ in range(3 * rendezvous.MOST_VISITORS):
            stack.enter_context(knock(port))
        assert_agree(first, port)
    assert 0 < len(first.lines) <= rendezvous.MOST_LINES


def test_strangers_do_not_fill_the_log():
    port = int(free_port())
    first = Opening(make_job(0, port))
    for _ in range(rendezvous.MOST_LINES):
        for words in (b"x\n", OWN + HELLO):
            with knock(port, words) as stranger, contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
    assert_agree(first, port)
    assert len(first.lines) == rendezvous.MOST_LINES


def test_a_silent_stranger_is_dropped_after_a_while(monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.3)
    port = int(free_port())
    first = Opening(make_job(0, port))
    with knock(port) as stranger:
        assert stranger.recv(100).startswith(GREETING)
        assert stranger.recv(100) == b""
    assert_agree(first, port)
    assert first.lines == ["a stranger at 127.0.0.1 was dropped: it says nothing"]


def test_nobody_can_connect_while_the_job_runs():
    port = int(free_port())
    first = Opening(make_job(0, port))
    second = Opening(make_job(1, port))
    for each in (first, second):
        each.join(20)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    second.meeting.tell({"finished": 1})
    time.sleep(0.2)
    assert first.meeting.hear() == [{"finished": 1}]
    for each in (first, second):
        each.meeting.close()


@pytest.mark.parametrize("words", [b"", b'{"port":1,"logs":"x"}\n', OWN, OWN + b'{"port":1}\n'])
def test_a_stranger_in_the_place_of_node_0_is_left_for_the_real_one(words):
    port = int(free_port())
    with listen("127.0.0.1", port) as listener:
        second = Opening(make_job(1, port))
        stranger, _ = listener.accept()
        stranger.sendall(words)
        time.sleep(0.3)
        assert second.plan is None
        stranger.close()
    first = Opening(make_job(0, port))
    for each in (first, second):
        each.join(20)
    assert first.plan == second.plan
    assert first.plan["logs"] == "logs"
    for each in (first, second):
        each.meeting.close()


def test_another_token_is_named_on_both_nodes():
    port = int(free_port())
    first = Opening(make_job(0, port, patience=2, token="one"))
    second = Opening(make_job(1, port, patience=2, token="another"))
    for each in (first, second):
        each.join(20)
        assert each.plan is None
        assert each.error.endswith("is ZOO_JOB_TOKEN the same on all nodes?")
        assert len(each.lines) == 1


@contextlib.contextmanager
def link_pair(key: bytes) -> Iterator[tuple]:
    """Two ends of a connection: a Link, and a socket that a second Link may take."""
    with listen("127.0.0.1", 0) as listener:
        other = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    link = Link(connection, "peer", key)
    yield link, other
    link.close()
    other.close()


def receive(link: Link) -> list:
    """What comes within a moment."""
    deadline, found = time.monotonic() + 0.3, []
    while not found and not link.lost and time.monotonic() < deadline:
        found = link.receive()
        time.sleep(0.01)
    return found


def test_lines_that_were_recorded_cannot_be_sent_again():
    key = job_key("secret", 8118)
    with link_pair(key) as (link, other):
        peer = Link(other, "peer", key)
        written = []
        peer.write = lambda line: (written.append(line), Link.write(peer, line))
        peer.send({"finished": 1})
        assert receive(link) == []
        assert receive(peer) == []
        assert receive(link) == [{"finished": 1}]
        peer.connection.sendall(written[-1] + b"\n")
        assert receive(link) == []
        assert "does not know this job" in link.fault
    with link_pair(key) as (link, other):
        other.sendall(OWN + b"".join(line + b"\n" for line in written))
        assert receive(link) == []
        assert "does not know this job" in link.fault


def test_a_node_of_another_version_ends_the_link_and_nothing_else():
    key = job_key("", 8118)
    for message in ({"finished": [1]}, {"line": "x"}, {}, [], {"node": True}):
        assert not is_message(message)
        with link_pair(key) as (link, other):
            peer = Link(other, "peer", key)
            peer.send(message)
            assert receive(link) == receive(peer) == []
            assert receive(link) == []
            assert link.fault == "it sent what no launcher of this version sends"


def test_the_token_is_not_shown():
    assert "secret" not in repr(make_job(0, 8118, token="secret"))


def test_a_job_with_strangers_at_its_port_all_the_time_ends_well():
    """Two real launchers; every stranger comes again and again, while they wait and later."""
    port = free_port()
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for words in STRANGERS.values():
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", int(port)), timeout=1).sendall(words)
            time.sleep(0.05)

    strangers = threading.Thread(target=come_and_go)
    strangers.start()
    given = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ZOO_JOB_TOKEN": "s3"}
    try:
        arguments = ["1", ROOT / "tests" / "fake_worker.py"]
        first = launch(*arguments, **given, NODE_RANK="0")
        time.sleep(3)
        second = launch(*arguments, **given, NODE_RANK="1")
        (output, errors), (_, others) = (each.communicate(timeout=200) for each in (first, second))
    finally:
        ended.set()
        strangers.join()
    assert (first.returncode, second.returncode) == (0, 0), errors + others
    assert json.loads(output) == {"rank": 0}
    assert "Traceback" not in errors + others
    dropped = [line for line in errors.splitlines() if "a stranger at 127.0.0.1" in line]
    assert 0 < len(dropped) <= rendezvous.MOST_LINES
