"""How the launchers of several nodes find each other and learn what became of the others.

Node 0 listens at MASTER_ADDR:MASTER_PORT until all have come, and every other node keeps one
connection to it while an attempt lasts. Messages are JSON objects, one a line; node 0 passes on
what it hears. A connection that breaks means that its node is gone, so that none waits in vain.
"""

import contextlib
import json
import socket
import time
from typing import Any, Callable, Optional

from utils.job import Job, free_port, listen

LONGEST = 65536  # bytes of a message; what says more without an end of line is no launcher


class Link:
    """A connection to the launcher of another node; reading never waits."""

    def __init__(self, connection: socket.socket, peer: str):
        self.connection, self.peer, self.rest, self.lost = connection, peer, b"", False
        connection.setblocking(False)
        # A host that lost its power or its network is noticed after 10 + 4 * 5 seconds; the last
        # one is for lines that nobody has confirmed, in milliseconds.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
        for name, value in {**limits, "TCP_USER_TIMEOUT": 30000}.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: dict[str, Any]) -> None:
        """A few bytes, which the system takes at once; to one who is gone they need not go."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """What has come since the last time; sets `lost` where nothing will come any more."""
        try:
            data = self.connection.recv(LONGEST)
            self.lost = not data
        except BlockingIOError:
            return []
        except OSError:
            self.lost, data = True, b""
        *lines, self.rest = (self.rest + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if len(self.rest) > LONGEST or not all(isinstance(m, dict) for m in messages):
            self.lost, messages = True, []
        return messages

    def is_lost(self) -> bool:
        """For a link on which nothing is expected."""
        self.receive()
        return self.lost

    def close(self) -> None:
        self.connection.close()


class Meeting:
    """The connections of one attempt: none on a single node, one where this is not node 0."""

    def __init__(self, job: Job, stopped: Callable[[], bool]):
        """`stopped` says whether somebody has asked the launcher to stop."""
        self.job, self.stopped, self.deadline = job, stopped, time.monotonic() + job.patience
        self.links: list[Link] = []

    def open(self, logs: str) -> Optional[dict[str, Any]]:
        """Waits for all nodes; {"port": the scheduler's, "logs": a folder's name}, alike on all.

        Raises ValueError where a node does not come or was told something else; None if stopped.
        """
        if self.job.node:
            return self.join()
        if self.job.nodes > 1 and not self.gather():
            return None
        # A restarted scheduler need not wait for the port of the one before.
        first = self.job.port + 1 if self.job.nodes > 1 else self.job.port
        plan = {"port": free_port(self.job.master, first), "logs": logs}
        self.tell(plan)
        return plan

    def gather(self) -> bool:
        """Node 0: takes a connection of each other node."""
        came: dict[int, Link] = {}
        strangers: list[Link] = []
        with listen(self.job.master, self.job.port) as listener:
            listener.settimeout(0.1)
            while len(came) < self.job.nodes - 1:
                if self.stopped():
                    return False
                with contextlib.suppress(socket.timeout):
                    connection, peer = listener.accept()
                    strangers.append(Link(connection, peer[0]))
                came = {node: link for node, link in came.items() if not link.is_lost()}
                strangers = [link for link in strangers if not self.greet(link, came)]
                if time.monotonic() > self.deadline:
                    missing = sorted(set(range(1, self.job.nodes)) - set(came))
                    raise ValueError(
                        f"NODES={self.job.nodes}: node {', '.join(map(str, missing))} did not come "
                        f"to {self.place} within {self.job.patience:.0f} s (MASTER_TIMEOUT)"
                    )
        for link in strangers:
            link.close()
        self.links = [came[node] for node in sorted(came)]
        return True

    def greet(self, link: Link, came: dict[int, Link]) -> bool:
        """Reads a hello, if it is there; returns whether the link needs no more attention."""
        for hello in link.receive()[:1]:
            mine = {"nodes": self.job.nodes, "devices": self.job.devices}
            theirs = {name: hello.get(name) for name in mine}
            node = hello.get("node")
            reason = ""
            if theirs != mine:
                reason = f"node {node} was started with {spell(theirs)}, node 0 with {spell(mine)}"
            elif node in came or node not in range(1, self.job.nodes):
                reason = f"NODE_RANK={node} was given to two nodes ({link.peer} is one of them)"
            if reason:
                self.links = [*came.values(), link]
                self.tell({"refused": reason})
                raise ValueError(reason)
            link.peer = f"node {node} ({link.peer})"
            came[node] = link
            return True
        return link.lost

    def join(self) -> Optional[dict[str, Any]]:
        """Another node: connects to node 0, as soon as that is there, and waits for the rest."""
        mine = {"node": self.job.node, "nodes": self.job.nodes, "devices": self.job.devices}
        while time.monotonic() < self.deadline and not self.stopped():
            with contextlib.suppress(OSError):
                connection = socket.create_connection((self.job.master, self.job.port), timeout=5)
                link = Link(connection, f"node 0 ({self.job.master})")
                link.send(mine)
                plan = self.await_plan(link)
                if plan:
                    self.links = [link]
                    return plan
                link.close()
            time.sleep(0.2)
        if self.stopped():
            return None
        raise ValueError(
            f"MASTER_ADDR: node 0 did not answer at {self.place} within "
            f"{self.job.patience:.0f} s (MASTER_TIMEOUT)"
        )

    def await_plan(self, link: Link) -> Optional[dict[str, Any]]:
        """What node 0 answers; None where it went away, and may come back."""
        while time.monotonic() < self.deadline and not self.stopped() and not link.lost:
            for message in link.receive():
                if "refused" in message:
                    raise ValueError(message["refused"])
                return message
            time.sleep(0.05)
        return None

    @property
    def place(self) -> str:
        return f"{self.job.master}:{self.job.port}"

    def tell(self, message: dict[str, Any]) -> None:
        for link in self.links:
            link.send(message)

    def hear(self) -> list[dict[str, Any]]:
        """What the other nodes have said; {"lost": its name} of one that is gone."""
        heard = []
        for link in list(self.links):
            messages = link.receive()
            if link.lost:
                self.links.remove(link)
                messages.append({"lost": link.peer})
            for message in messages:
                for other in self.links:
                    if other is not link:
                        other.send(message)
            heard += messages
        return heard

    def close(self) -> None:
        for link in self.links:
            link.close()


def spell(values: dict[str, Any]) -> str:
    return " ".join(f"{name.upper()}={value}" for name, value in values.items())
