"""How the launchers of several nodes find each other and learn what became of the others.

Node 0 listens at MASTER_ADDR:MASTER_PORT until all have come, and every other node keeps one
connection to it while an attempt lasts. Node 0 passes on what it hears. A connection that breaks
means that its node is gone, so that none waits in vain. Whoever else connects does not know the
job's token (utils/distributed/link.py), is dropped, and costs a line of the log.
"""

import contextlib
import socket
import sys
import time
from typing import Any, Callable, Optional

from utils.distributed.launch_config import Job, listen, reserve_port
from utils.distributed.link import Link, job_key
from utils.messages import format_line

MOST_VISITORS = 64  # connections at a time that have not said which node they are
PATIENCE = 10.0  # seconds for a connection to say it
MOST_LINES = 10  # of the log, about strangers in one attempt


def print_line(line: str) -> None:
    print(format_line(line), file=sys.stderr, flush=True)


class Meeting:
    """The connections of one attempt: none on a single node, one where this is not node 0."""

    def __init__(
        self, job: Job, stopped: Callable[[], bool], log: Callable[[str], None] = print_line
    ):
        """`stopped` says whether somebody has asked the launcher to stop; `log` takes a line."""
        self.job, self.stopped, self.deadline = job, stopped, time.monotonic() + job.patience
        self.key, self.log = job_key(job.token, job.port), log
        self.dropped: list[str] = []  # lines about strangers
        self.links: list[Link] = []
        self.reserved: Optional[socket.socket] = None  # keeps the scheduler's port

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
        self.reserved = reserve_port(self.job.master, first)
        plan = {"port": self.reserved.getsockname()[1], "logs": logs}
        self.tell(plan)
        return plan

    def gather(self) -> bool:
        """Node 0: takes a connection of each other node."""
        came: dict[int, Link] = {}
        visitors: list[Link] = []
        with listen(self.job.master, self.job.port) as listener:
            listener.settimeout(0.1)
            while len(came) < self.job.nodes - 1:
                if self.stopped():
                    return False
                with contextlib.suppress(OSError):  # nobody came, or has left again
                    connection, peer = listener.accept()
                    visitors.append(Link(connection, peer[0], self.key))
                came = {node: link for node, link in came.items() if not link.is_lost()}
                visitors = [link for link in visitors if not self.greet(link, came)]
                visitors = self.dismiss(visitors)
                if time.monotonic() > self.deadline:
                    missing = sorted(set(range(1, self.job.nodes)) - set(came))
                    raise ValueError(
                        f"NODES={self.job.nodes}: node {', '.join(map(str, missing))} did not come "
                        f"to {self.location} within {self.job.patience:.0f} s (MASTER_TIMEOUT)"
                        f"{'; ' if self.dropped else ''}{self.dropped[-1] if self.dropped else ''}"
                    )
        for link in visitors:
            link.close()
        self.links = [came[node] for node in sorted(came)]
        return True

    def dismiss(self, visitors: list[Link]) -> list[Link]:
        """Drops those who say nothing for too long, and the oldest if there are too many."""
        old = time.monotonic() - PATIENCE
        for position, link in enumerate(visitors):
            if link.began < old or position < len(visitors) - MOST_VISITORS:
                link.give_up("it says nothing")
                self.drop(link)
        return [link for link in visitors if not link.lost]

    def drop(self, link: Link) -> None:
        link.close()
        line = f"a stranger at {link.peer} was dropped: {link.fault or 'it left'}"
        if line not in self.dropped[-1:] and len(self.dropped) < MOST_LINES:
            self.dropped.append(line)
            self.log(line)

    def greet(self, link: Link, came: dict[int, Link]) -> bool:
        """Reads a hello, if it is there; returns whether the link needs no more attention."""
        for hello in link.receive()[:1]:
            if "node" not in hello:
                link.give_up("it does not say which node it is")
                break
            node = hello.pop("node")
            mine = {"nodes": self.job.nodes, "devices": self.job.devices}
            reason = ""
            if hello != mine:
                reason = f"node {node} was started with {spell(hello)}, node 0 with {spell(mine)}"
            elif node in came or node not in range(1, self.job.nodes):
                reason = f"NODE_RANK={node} was given to two nodes ({link.peer} is one of them)"
            if reason:
                self.links = [*came.values(), link]
                self.tell({"refused": reason})
                raise ValueError(reason)
            link.peer = f"node {node} ({link.peer})"
            came[node] = link
            return True
        if link.lost:
            self.drop(link)
        return link.lost

    def join(self) -> Optional[dict[str, Any]]:
        """Another node: connects to node 0, as soon as that is there, and waits for the rest."""
        mine = {"node": self.job.node, "nodes": self.job.nodes, "devices": self.job.devices}
        fault = ""
        while time.monotonic() < self.deadline and not self.stopped():
            with contextlib.suppress(OSError):
                connection = socket.create_connection((self.job.master, self.job.port), timeout=5)
                link = Link(connection, f"node 0 ({self.job.master})", self.key)
                link.send(mine)
                plan = self.await_plan(link)
                if plan:
                    self.links = [link]
                    return plan
                link.close()
                if link.fault and link.fault != fault:
                    fault = link.fault
                    self.log(f"no plan from {self.location}: {fault}")
            time.sleep(0.2)
        if self.stopped():
            return None
        raise ValueError(
            f"MASTER_ADDR: node 0 did not answer at {self.location} within "
            f"{self.job.patience:.0f} s (MASTER_TIMEOUT){'; ' if fault else ''}{fault}"
        )

    def await_plan(self, link: Link) -> Optional[dict[str, Any]]:
        """What node 0 answers; None if it went away, and may come back."""
        while time.monotonic() < self.deadline and not self.stopped() and not link.lost:
            for message in link.receive():
                if "refused" in message:
                    raise ValueError(message["refused"])
                if "port" in message:
                    return message
            if not link.theirs and link.began < time.monotonic() - PATIENCE:
                link.give_up("it says nothing")
            time.sleep(0.05)
        if link.theirs and link.lost and not link.fault:
            link.fault = "it hung up: is ZOO_JOB_TOKEN the same on all nodes?"
        return None

    @property
    def location(self) -> str:
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
        if self.reserved:
            self.reserved.close()


def spell(values: dict[str, Any]) -> str:
    return " ".join(f"{name.upper()}={value}" for name, value in values.items())
