"""What mpirun says of a process, in MindSpore's own words: the variables that msrun would set."""

from collections.abc import Mapping
from dataclasses import dataclass

from utils.distributed.devices import HCCL_TIMEOUTS
from utils.distributed.launch_config import PORT, address_of, whole

# Rank, size, local rank, local size, as Open MPI, MPICH (also Intel's) and srun call them.
NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    + ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
FOREIGN = ("OMPI_", "PMIX_", "PMI_")  # MindSpore would look for an MPI library of its own


@dataclass(frozen=True)
class RankPosition:
    """Who this process is, and where the scheduler listens."""

    rank: int
    size: int
    local_rank: int
    master: str
    port: int


def read_rank_position(environ: Mapping[str, str]) -> RankPosition:
    """Raises ValueError where mpirun did not start this process, or did not say enough."""
    names = next((n for n in NAMES if environ.get(n[0])), None)
    if names is None:
        raise ValueError(
            f"{NAMES[0][0]} is missing: start this by mpirun -n 2 python scripts/launch_mpi.py ..."
        )
    rank, size, local_rank = (whole(name, environ.get(name, ""), 0) for name in names[:3])
    one_host = environ.get(names[3]) == str(size)
    master = environ.get("MASTER_ADDR") or ("127.0.0.1" if one_host else "")
    if not master:
        raise ValueError("MASTER_ADDR is missing: mpirun -x MASTER_ADDR=(the host of rank 0) ...")
    try:
        master = address_of(master)
    except OSError as error:
        raise ValueError(f"MASTER_ADDR={master}: {error.strerror or error}") from None
    port = whole("MASTER_PORT", environ.get("MASTER_PORT") or str(PORT), 1, 65535)
    return RankPosition(rank, size, local_rank, master, port)


def for_mindspore(location: RankPosition, environ: Mapping[str, str], role: str) -> dict[str, str]:
    """The environment of a process of MindSpore: `role` is MS_WORKER or MS_SCHED.

    HCCL's time limits are set here only if the user has not set them.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(FOREIGN)}
    own = {"MS_NODE_ID": str(location.rank), "DEVICE_ID": str(location.local_rank)}
    return {
        **HCCL_TIMEOUTS,
        **kept,
        **(own if role == "MS_WORKER" else {}),
        "MS_ROLE": role,
        "MS_WORKER_NUM": str(location.size),
        "MS_SCHED_HOST": location.master,
        "MS_SCHED_PORT": str(location.port),
        "MS_TOPO_TIMEOUT": environ.get("MASTER_TIMEOUT") or "300",
        "RANK_SIZE": str(location.size),
        "RANK_ID": str(location.rank),
    }
