"""Start-up: environment, graph mode, device, seed, rank. Only this module sets MindSpore's context.

It imports MindSpore in its functions, so that a command that does not need it starts quickly.
"""

import contextlib
import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from utils.cores import DISPATCH_THREADS, LEAST_CORES

if TYPE_CHECKING:
    from utils.settings import Run

LOG_LEVEL = "GLOG_v"
CAPS = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"  # oneDNN reads the second if there is no first
CONTEXT_LOCK = threading.RLock()  # of `borrow_context`
DRY_RUN = "ZOO_DRY_RUN_CHIP"  # set by scripts.dry_run.simulator


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


def set_environment() -> None:
    """Sets the environment variables that MindSpore and OpenMP read when they are imported.

    A variable that is set has precedence.
    """
    if not os.environ.get(LOG_LEVEL):
        # Warnings (2) on Ascend name what is missing: another CANN, too few threads. Elsewhere they
        # are about MindSpore itself.
        os.environ[LOG_LEVEL] = "2" if any(Path("/dev").glob("davinci[0-9]*")) else "3"
    # On aarch64 MindSpore's libraries make the processor flush subnormal numbers to zero.
    warnings.filterwarnings("ignore", "The value of the smallest subnormal", UserWarning)
    # The threads of OpenMP, which the CPU kernels use, wait in a loop before they sleep. If there
    # are more threads than cores, as with several ranks, that loop takes the cores from threads
    # that work: two trainings on two cores were five times slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # iterations; by default milliseconds


def start(run: "Run") -> Runtime:
    """`start_device`, and sets the seed; joins the other ranks, if there are some."""
    start_device(run)
    import mindspore as ms

    ms.set_seed(run.seed)
    if not is_worker() and int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        raise ValueError("under mpirun, start the script by scripts/launch_mpi.py")
    rank, size = open_collectives() if is_worker() else (0, 1)
    return Runtime(rank, size=size, device=run.device, seed=run.seed)


def start_device(run: "Run") -> None:
    """Sets MindSpore's context. Raises ValueError if the device is not available.

    DEVICE_ID counts among the devices that ASCEND_RT_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES lets
    this process see, from 0. MindSpore gives each worker of a node its device.
    """
    set_environment()
    if os.environ.get("MS_SIMULATION_LEVEL") and DRY_RUN not in os.environ:
        raise ValueError(
            "MS_SIMULATION_LEVEL is set: MindSpore computes nothing, and every result would be 0; "
            "unset it, or use scripts/analysis/dry_run.py"
        )
    chosen = "" if is_worker() or run.device == "CPU" else os.environ.get("DEVICE_ID", "")
    if run.device == "CPU":
        cap_instruction_set()
    if run.device == "GPU" and not run.tf32:
        # NVIDIA's libraries read it when they start. MindSpore's setting, see `set_device_options`,
        # leaves TF32 on in some operators: on an H200 scores of MViTv2 differed by 0.4 %.
        os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE if run.mode == "eager" else ms.GRAPH_MODE)
    try:
        ms.set_device(run.device, *([int(chosen)] if chosen else []))
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].split(". ")[0]
        raise ValueError(
            f"run.device: {run.device} is not available here ({reason}); "
            "scripts/check_env.py lists the devices; --run.device=CPU runs anywhere"
        ) from None
    # MindSpore 2.10 has no bfloat16 convolution for a CPU, and no cast to bfloat16 for any GPU.
    has_bfloat16 = run.device == "Ascend" and not ms.amp._ascend_910a_target()
    if run.amp_dtype == "bfloat16" and run.amp_level != "O0" and not has_bfloat16:
        name = "an Ascend 910A" if run.device == "Ascend" else f"a {run.device}"
        raise ValueError(f"run.amp_dtype: no bfloat16 on {name}; set --run.amp_dtype=float16")
    set_device_options(run)


def is_worker() -> bool:
    """Whether msrun or scripts/launch_mpi.py has started this process."""
    return "MS_WORKER_NUM" in os.environ and "MS_ROLE" in os.environ


def open_collectives() -> tuple[int, int]:
    """Opens the collective library; returns (rank, number of ranks)."""
    from mindspore import communication

    communication.init()
    return communication.get_rank(), communication.get_group_size()


def set_device_options(run: "Run") -> None:
    """Compilation level, precision of float32 products and compilation of operators."""
    if run.device == "CPU":
        return
    import mindspore as ms
    from mindspore.device_context import ascend, gpu

    if run.jit_level != "auto":
        ms.set_context(jit_config={"jit_level": run.jit_level})
    # MindSpore counts the cores of the machine that are online, whatever this process may use.
    if os.cpu_count() < LEAST_CORES:
        with contextlib.suppress(RuntimeError):  # a second start: MindSpore takes it once only
            ms.runtime.dispatch_threads_num(DISPATCH_THREADS)
    if run.device == "Ascend":
        ascend.op_precision.conv_allow_hf32(run.tf32)
        ascend.op_precision.matmul_allow_hf32(run.tf32)
    else:
        gpu.op_precision.conv_allow_tf32(run.tf32)
        gpu.op_precision.matmul_allow_tf32(run.tf32)
        # By default MindSpore takes the algorithm that cuDNN guesses first. On an H200 gradients of
        # convolutions then ended in CUDNN_STATUS_EXECUTION_FAILED or INTERNAL_ERROR. This tries all
        # of them, once for each shape.
        gpu.op_tuning.conv_fprop_algo("performance")
        gpu.op_tuning.conv_dgrad_algo("performance")
        gpu.op_tuning.conv_wgrad_algo("performance")


@contextlib.contextmanager
def eager_mode() -> Iterator[None]:
    """Runs networks operator by operator: for one forward pass, faster than their compilation."""
    mode = set_mode(1)
    try:
        yield
    finally:
        set_mode(mode)


@contextlib.contextmanager
def borrow_context(run: Optional["Run"] = None) -> Iterator[None]:
    """Inside, MindSpore computes as `run.mode` says; the program's settings are restored.

    The networks of the program that uses the zoo may run operator by operator, as is the default.
    MindSpore draws first weights from NumPy's random numbers. Both belong to the process, so one
    thread at a time is inside.
    """
    import numpy as np

    with CONTEXT_LOCK:
        numbers = np.random.get_state()
        mode = set_mode(1 if run and run.mode == "eager" else 0)
        try:
            yield
        finally:
            set_mode(mode)
            np.random.set_state(numbers)


def set_mode(mode: int) -> int:
    """Sets MindSpore's mode, 0 for graphs, if MindSpore is imported; returns the mode of before."""
    ms = sys.modules.get("mindspore")
    before = ms.get_context("mode") if ms else 1  # MindSpore's default, operator by operator
    if ms and before != mode:
        ms.set_context(mode=mode)
    return before


def cap_instruction_set() -> None:
    """Makes oneDNN use AVX2: with AVX-512 its float32 convolutions run in a scalar reference loop.

    Fifty times faster. It must run before the first kernel. A variable that is set has precedence.
    """
    with contextlib.suppress(OSError):
        if "avx512f" in Path("/proc/cpuinfo").read_text():
            os.environ.setdefault(CAPS[0], "AVX2")


@contextlib.contextmanager
def uncapped_instruction_set() -> Iterator[None]:
    """Hides the caps from OpenVINO's oneDNN until it has computed once.

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
