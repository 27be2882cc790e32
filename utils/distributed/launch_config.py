"""A job on several devices: what the command line, the environment and a rank table say of it.

Everything is checked here, before a process is started: a mistake is a ValueError that names the
argument or the variable.
"""

import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from utils.config import find_yaml
from utils.distributed.devices import check_devices
from utils.distributed.rank_table import RankTable, read_rank_table
from utils.messages import VALUE, shorten

PORT = 8118  # where several nodes meet if MASTER_PORT does not say


@dataclass(frozen=True)
class Job:
    """`devices` workers on each of `nodes` nodes; this is node `node`."""

    devices: int
    script: str
    arguments: tuple[str, ...] = ()
    nodes: int = 1
    node: int = 0
    master: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    restarts: int = 0
    patience: float = 300  # seconds to wait for the other nodes
    table: Optional[Path] = None
    token: str = field(default="", repr=False)  # ZOO_JOB_TOKEN, which all nodes know

    @property
    def ranks(self) -> range:
        """Those of this node."""
        return range(self.node * self.devices, (self.node + 1) * self.devices)


def read_job(arguments: Sequence[str], environ: Mapping[str, str]) -> Job:
    """From `[--restarts=N] DEVICES SCRIPT [arguments]` and the variables of the environment."""
    rest = list(arguments)
    restarts = "0"
    if rest and rest[0].startswith("--restarts"):
        name, equals, restarts = rest.pop(0).partition("=")
        if not equals:
            restarts = rest.pop(0) if rest else ""
    if len(rest) < 2:
        raise ValueError("expected [--restarts=N] DEVICES SCRIPT [arguments]")
    devices = whole("DEVICES", rest.pop(0), 1)
    table = None
    if environ.get("RANK_TABLE_FILE"):
        table = read_rank_table(Path(environ["RANK_TABLE_FILE"]))
        given = {name: value for name, value in environ.items() if value}
        environ = {**from_table(table, devices, given), **given}
    nodes = whole("NODES", environ.get("NODES") or "1", 1)
    port = environ.get("MASTER_PORT", "")
    job = Job(
        devices=devices,
        script=rest.pop(0),
        arguments=tuple(rest),
        nodes=nodes,
        node=node_rank(nodes, environ),
        master=master_address(nodes, environ),
        port=whole("MASTER_PORT", port, 1, 65500) if port else PORT if nodes > 1 else 0,
        restarts=whole("--restarts", restarts, 0),
        patience=whole("MASTER_TIMEOUT", environ.get("MASTER_TIMEOUT") or "300", 1),
        table=table.path if table else None,
        token=environ.get("ZOO_JOB_TOKEN", ""),
    )
    check_devices(devices, job.arguments, environ)
    if job.node == 0 and job.port:
        check_port(job)
    return job


def script_file(name: str) -> str:
    """The script's file, of the current folder or of this zoo; ValueError where there is none."""
    path = find_yaml(Path(name))
    if not path.is_file():
        raise ValueError(f"SCRIPT {name}: no such file; name one like tsm/train.py")
    return str(path)


def whole(name: str, text: str, lowest: int, highest: int = 10**6) -> int:
    if not text.isdecimal() or len(text) > 18 or not lowest <= int(text) <= highest:
        above = f" from {lowest} to {highest}" if highest < 10**6 else f" of at least {lowest}"
        raise ValueError(
            f"{name} must be a whole number{above}, not {shorten(text, VALUE) or 'nothing'}"
        )
    return int(text)


def node_rank(nodes: int, environ: Mapping[str, str]) -> int:
    if nodes > 1 and not environ.get("NODE_RANK"):
        raise ValueError(f"NODE_RANK is missing: which of the {nodes} nodes, from 0, is this?")
    node = whole("NODE_RANK", environ.get("NODE_RANK") or "0", 0)
    if node >= nodes:
        raise ValueError(f"NODE_RANK must be below NODES={nodes}, not {node}")
    return node


def master_address(nodes: int, environ: Mapping[str, str]) -> str:
    """The IP address of node 0; a single node talks to itself, whatever a cluster has exported."""
    if nodes == 1:
        return "127.0.0.1"
    name = environ.get("MASTER_ADDR", "")
    if not name:
        raise ValueError(f"MASTER_ADDR is missing: with NODES={nodes}, the address of node 0")
    try:
        return address_of(name)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name of a host"
        raise ValueError(f"MASTER_ADDR={name}: {reason}") from None


def address_of(name: str) -> str:
    """The IP address of a host, of version 4 where it has one; raises OSError for an unknown."""
    result = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return str(min(result, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def check_port(job: Job) -> None:
    """Raises ValueError where node 0, which this is, could not listen at the master's address."""
    try:
        listen(job.master, job.port).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(
                f"MASTER_ADDR={job.master} is no address of this host, which is node 0"
            ) from None
        raise ValueError(
            f"MASTER_PORT={job.port} at {job.master}: {error.strerror}; choose another one"
        ) from None


def listen(address: str, port: int) -> socket.socket:
    """Raises OSError where that is not possible. A port that was just left counts as free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def reserve_port(address: str, first: int = 0) -> socket.socket:
    """A socket at the first free port from `first` on; at any free one for 0.

    While it is open no other program is given the port, but MindSpore's scheduler can listen there:
    it sets SO_REUSEADDR too. The socket itself never listens.
    """
    for port in range(first, first + 100) if first else [0]:
        try:
            if port:
                listen(address, port).close()
            holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            if port:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return holder
        except OSError:
            continue
    raise ValueError(f"MASTER_PORT: no free port from {first} to {first + 99} at {address}")


def from_table(table: RankTable, devices: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a rank table stands for. Those that are set win, unless they differ."""
    if devices != table.devices:
        raise ValueError(
            f"DEVICES={devices}, but {table.path} has {table.devices} devices for each server"
        )
    nodes = str(len(table.servers))
    if environ.get("NODES", nodes) != nodes:
        raise ValueError(f"NODES={environ['NODES']}, but {table.path} has {nodes} servers")
    known = {"NODES": nodes, "MASTER_ADDR": table.servers[0]}
    if nodes != "1" and not environ.get("NODE_RANK"):
        here = [rank for rank, server in enumerate(table.servers) if is_here(server)]
        if len(here) != 1:
            raise ValueError(
                f"NODE_RANK is missing, and {'several' if here else 'no'} servers of "
                f"{table.path} are addresses of this host"
            )
        known["NODE_RANK"] = str(here[0])
    return known


def is_here(server: str) -> bool:
    """Whether this is an address of this host."""
    try:
        listen(address_of(server), 0).close()
    except OSError:
        return False
    return True
