"""Settings of a job: arguments, variables, rank tables, mpirun, and errors in them."""

import socket
from pathlib import Path

import pytest

from scripts.launcher import devices
from scripts.launcher.launch_config import (
    check_devices,
    listen,
    read_job,
    read_mpi_environment,
    reserve_port,
    share_cores,
    should_bind_cores,
)
from scripts.launcher.rank_table import read_rank_table
from tests.helpers import build_rank_table, pick_port, write_json

DEVICE = ("server_list", 1, "device", 0)  # the first one of the second server
NODE_0 = {"NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16"}
OPENMPI |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9000"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NODES": "two"}, "NODES must be an integer"),
        ({"NODES": "0"}, "NODES must be an integer"),
        ({"NODES": "2", "MASTER_ADDR": "127.0.0.1"}, "NODE_RANK is missing"),
        ({**NODE_0, "NODE_RANK": "2"}, "NODE_RANK must be below NODES=2, not 2"),
        ({**NODE_0, "NODE_RANK": "-1"}, "NODE_RANK must be an integer"),
        ({"NODE_RANK": "1"}, "NODE_RANK must be below NODES=1, not 1"),
        ({"NODES": "2", "NODE_RANK": "0"}, "MASTER_ADDR is missing: with NODES=2"),
        ({"NODES": "2", "NODE_RANK": "1"}, "MASTER_ADDR is missing: with NODES=2"),
        ({**NODE_0, "MASTER_ADDR": "no.such.host.invalid"}, "MASTER_ADDR=no.such.host.invalid: "),
        ({**NODE_0, "MASTER_ADDR": "192.0.2.1"}, "192.0.2.1 is no address of this host"),
        ({**NODE_0, "MASTER_PORT": "http"}, "MASTER_PORT must be an integer"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT must be an integer from 1 to 65500"),
        ({"MASTER_TIMEOUT": "soon"}, "MASTER_TIMEOUT must be an integer"),
        (
            {"DEVICE_ID": "3"},
            "DEVICE_ID=3 is for a run on one device: .* choose devices by ASCEND_RT_",
        ),
        (
            {"RANK_TABLE_FILE": "/no/table.json"},
            "RANK_TABLE_FILE: /no/table.json: the file does not exist",
        ),
    ],
)
def test_a_wrong_variable_is_refused_by_name(variables, words):
    with pytest.raises(ValueError, match=words):
        read_job(["2", "tsm/train.py"], variables)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected"),
        (["2"], "expected"),
        (["two", "tsm/train.py"], "DEVICES must be an integer"),
        (["0", "tsm/train.py"], "DEVICES must be an integer"),
        (["--restarts=x", "2", "tsm/train.py"], "--restarts must be an integer"),
        (["--restarts", "-1", "2", "tsm/train.py"], "--restarts must be an integer"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        read_job(arguments, {})


def test_a_port_in_use_is_refused():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        for variables in (NODE_0, {}):
            with pytest.raises(ValueError, match=f"MASTER_PORT={port} at 127.0.0.1: .* in use"):
                read_job(["2", "tsm/train.py"], {**variables, "MASTER_PORT": port})


def test_a_single_node_needs_no_variable():
    job = read_job(["8", "tsm/train.py", "--x"], {"MASTER_ADDR": "", "NODES": "", "NODE_RANK": ""})
    assert (job.nodes, job.node, job.master, job.port, job.restarts) == (1, 0, "127.0.0.1", 0, 0)
    assert (job.script, job.arguments) == ("tsm/train.py", ("--x",))


def test_more_devices_than_the_host_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path)
    yaml = tmp_path / "x.yaml"
    yaml.write_text("run:\n  device: Ascend\n")
    for number in range(4):
        (tmp_path / f"davinci{number}").touch()
    (tmp_path / "davinci_manager").touch()
    (tmp_path / "nvidia0").touch()
    ascend = ["--config_path", str(yaml)]
    check_devices(4, ascend, {})
    check_devices(8, [*ascend, "--run.device=CPU"], {})
    check_devices(8, ["--config_path", "none.yaml"], {})  # the worker reports that
    with pytest.raises(ValueError, match="DEVICES: 1000000 wanted, which is too many for"):
        check_devices(10**6, ["--run.device=CPU"], {})
    with pytest.raises(ValueError, match="DEVICES: 5 wanted, this host has 4 of Ascend"):
        check_devices(5, ascend, {})
    with pytest.raises(ValueError, match="DEVICES: 2 wanted, this host has 1 of GPU"):
        check_devices(2, [*ascend, "--run.device", "GPU"], {})
    with pytest.raises(ValueError, match="ASCEND_RT_VISIBLE_DEVICES=0,1 allows fewer"):
        check_devices(3, ascend, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"})
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path / "none")
    check_devices(8, ascend, {})  # the worker reports that there is no device


def test_ranks_are_bound_only_on_ascend_with_enough_cores(tmp_path, monkeypatch):
    """msrun divides the cores by the devices of the host, here 8."""
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(96))
    ascend = ["--run.device=Ascend"]
    assert not should_bind_cores(ascend, {}), "no device"
    for number in range(8):
        (tmp_path / f"davinci{number}").touch()
    assert should_bind_cores(ascend, {})
    assert not should_bind_cores(ascend, {"ZOO_BIND_CORE": "0"})
    assert not should_bind_cores(["--run.device=CPU"], {})
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(95))
    assert not should_bind_cores(ascend, {})


def test_the_ranks_of_a_job_on_cpus_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(9))
    assert share_cores(2, ["--run.device=CPU"]) == {"OMP_NUM_THREADS": "4"}
    assert share_cores(16, ["--run.device=CPU"]) == {"OMP_NUM_THREADS": "1"}
    assert share_cores(2, ["--run.device=Ascend"]) == {}


@pytest.mark.parametrize("role", ["MS_WORKER", "MS_SCHED"])
def test_hccl_time_limits_are_set_under_mpirun_unless_the_user_sets_them(role):
    chosen = {"HCCL_CONNECT_TIMEOUT": "120", "HCCL_EXEC_TIMEOUT": "68"}
    for variables, expected in (({}, ("600", "3672")), (chosen, ("120", "68"))):
        result = read_mpi_environment({**OPENMPI, **ADDRESS, **variables}, role)
        assert (result["HCCL_CONNECT_TIMEOUT"], result["HCCL_EXEC_TIMEOUT"]) == expected


def test_a_rank_table_replaces_nodes_master_and_rank(tmp_path):
    path = write_json(tmp_path / "hccl.json", build_rank_table(devices=4))
    variables = {"RANK_TABLE_FILE": path, "MASTER_PORT": pick_port()}
    for rank in "01":
        job = read_job(["4", "tsm/train.py"], {**variables, "NODE_RANK": rank})
        assert (job.nodes, job.node, job.master) == (2, int(rank), "127.0.0.1")
        assert str(job.table) == path
    other = build_rank_table(devices=4)
    other["server_list"][0]["server_id"] = "192.0.2.1"
    path = write_json(tmp_path / "hccl.json", other)
    job = read_job(["4", "tsm/train.py"], {"RANK_TABLE_FILE": path, "NODE_RANK": ""})
    assert (job.node, job.master) == (1, "192.0.2.1"), "the second server is this host"


def edit(content: dict, *keys, value) -> dict:
    position = content
    for key in keys[:-1]:
        position = position[key]
    position[keys[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (edit(build_rank_table(), "status", value="initializing"), "status is 'initializing'"),
        (
            edit(build_rank_table(), "server_count", value="3"),
            "server_count is 3, server_list has 2",
        ),
        (
            edit(build_rank_table(), "server_list", 1, "device", value=[]),
            "the same number of devices",
        ),
        (edit(build_rank_table(), *DEVICE, "rank_id", value="0"), "from 0 to 1"),
        (edit(build_rank_table(), *DEVICE, "device_id", value="4"), "from 0 in the"),
        (edit(build_rank_table(), *DEVICE, "rank_id", value="x"), "invalid literal"),
        (edit(build_rank_table(), "server_list", 1, value={}), "missing or misplaced: 'device'"),
        ([], "missing or misplaced"),
    ],
)
def test_a_wrong_rank_table_is_refused_with_the_reason(content, words, tmp_path):
    path = write_json(tmp_path / "hccl.json", content)
    with pytest.raises(ValueError, match=f"^RANK_TABLE_FILE: {path}.*{words}"):
        read_rank_table(Path(path))


@pytest.mark.parametrize(
    ("devices", "variables", "words"),
    [
        ("2", {"NODE_RANK": "0"}, "DEVICES=2, but .* has 1 devices for each server"),
        ("1", {"NODE_RANK": "0", "NODES": "3"}, "NODES=3, but .* has 2 servers"),
        ("1", {}, "NODE_RANK is missing, and several servers"),
    ],
)
def test_a_rank_table_must_agree_with_the_other_settings(devices, variables, words, tmp_path):
    path = write_json(tmp_path / "hccl.json", build_rank_table())
    with pytest.raises(ValueError, match=words):
        read_job([devices, "tsm/train.py"], {"RANK_TABLE_FILE": path, **variables})


def test_variables_of_open_mpi_and_slurm_are_read():
    with pytest.raises(ValueError, match="MASTER_ADDR is missing"):
        read_mpi_environment(OPENMPI, "MS_WORKER")
    environ = read_mpi_environment({**OPENMPI, **ADDRESS}, "MS_WORKER")
    names = ("RANK_ID", "MS_NODE_ID", "MS_WORKER_NUM", "DEVICE_ID", "MS_SCHED_PORT")
    assert [environ[name] for name in names] == ["9", "9", "16", "1", "9000"]
    assert not OPENMPI.keys() & environ.keys(), "MindSpore would look for an MPI library"
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    environ = read_mpi_environment({**slurm, "SLURM_NTASKS_PER_NODE": "2"}, "MS_SCHED")
    names = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
    assert [environ[name] for name in names] == ["MS_SCHED", "2", "127.0.0.1", "8118"]
    assert not {"MS_NODE_ID", "DEVICE_ID"} & environ.keys(), "the scheduler is not a worker"
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK is missing"):
        read_mpi_environment({}, "MS_WORKER")


def test_a_reserved_port_is_kept_for_the_scheduler():
    """Two jobs that start at the same time must get different ports."""
    with reserve_port("127.0.0.1") as holder, socket.socket() as other:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        listen("127.0.0.1", port).close()  # with SO_REUSEADDR, as MindSpore's scheduler


def test_a_script_name_of_any_length_is_refused_in_one_line():
    with pytest.raises(ValueError, match="no such file"):
        read_job(["2", "x" * 5000], {})
