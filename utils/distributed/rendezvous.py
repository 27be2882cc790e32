"""Rendezvous of the launchers of several nodes, and the messages between them.

Node 0 listens at MASTER_ADDR:MASTER_PORT until every other node has connected. The connections stay
open while an attempt runs. Node 0 forwards each message to the others. A broken connection means
that its node is lost.

Protocol: each side sends a line with a nonce. Every further line is a JSON object behind its
HMAC-SHA256 over the receiver's nonce, the number of the line and the object; the key is derived
from the job's token. So the token never travels, and no line can be replayed. Node 0 drops and logs
any other connection.

MindSpore's own cluster cannot replace this. Tried with MindSpore 2.10 and `msrun --join=True`, two
hosts with a worker each on a CPU, default time limits, after which all processes were gone:

* A worker killed: 32 s; the scheduler killed: 24 s; a node killed: 54 s; the cable cut: 42 s.
* A worker that ends with an error: 64 s, and the scheduler names the other, healthy one.
* A worker that ends before it has joined the cluster, as after a wrong path: the other node waits
  for all of --cluster_time_out (still there after 200 s of 300).
* No node learns another's exit status, so that a user error would be restarted.

`multiprocessing.connection` is not used: up to Python 3.11 it signs with HMAC-MD5, does not compare
signatures in constant time, and in all versions authenticates the start of a connection only.
"""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import socket
import time
from collections.abc import Coroutine
from typing import Any, Callable, Optional

from utils.distributed.launch_config import Job, open_master_port, reserve_port
from utils.messages import print_line

HANDSHAKE_TIMEOUT = 10.0  # seconds for a line of a connection that is not authenticated
MAX_PENDING = 64  # such connections at a time
MAX_WARNINGS = 10  # lines of the log in one attempt
MAX_LINE = 16384  # bytes
GREETING = b"video-zoo-launcher "  # before the nonce
SILENT = "it sent nothing"
TOKEN_HINT = ": is ZOO_JOB_TOKEN the same on all nodes?"
# The messages and the types of their values.
SCHEMAS = (
    {"node": int, "nodes": int, "devices": int},  # the first one of a node
    {"port": int, "logs": str},  # node 0's answer: the plan
    {"finished": int},  # the node whose workers have all ended well
    {"line": str, "status": int, "severity": int},  # a failure
)


class ProtocolError(ConnectionError):
    """The other side is no launcher of this job."""


def derive_key(token: str, port: int) -> bytes:
    """The key of a job's messages. Without a token every launcher at this port knows it."""
    return hashlib.sha256(f"{port} {token}".encode(errors="surrogateescape")).digest()


def is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return {name: type(item) for name, item in value.items()} in SCHEMAS


class Peer:
    """A connection to another launcher. Reading raises OSError once it is of no more use."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, key: bytes
    ):
        self.reader, self.writer, self.name, self.key = reader, writer, name, key
        self.nonce, self.remote_nonce = secrets.token_hex(16).encode(), b""
        self.sent = self.received = 0  # lines

    async def handshake(self) -> None:
        connection = self.writer.get_extra_info("socket")
        # A host without power or network is lost after 10 + 4 * 5 seconds; the last limit is for
        # lines that nobody has confirmed, in milliseconds.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
        for name, value in {**limits, "TCP_USER_TIMEOUT": 30000}.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.writer.write(GREETING + self.nonce + b"\n")
        line = await self.read_line()
        if not re.fullmatch(GREETING + b"[0-9a-f]{32}", line) or line.endswith(self.nonce):
            raise ProtocolError("it is no launcher of this version")
        self.remote_nonce = line[len(GREETING) :]

    async def read_line(self) -> bytes:
        try:
            return (await self.reader.readuntil(b"\n"))[:-1]
        except asyncio.LimitOverrunError:
            raise ProtocolError("its line is too long") from None
        except asyncio.IncompleteReadError:
            unknown = self.remote_nonce and not self.received
            raise ConnectionResetError(f"it hung up{TOKEN_HINT if unknown else ''}") from None

    def sign(self, nonce: bytes, count: int, text: bytes) -> bytes:
        signed = b"%s %d %s" % (nonce, count, text)
        return hmac.new(self.key, signed, hashlib.sha256).hexdigest().encode()

    def send(self, message: dict[str, Any]) -> None:
        """A few bytes, which the system takes at once; a lost peer need not get them."""
        text = json.dumps(message).encode()
        self.writer.write(self.sign(self.remote_nonce, self.sent, text) + b" " + text + b"\n")
        self.sent += 1

    async def receive(self) -> dict[str, Any]:
        signature, _, text = (await self.read_line()).partition(b" ")
        if not hmac.compare_digest(signature, self.sign(self.nonce, self.received, text)):
            raise ProtocolError(f"it does not know this job{TOKEN_HINT}")
        self.received += 1
        try:
            message = json.loads(text)
        except (RecursionError, ValueError):
            message = None
        if not is_message(message):
            raise ProtocolError("it sent what no launcher of this version sends")
        return message

    def close(self) -> None:
        self.writer.transport.abort()  # what was sent is with the system already


class Rendezvous:
    """The connections of one attempt: none on a single node, one if this is not node 0."""

    def __init__(
        self, job: Job, stopped: Callable[[], bool], log: Callable[[str], None] = print_line
    ):
        """`stopped` returns whether the launcher was interrupted; `log` takes a line."""
        self.job, self.stopped, self.log = job, stopped, log
        self.key = derive_key(job.token, job.port)
        self.pending: list[Peer] = []  # node 0: connections that are not authenticated
        self.peers: dict[int, Peer] = {}  # node -> the connection to it
        self.joined: Optional[asyncio.Future] = None  # node 0: done when all nodes have joined
        self.tasks: set[asyncio.Task] = set()  # one for each connection that is read
        self.inbox: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.port_holder: Optional[socket.socket] = None  # reserves the scheduler's port

    async def open(self, logs: str) -> Optional[dict[str, Any]]:
        """Waits for all nodes; {"port": the scheduler's, "logs": a folder's name}, alike on all.

        Raises ValueError if a node does not come or has other settings; None if stopped.
        """
        deadline = time.monotonic() + self.job.timeout
        work = asyncio.ensure_future(self.join() if self.job.node else self.gather(logs))
        while not work.done() and not self.stopped() and time.monotonic() < deadline:
            await asyncio.wait({work}, timeout=0.1)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work})
        if self.stopped():
            return None
        place = f"{self.job.master}:{self.job.port} within {self.job.timeout:.0f} s"
        missing = sorted({*range(1, self.job.nodes)} - {*self.peers})
        problem = f"NODES={self.job.nodes}: node {', '.join(map(str, missing))} did not come to"
        if self.job.node:
            problem = "MASTER_ADDR: node 0 did not answer at"
        raise ValueError("; ".join([f"{problem} {place} (MASTER_TIMEOUT)", *self.warnings[-1:]]))

    async def gather(self, logs: str) -> dict[str, Any]:
        """Node 0: waits for a connection of each other node and sends them the plan."""
        port = self.job.port
        if self.job.nodes > 1:
            self.joined = asyncio.get_running_loop().create_future()
            listener = open_master_port(self.job.master, port)
            server = await asyncio.start_server(
                lambda *streams: self.start(self.admit(*streams)), sock=listener, limit=MAX_LINE
            )
            try:
                await self.joined
            finally:
                server.close()
                while self.pending:
                    self.pending.pop().close()
            port += 1  # a restarted scheduler need not wait for the port of the one before
        self.port_holder = reserve_port(self.job.master, port)
        plan = {"port": self.port_holder.getsockname()[1], "logs": logs}
        self.broadcast(plan)
        return plan

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Node 0: authenticates a connection and reads it to its end."""
        peer = Peer(reader, writer, writer.get_extra_info("peername")[0], self.key)
        self.pending.append(peer)
        if len(self.pending) > MAX_PENDING:
            self.drop(self.pending[0], "too many connections")
        try:
            await asyncio.wait_for(peer.handshake(), HANDSHAKE_TIMEOUT)
            hello = await asyncio.wait_for(peer.receive(), HANDSHAKE_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as error:
            return self.drop(peer, str(error) or SILENT)
        if peer not in self.pending or self.joined.done():
            return peer.close()
        self.pending.remove(peer)
        node, problem = hello.pop("node", None), ""
        own = {"nodes": self.job.nodes, "devices": self.job.devices}
        if hello != own:
            problem = f"node {node} was started with {spell(hello)}, node 0 with {spell(own)}"
        elif node in self.peers or node not in range(1, self.job.nodes):
            problem = f"NODE_RANK={node} was given to two nodes ({peer.name} is one of them)"
        if problem:
            peer.send(refusal := {"line": problem, "status": 2, "severity": 0})
            self.broadcast(refusal)
            return self.joined.set_exception(ValueError(problem))
        peer.name = f"node {node} ({peer.name})"
        self.peers[node] = peer
        if len(self.peers) == self.job.nodes - 1:
            self.joined.set_result(None)
        return await self.read(node)

    def start(self, work: Coroutine) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def drop(self, peer: Peer, reason: str) -> None:
        if peer in self.pending:
            self.pending.remove(peer)
            peer.close()
            self.warn(f"dropped an unauthenticated connection from {peer.name}: {reason}")

    def warn(self, line: str) -> None:
        if line not in self.warnings[-1:] and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(line)
            self.log(line)

    async def join(self) -> dict[str, Any]:
        """Another node: connects to node 0, as soon as that listens, and waits for the plan."""
        while True:
            peer = None
            try:
                connecting = asyncio.open_connection(self.job.master, self.job.port, limit=MAX_LINE)
                streams = await asyncio.wait_for(connecting, 5)
                peer = Peer(*streams, f"node 0 ({self.job.master})", self.key)
                await asyncio.wait_for(peer.handshake(), HANDSHAKE_TIMEOUT)
                own = {"nodes": self.job.nodes, "devices": self.job.devices}
                peer.send({"node": self.job.node, **own})
                plan = await peer.receive()
                if "port" not in plan:
                    raise ValueError(plan.get("line", "node 0 sent no plan"))
                self.peers[0] = peer
                self.start(self.read(0))
                return plan
            except (OSError, asyncio.TimeoutError) as error:
                if peer:
                    self.warn(f"no plan from {peer.name}: {str(error) or SILENT}")
                    peer.close()
            await asyncio.sleep(0.2)

    async def read(self, node: int) -> None:
        """Takes the messages of a node until it is lost. Node 0 forwards them to the others."""
        peer = self.peers[node]
        try:
            while True:
                message = await peer.receive()
                self.inbox.append(message)
                self.broadcast(message, node)
        except OSError:
            peer.close()
            del self.peers[node]
            if self.joined is None or self.joined.done():
                line = f"{peer.name} is gone: its launcher or host ended"
                self.inbox.append({"line": line, "status": 1, "severity": 0})
                self.broadcast(self.inbox[-1])

    def broadcast(self, message: dict[str, Any], sender: int = -1) -> None:
        for node, peer in self.peers.items():
            if node != sender:
                peer.send(message)

    def poll(self) -> list[dict[str, Any]]:
        """The messages of the other nodes since the last call."""
        messages, self.inbox = self.inbox, []
        return messages

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        if self.port_holder:
            self.port_holder.close()


def spell(values: dict[str, Any]) -> str:
    return " ".join(f"{name.upper()}={value}" for name, value in values.items())
