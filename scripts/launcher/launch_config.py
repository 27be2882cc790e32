"""Settings of a job on several devices: of arguments, environment variables, rank table, mpirun.

A user error is a ValueError that names the argument or the variable. What MindSpore and msrun say
themselves, of a wrong rank table or a device that is not there, is left to them.
"""

import argparse
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from utils.cores import LEAST_CORES
from utils.files import read_json
from utils.load_config import read_yaml, resolve_yaml
from utils.messages import VALUE, shorten

DEVICE_FILES = Path("/dev")
FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
PORT = "8118"  # MASTER_PORT of several nodes, unless it is set
TIMEOUT = "300"  # MASTER_TIMEOUT, unless it is set
MAX_WORKERS_PER_CORE = 8  # on a CPU: more would only wait for each other
# Seconds that HCCL waits for the other ranks, unless the user sets them. For connections its own
# limit is 120; ranks read their lists and compile at different speeds. In a collective it is 1836;
# the first step also compiles kernels one by one, and rank 0 alone saves. HCCL rounds this one down
# to a multiple of 68 on the Atlas training series: 3672 is 54 x 68.
HCCL_TIMEOUTS = {"HCCL_CONNECT_TIMEOUT": "600", "HCCL_EXEC_TIMEOUT": "3672"}
# Rank, size, local rank and local size, as Open MPI, MPICH (also Intel's) and srun name them.
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    + ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_")  # with them MindSpore looks for an MPI library of its own


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
    timeout: int = 300  # seconds to wait for the other nodes
    table: Optional[Path] = None


def read_job(arguments: Sequence[str], environ: Mapping[str, str]) -> Job:
    """From `[--restarts=N] DEVICES SCRIPT [arguments]` and the variables of the environment."""
    words = list(arguments)
    restarts = "0"
    if words and words[0].startswith("--restarts"):
        _, equals, restarts = words.pop(0).partition("=")
        if not equals:
            restarts = words.pop(0) if words else ""
    if len(words) < 2:
        raise ValueError("expected [--restarts=N] DEVICES SCRIPT [arguments]")
    devices = parse_number("DEVICES", words.pop(0), 1, MAX_WORKERS_PER_CORE * os.cpu_count())
    script = find_script(words.pop(0))
    environ = {name: value for name, value in environ.items() if value}
    table = None
    if "RANK_TABLE_FILE" in environ:
        table = Path(environ["RANK_TABLE_FILE"]).resolve()
        environ = {**read_table_variables(table, environ), **environ}
    nodes = parse_number("NODES", environ.get("NODES", "1"), 1)
    if nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= environ.keys():
        needs = f"with NODES={nodes}, a node needs its number, from 0, and the address of node 0"
        raise ValueError(f"NODE_RANK or MASTER_ADDR is missing: {needs}")
    port = environ.get("MASTER_PORT", PORT if nodes > 1 else "")
    # A single node uses its own address, whatever a cluster has exported.
    job = Job(
        devices=devices,
        script=script,
        arguments=tuple(words),
        nodes=nodes,
        node=parse_number("NODE_RANK", environ.get("NODE_RANK", "0"), 0, nodes - 1),
        master=resolve_master(environ["MASTER_ADDR"]) if nodes > 1 else "127.0.0.1",
        port=parse_number("MASTER_PORT", text=port, lowest=1, highest=65500) if port else 0,
        restarts=parse_number("--restarts", restarts, 0),
        timeout=parse_number("MASTER_TIMEOUT", environ.get("MASTER_TIMEOUT", TIMEOUT), 1),
        table=table,
    )
    if job.restarts and nodes > 1:
        raise ValueError(f"--restarts is for a job on one node, not on NODES={nodes}")
    if job.node == 0 and job.port:
        listen(job.master, job.port).close()
    return job


def find_script(name: str) -> str:
    """The script's file, of the current folder or of this zoo; ValueError if there is none."""
    path = resolve_yaml(Path(name))
    if not os.path.isfile(path):  # false for a name that is too long
        raise ValueError(f"SCRIPT {name}: no such file; name one like tsm/train.py")
    return str(path)


def parse_number(name: str, text: str, lowest: int, highest: int = 10**6) -> int:
    if text.isdecimal() and len(text) < 8 and lowest <= int(text) <= highest:
        return int(text)
    bounds = f"from {lowest} to {highest}"
    raise ValueError(f"{name} must be an integer {bounds}, not {shorten(text, VALUE)!r}")


def read_table_variables(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Huawei's rank table replaces. Those that are set win.

    The JSON file has a `server_list`: a `server_id`, which is an address, and `device`s with their
    `rank_id`. The rest is for HCCL, which checks it.
    """
    try:
        servers = read_json(path, "the file")["server_list"]
        servers.sort(key=lambda server: min(int(device["rank_id"]) for device in server["device"]))
        addresses = [str(server["server_id"]) for server in servers]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"RANK_TABLE_FILE: {path}: {error}") from None
    local = []  # the servers that are addresses of this host
    for rank, address in enumerate(addresses if "NODE_RANK" not in environ else ()):
        with contextlib.suppress(ValueError):
            listen(resolve_master(address), 0).close()
            local.append(rank)
    variables = {"NODES": str(len(addresses)), "MASTER_ADDR": addresses[0]}
    return {**variables, "NODE_RANK": str(local[0])} if len(local) == 1 else variables


def resolve_master(name: str) -> str:
    """The IP address of a host, of version 4 if it has one."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"MASTER_ADDR={name}: {error}") from None
    return str(min(entries, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def listen(address: str, port: int) -> socket.socket:
    """Listens at the master's address; a port that was just left counts as free.

    Raises ValueError if this host, which has rank 0, cannot listen there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        place = f"MASTER_ADDR={address}, MASTER_PORT={port}"
        raise ValueError(f"{place}: this host, node 0, cannot listen: {error}") from None


def reserve_port() -> socket.socket:
    """A socket at any free port of 127.0.0.1.

    While it is open no other program gets the port, but MindSpore's scheduler can listen there: it
    sets SO_REUSEADDR too. The socket itself never listens.
    """
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    # Before, bind could choose the port of another such socket.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def divide_cores(job: Job, environ: Mapping[str, str]) -> tuple[bool, dict[str, str]]:
    """Whether msrun should bind each rank to its own part of the cores, and the ranks' variables.

    Only ranks on Ascend are bound, and only if each device of the host then has enough cores: msrun
    divides the cores by the devices of the host, not by the ranks. ZOO_BIND_CORE=0 leaves them
    unbound. Ranks on CPUs share the cores: msrun imports MindSpore, which would set OMP_NUM_THREADS
    to 1, also for its workers.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run.device", dest="device", nargs="?")
    parser.add_argument("--config_path", nargs="?")
    options, _ = parser.parse_known_args(job.arguments)
    device = options.device
    # Another script need not have a config file; the ranks name the errors of a wrong one.
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
        path = resolve_yaml(Path(options.config_path or ""))
        device = str(device or read_yaml(path)["run"]["device"]).lower()
    cores = len(os.sched_getaffinity(0))
    variables = {"OMP_NUM_THREADS": str(max(1, cores // job.devices))} if device == "cpu" else {}
    devices = count_devices("Ascend")
    is_bound = device == "ascend" and devices > 0 and cores // devices >= LEAST_CORES
    return is_bound and environ.get("ZOO_BIND_CORE") != "0", variables


def read_mpi_environment(environ: Mapping[str, str], role: str) -> dict[str, str]:
    """The environment that msrun would give a process that mpirun or srun has started.

    `role` is MS_WORKER or MS_SCHED. Raises ValueError if mpirun did not start this process, or if a
    variable is missing. HCCL's time limits are set here only if the user has not set them.
    """
    names = next((names for names in MPI_VARIABLES if environ.get(names[0])), None)
    if names is None:
        advice = "start this by mpirun -n 2 python scripts/launch_mpi.py ..."
        raise ValueError(f"{MPI_VARIABLES[0][0]} is missing: {advice}")
    rank, size, local_rank, local_size = (environ.get(name, "") for name in names)
    master = environ.get("MASTER_ADDR") or ("127.0.0.1" if local_size == size else "")
    if not master:
        raise ValueError("MASTER_ADDR is missing: mpirun -x MASTER_ADDR=(the host of rank 0) ...")
    port = parse_number("MASTER_PORT", environ.get("MASTER_PORT") or PORT, 1, 65535)
    own = {"MS_NODE_ID": rank, "DEVICE_ID": local_rank} if role == "MS_WORKER" else {}
    return {
        **HCCL_TIMEOUTS,
        **{name: value for name, value in environ.items() if not name.startswith(MPI_PREFIXES)},
        **own,
        "MS_ROLE": role,
        "MS_WORKER_NUM": size,
        "MS_SCHED_HOST": resolve_master(master),
        "MS_SCHED_PORT": str(port),
        "MS_TOPO_TIMEOUT": environ.get("MASTER_TIMEOUT") or TIMEOUT,
        "RANK_SIZE": size,
        "RANK_ID": rank,
    }


def count_devices(kind: str) -> int:
    """The devices of `run.device` that have a file in /dev; 0 for a CPU."""
    return len(list(DEVICE_FILES.glob(FILES[kind]))) if kind in FILES else 0
