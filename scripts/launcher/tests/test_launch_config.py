"""Settings of a job: arguments, variables, rank tables, mpirun, and errors in them."""

import os
import socket

import pytest

from scripts.launcher.launch_config import (
    Job,
    divide_cores,
    listen,
    read_job,
    read_mpi_environment,
    reserve_port,
)
from tests.helpers import build_rank_table, pick_port, write_json

TRAIN = "tsm/train.py"
MASTER = {"MASTER_ADDR": "127.0.0.1"}
NODE_0 = {"NODES": "2", "NODE_RANK": "0", **MASTER}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16"}
OPENMPI |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
ADDRESS = {**MASTER, "MASTER_PORT": "9000"}


@pytest.mark.parametrize(
    ("arguments", "variables", "name"),
    [
        ("2", {}, "SCRIPT"),
        ("0 tsm/train.py", {}, "DEVICES"),
        ("--restarts=1 2 tsm/train.py", NODE_0, "--restarts"),
        ("2 tsm/train.py", {"NODES": "two"}, "NODES"),
        ("2 tsm/train.py", {**NODE_0, "NODE_RANK": "2"}, "NODE_RANK"),
        ("2 tsm/train.py", {"NODES": "2", "NODE_RANK": "1"}, "MASTER_ADDR .*missing"),
        ("2 tsm/train.py", {**NODE_0, "MASTER_ADDR": "192.0.2.1"}, "MASTER_ADDR=192.0.2.1"),
        ("2 tsm/train.py", {"MASTER_PORT": "99999"}, "MASTER_PORT .* 65500"),
        (f"{10**6} tsm/train.py", {}, "DEVICES"),
        ("2 tsm/train.py", {"RANK_TABLE_FILE": "/no/table.json"}, "RANK_TABLE_FILE: /no/table"),
    ],
)
def test_a_wrong_argument_or_variable_is_refused_by_name(arguments, variables, name):
    with pytest.raises(ValueError, match=name):
        read_job(arguments.split(), variables)


def test_a_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for variables in (NODE_0, {}):
            with pytest.raises(ValueError, match=f"MASTER_PORT={port}.* in use"):
                read_job(["2", TRAIN], {**variables, "MASTER_PORT": port})


def test_a_single_node_needs_no_variable():
    job = read_job(["8", TRAIN, "--x"], {"MASTER_ADDR": "", "NODES": "", "NODE_RANK": ""})
    assert (job.nodes, job.node, job.master, job.port, job.restarts) == (1, 0, "127.0.0.1", 0, 0)
    assert (job.script, job.arguments) == (TRAIN, ("--x",))


def test_the_ranks_of_a_job_on_cpus_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(9))
    for devices, device, variables in (
        (2, "CPU", {"OMP_NUM_THREADS": "4"}),
        (16, "CPU", {"OMP_NUM_THREADS": "1"}),
        (2, "Ascend", {}),
    ):
        job = Job(devices, TRAIN, (f"--run.device={device}",))
        assert divide_cores(job, {}) == (False, variables)


def test_a_rank_table_replaces_nodes_master_and_rank(tmp_path):
    path = write_json(tmp_path / "hccl.json", build_rank_table(devices=4))
    variables = {"RANK_TABLE_FILE": path, "MASTER_PORT": pick_port()}
    for rank in "01":
        job = read_job(["4", TRAIN], {**variables, "NODE_RANK": rank})
        assert (job.nodes, job.node, job.master) == (2, int(rank), "127.0.0.1")
        assert str(job.table) == path
    other = build_rank_table(devices=4)
    other["server_list"][0]["server_id"] = "192.0.2.1"
    path = write_json(tmp_path / "hccl.json", other)
    job = read_job(["4", TRAIN], {"RANK_TABLE_FILE": path, "NODE_RANK": ""})
    assert (job.node, job.master) == (1, "192.0.2.1"), "the second server is this host"


def test_a_wrong_rank_table_is_refused_by_name(tmp_path):
    """And both servers of one that has this host twice need NODE_RANK."""
    path = write_json(tmp_path / "hccl.json", {"server_list": [{}]})
    with pytest.raises(ValueError, match=f"^RANK_TABLE_FILE: {path}"):
        read_job(["1", TRAIN], {"RANK_TABLE_FILE": path})
    path = write_json(tmp_path / "hccl.json", build_rank_table())
    with pytest.raises(ValueError, match="NODE_RANK"):
        read_job(["1", TRAIN], {"RANK_TABLE_FILE": path})


def test_variables_of_open_mpi_and_slurm_are_read():
    """HCCL's time limits too, unless the user sets them."""
    chosen = {"HCCL_CONNECT_TIMEOUT": "120", "HCCL_EXEC_TIMEOUT": "68"}
    names = ("RANK_ID", "MS_NODE_ID", "MS_WORKER_NUM", "DEVICE_ID", "MS_SCHED_PORT", *chosen)
    for variables, expected in (({}, ("600", "3672")), (chosen, ("120", "68"))):
        environ = read_mpi_environment({**OPENMPI, **ADDRESS, **variables}, "MS_WORKER")
        assert [environ[name] for name in names] == ["9", "9", "16", "1", "9000", *expected]
        assert not OPENMPI.keys() & environ.keys(), "MindSpore would look for an MPI library"
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    environ = read_mpi_environment({**slurm, "SLURM_NTASKS_PER_NODE": "2"}, "MS_SCHED")
    names = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT", "HCCL_CONNECT_TIMEOUT")
    assert [environ[name] for name in names] == ["MS_SCHED", "2", "127.0.0.1", "8118", "600"]
    assert not {"MS_NODE_ID", "DEVICE_ID"} & environ.keys(), "the scheduler is not a worker"
    for variables, name in ((OPENMPI, "MASTER_ADDR"), ({}, "OMPI_COMM_WORLD_RANK")):
        with pytest.raises(ValueError, match=f"{name} is missing"):
            read_mpi_environment(variables, "MS_WORKER")


def test_a_reserved_port_is_kept_for_the_scheduler():
    """Two jobs that start at the same time must get different ports."""
    with reserve_port() as holder, socket.socket() as other:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen("127.0.0.1", port).close()  # with SO_REUSEADDR, as MindSpore's scheduler
