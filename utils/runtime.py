"""Start-up: graph mode, device, seed, rank. Only this module sets MindSpore's context.

It imports MindSpore in its functions, so that a command that does not need it starts quickly.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.config import Run
from utils.cpu_cores import choose_dispatch_threads, count_cores

CAPS = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"  # oneDNN reads the second if there is no first
DRY_RUN = "ZOO_DRY_RUN_CHIP"  # set by utils.simulation.dry_run


@dataclass(frozen=True)
class Runtime:
    """The rank, number of ranks, device and seed of this process."""

    rank: int = 0
    size: int = 1
    device: str = "CPU"
    seed: int = 0

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0


def start(run: Run) -> Runtime:
    """Sets MindSpore's context; joins the other ranks, data parallel, if there are several.

    Raises ValueError if the device is not available.
    """
    if run.device == "CPU":
        cap_instruction_set()
    refuse_simulation()
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        ms.set_device(run.device)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0]
        raise ValueError(
            f"run.device: {run.device} is not available here ({reason}); "
            "scripts/check_env.py lists the devices; --run.device=CPU runs anywhere"
        ) from None
    set_device_options(run)
    ms.set_seed(run.seed)
    rank, size = join_workers()
    return Runtime(rank, size, run.device, run.seed)


def join_workers() -> tuple:
    """(rank, size) if msrun or scripts/launch_mpi.py has started this process, else (0, 1)."""
    if "MS_WORKER_NUM" not in os.environ or "MS_ROLE" not in os.environ:
        if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
            raise ValueError("under mpirun, start the script by scripts/launch_mpi.py")
        return 0, 1
    return start_data_parallel()


def start_data_parallel() -> tuple[int, int]:
    """Opens the collective library; returns (rank, number of ranks)."""
    import mindspore as ms
    from mindspore import communication

    communication.init()
    rank, size = communication.get_rank(), communication.get_group_size()
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=size
    )
    return rank, size


def refuse_simulation() -> None:
    """Raises ValueError if MindSpore would only simulate a device, outside of a dry run."""
    if os.environ.get("MS_SIMULATION_LEVEL") and DRY_RUN not in os.environ:
        raise ValueError(
            "MS_SIMULATION_LEVEL is set: MindSpore would compute nothing and every result would be "
            "0; unset it, or use scripts/analysis/dry_run.py, which sets it itself"
        )


def set_device_options(run: Run) -> None:
    """Compilation level, precision of float32 products and compilation of operators."""
    if run.device == "CPU":
        return
    import mindspore as ms
    from mindspore.device_context import ascend, gpu

    if run.jit_level != "auto":
        ms.set_context(jit_config={"jit_level": run.jit_level})
    if run.device == "Ascend":
        threads = choose_dispatch_threads(run.device, count_cores())
        if threads:
            ms.runtime.dispatch_threads_num(threads)
        ascend.op_precision.conv_allow_hf32(run.tf32)
        ascend.op_precision.matmul_allow_hf32(run.tf32)
        if run.op_compile != "auto":
            ascend.op_tuning.op_compile(run.op_compile == "online")
    else:
        gpu.op_precision.conv_allow_tf32(run.tf32)
        gpu.op_precision.matmul_allow_tf32(run.tf32)


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Runs networks operator by operator: for one forward pass, faster than their compilation."""
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def cap_instruction_set() -> None:
    """Makes oneDNN use AVX2: with AVX-512 its float32 convolutions run in a scalar reference loop.

    Fifty times faster. It must run before the first kernel. A variable that is set has precedence.
    """
    with contextlib.suppress(OSError):
        if "avx512f" in Path("/proc/cpuinfo").read_text():
            os.environ.setdefault(CAPS[0], "AVX2")


@contextlib.contextmanager
def uncapped_instruction_set() -> Iterator[None]:
    """Hides the caps from another oneDNN, that of OpenVINO, until it has computed once.

    OpenVINO reads them when it compiles its first network. With a cap below AVX-512 on a processor
    that has it, the first inference of some networks ends the process with a segmentation fault;
    others are slower. The cap may come from a parent process or from the user. MindSpore reads it
    at its first kernel, so it is restored.
    """
    caps = {name: os.environ.pop(name) for name in CAPS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(caps)


def release_memory() -> None:
    """Returns memory freed by a compilation to the system; glibc would keep 150 MB."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
