"""Rendezvous of the launchers of several nodes, and the messages between them.

Node 0 listens at MASTER_ADDR:MASTER_PORT until every other node has connected. The connections stay
open while an attempt runs. Node 0 forwards each message to the others. A broken connection means
that its node is lost.

Protocol: each message is a line with a JSON object, which contains the job's token. Node 0 drops
and logs a connection whose first line is not the message of a node of this job. Later lines that
are malformed or have another token are ignored and logged.

msrun starts the workers of a node, and MindSpore's own cluster connects them. Neither can replace
this module. Measured with MindSpore 2.10, `msrun --join=True`, two hosts with one worker each on a
CPU and default time limits: the time until all processes had ended.

* A worker killed: 32 s; the scheduler killed: 24 s; a node killed: 54 s; the cable cut: 42 s.
* A worker that fails with an error: 64 s, and the scheduler names the other, healthy worker.
* A worker that fails before it has joined the cluster, for example because of a wrong path: the
  other node waits for all of --cluster_time_out (still there after 200 s of 300).
* No node gets the exit status of another, so a user error would be restarted.
"""

import asyncio
import hmac
import json
import socket
from typing import Any, Callable, Optional

from scripts.launcher.launch_config import Job, listen, reserve_port
from utils.messages import print_line

HELLO_TIMEOUT = 10.0  # seconds until the first message of a connection must have come
MAX_WARNINGS = 10  # lines of the log in one attempt
MAX_LINE = 16384  # bytes
TOKEN_HINT = "is ZOO_JOB_TOKEN the same on all nodes?"
UNKNOWN_MESSAGE = "it sent what no launcher of this version sends"
# A host without power or network is lost after 10 + 4 * 5 seconds. The last limit is for lines that
# the other host does not confirm, in milliseconds.
TCP_LIMITS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30000}
# The messages and the types of their values.
SCHEMAS = (
    {"node": int, "nodes": int, "devices": int},  # the first message of a node
    {"port": int, "logs": str},  # node 0's answer: the plan
    {"finished": int},  # the node whose workers have all ended well
    {"line": str, "status": int, "severity": int},  # a failure
)


def decode_message(line: bytes, token: str) -> dict[str, Any]:
    """The message in a line; ValueError if it is malformed or has another token."""
    try:
        message = json.loads(line)
        token_bytes = message.pop("token").encode(errors="surrogateescape")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError(UNKNOWN_MESSAGE) from None
    if not hmac.compare_digest(token_bytes, token.encode(errors="surrogateescape")):
        raise ValueError(f"it does not know this job: {TOKEN_HINT}")
    if {name: type(value) for name, value in message.items()} not in SCHEMAS:
        raise ValueError(UNKNOWN_MESSAGE)
    return message


class Peer:
    """A connection to another launcher."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, token: str
    ):
        self.reader = reader
        self.writer = writer
        self.name = name
        self.token = token
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_LIMITS.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, message: dict[str, Any]) -> None:
        """Never waits: a message is short, and a lost peer need not get it."""
        self.writer.write(json.dumps({**message, "token": self.token}).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises OSError once the connection has ended, else ValueError."""
        line = await self.reader.readline()  # ValueError: too long
        if not line.endswith(b"\n"):
            raise ConnectionError("it hung up")
        return decode_message(line, self.token)

    def close(self) -> None:
        self.writer.transport.abort()  # what was sent is with the system already


class Rendezvous:
    """The connections of one attempt: none on a single node, one if this is not node 0."""

    def __init__(self, job: Job, log: Callable[[str], None] = print_line):
        self.job = job
        self.log = log
        self.token = job.token or f"video-zoo {job.port}"
        self.settings = {"nodes": job.nodes, "devices": job.devices}  # alike on all nodes
        self.peers: dict[int, Peer] = {}  # node -> the connection to it
        self.joined = asyncio.get_running_loop().create_future()  # done when all nodes have joined
        self.inbox: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.port_holder: Optional[socket.socket] = None  # reserves the scheduler's port

    async def open(self, logs: str) -> dict[str, Any]:
        """Waits for all nodes; {"port": the scheduler's, "logs": a folder's name}, alike on all.

        Raises ValueError if a node does not come or has other settings.
        """
        opening = self.join() if self.job.node else self.gather(logs)
        try:
            return await asyncio.wait_for(opening, self.job.timeout)
        except asyncio.TimeoutError:
            missing = [str(node) for node in range(1, self.job.nodes) if node not in self.peers]
            problem = f"NODES={self.job.nodes}: node {', '.join(missing)} did not come to"
            if self.job.node:
                problem = "MASTER_ADDR: node 0 did not answer at"
            problem += f" {self.job.master}:{self.job.port} within {self.job.timeout:.0f} s"
            problem = "; ".join([f"{problem} (MASTER_TIMEOUT)", *self.warnings[-1:]])
            raise ValueError(problem) from None

    async def gather(self, logs: str) -> dict[str, Any]:
        """Node 0: waits for a connection of each other node and sends them the plan."""
        port = self.job.port
        if self.job.nodes > 1:
            # A lambda: up to Python 3.11, asyncio reports an error for a cancelled coroutine.
            server = await asyncio.start_server(
                lambda *streams: asyncio.ensure_future(self.admit(*streams)),
                sock=listen(self.job.master, port),
                limit=MAX_LINE,
            )
            try:
                await self.joined
            finally:
                server.close()
            port += 1  # a restarted scheduler need not wait for the port of the one before
        self.port_holder = reserve_port(self.job.master, port)
        plan = {"port": self.port_holder.getsockname()[1], "logs": logs}
        self.broadcast(plan)
        return plan

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Node 0: checks the first message of a connection and reads it to its end."""
        peer = Peer(
            reader, writer=writer, name=writer.get_extra_info("peername")[0], token=self.token
        )
        try:
            hello = await asyncio.wait_for(peer.receive(), HELLO_TIMEOUT)
            if "node" not in hello or self.joined.done():
                raise ValueError(UNKNOWN_MESSAGE)
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            peer.close()
            if not self.joined.done():
                self.warn(f"dropped a foreign connection from {peer.name}", error)
            return
        node = hello["node"]
        problem = ""
        if hello != {"node": node, **self.settings}:
            settings = "NODES={nodes} DEVICES={devices}".format
            own = settings(**self.settings)
            other = settings(**hello)
            problem = f"node {node} was started with {other}, node 0 with {own}"
        elif node in self.peers or node not in range(1, self.job.nodes):
            problem = f"NODE_RANK={node} was given to two nodes ({peer.name} is one of them)"
        if problem:
            for receiver in (peer, *self.peers.values()):
                receiver.send({"line": problem, "status": 2, "severity": 0})
            self.joined.set_exception(ValueError(problem))
            return
        peer.name = f"node {node} ({peer.name})"
        self.peers[node] = peer
        if len(self.peers) == self.job.nodes - 1:
            self.joined.set_result(None)
        await self.read(node)

    async def join(self) -> dict[str, Any]:
        """Another node: connects to node 0, as soon as that listens, and waits for the plan."""
        while True:
            peer = None
            try:
                connecting = asyncio.open_connection(self.job.master, self.job.port, limit=MAX_LINE)
                reader, writer = await asyncio.wait_for(connecting, HELLO_TIMEOUT)
                peer = Peer(
                    reader, writer=writer, name=f"node 0 ({self.job.master})", token=self.token
                )
                peer.send({"node": self.job.node, **self.settings})
                plan = await peer.receive()
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                if peer:
                    peer.close()
                    hint = f"; {TOKEN_HINT}" if isinstance(error, OSError) else ""
                    self.warn(f"no plan from {peer.name}", f"{error}{hint}")
                await asyncio.sleep(0.2)
                continue
            if "port" not in plan:
                raise ValueError(plan.get("line", UNKNOWN_MESSAGE))
            self.peers[0] = peer
            self.joined.set_result(None)
            self.reading = asyncio.ensure_future(self.read(0))
            return plan

    def warn(self, event: str, error: object) -> None:
        line = f"{event}: {str(error) or 'it sent nothing'}"
        if line not in self.warnings[-1:] and len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(line)
            self.log(line)

    async def read(self, node: int) -> None:
        """Takes the messages of a node until it is lost. Node 0 forwards them to the others."""
        peer = self.peers[node]
        while node in self.peers:
            try:
                self.deliver(await peer.receive(), node)
            except ValueError as error:
                self.warn(f"ignored a line from {peer.name}", error)
            except OSError:
                peer.close()
                del self.peers[node]
        if self.joined.done():
            line = f"{peer.name} is gone: its launcher or host ended"
            self.deliver({"line": line, "status": 1, "severity": 0}, node)

    def deliver(self, message: dict[str, Any], sender: int) -> None:
        self.inbox.append(message)
        self.broadcast(message, sender)

    def broadcast(self, message: dict[str, Any], sender: int = -1) -> None:
        """Sends a message to every other node but `sender`."""
        for node, peer in self.peers.items():
            if node != sender:
                peer.send(message)

    def poll(self) -> list[dict[str, Any]]:
        """The messages of the other nodes since the last call."""
        messages = self.inbox
        self.inbox = []
        return messages

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        if self.port_holder:
            self.port_holder.close()
