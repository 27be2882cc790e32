"""Dry runs: compiles one step of a network for an Ascend or a GPU on a machine without either.

A separate process (`scripts.dry_run.worker`) runs MindSpore in simulation mode on stub libraries
(`scripts.dry_run.stub_libraries`). MindSpore compiles the graph for the chip, selects kernels and
plans streams and memory as on a device, but computes nothing. So a dry run shows whether a graph
compiles, which kernels a step launches, in which order, and how much memory it takes. It shows no
values and no times, and not whether CANN's compiler accepts a kernel.

MindSpore writes each selected kernel and the peak of the planned memory into its log, the order of
the kernels into `execute_order.csv`, and the graphs as they are built into `graph_build_*.ir`.
"""

import csv
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

from scripts.dry_run.stub_libraries import SOURCES, build_stubs
from utils.files import get_cache_folder, parse_line
from utils.load_config import to_yaml
from utils.processes import describe_exit, die_with_parent
from utils.settings import Device, NetworkConfig
from utils.signals import unfinished

# Chip -> device of MindSpore. The GPU is an A100 of 40 GB.
CHIPS: dict[str, Device] = {
    "ascend910b": "Ascend",
    "ascend910": "Ascend",
    "ascend910_93": "Ascend",
    "gpu": "GPU",
}
SOC_NAMES = {"ascend910b": "Ascend910B1", "ascend910": "Ascend910A", "ascend910_93": "Ascend910_93"}
MODES = ("train", "eval")
CORES = 24  # of the simulated host: what a rank has on a host of 192 cores with 8 devices
TIMEOUT = 3600  # seconds for one dry run
SAVING = 300  # seconds for its execution order after the step; a busy machine needs many
GRACE = 30  # seconds for its end after that, which takes 2 on a quiet machine
HCCL_MODULE = 'class sys_version:\n    __sys_version__ = "9.1"\n'
# Variables that would change the simulation; all that it needs are set here.
DROPPED = ("MS_", "GLOG_", "RANK_", "DEVICE_ID", "OMPI_", "ASCEND_RT_", "CUDA_VISIBLE")

EXECUTION_ORDER = "execute_order.csv"
NO_LAUNCH = "rt_kernel"  # reshapes and the like: views, which launch nothing
VIEWS = {"Reshape", "ExpandDims", "Squeeze", "Flatten"}  # the same on a GPU
PYTHON = "PyExecute"  # a call of the Python interpreter
BACKWARD = "Gradients/"  # how names of backward kernels begin

KERNEL = re.compile(r"kernel opname:(\w+), kernel type:(\w+)")  # Ascend only
AI_CPU = re.compile(r"prim name: (\w+), ge name: Cust\w+")  # MindSpore's own AI-CPU kernels
CONV3D = re.compile(r" = Conv3D\w*\(.*\n.*: \(<Tensor\[Float32\]")
PEAK = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")
# The AllReduces of gradients have numbers from 1 on, one for each segment, in the order of the
# optimizer's parameters; the index of all others is 0. The scope follows in the node's comments.
ALL_REDUCE = re.compile(
    r" = AllReduce\([^\n]*\bindex: I64\((\d+)\)[^#]*# Fullname with scope: \(([^)\n]+)\)"
)
# A line of the worker in the log. The kernels before it are eager ones.
STEP_BEGINS = "dry run: the step begins"
EAGER_GRAPH = "@pynative_kernel_graph"
VERSION_CHECK = "_check_version.py"  # complains about parts of CANN that a dry run does not need


@dataclass(frozen=True)
class Machine:
    """The simulated machine: a chip of CHIPS, the number of ranks, and of cores of rank 0's host.

    Only rank 0 is simulated. `cann` is the folder of an installed CANN, to use it instead of stub
    libraries. Raises ValueError for a machine that cannot be simulated.
    """

    chip: str
    ranks: int = 1
    cores: int = CORES
    cann: Optional[Path] = None

    def __post_init__(self):
        if CHIPS[self.chip] == "GPU" and (self.ranks > 1 or self.cann):
            # Its simulation has a substitute for HCCL, but not for NCCL.
            raise ValueError(f"--ranks and --cann are for Ascend, not for --chip {self.chip}")
        if self.cann and not (self.cann / "lib64" / "libascendcl.so").is_file():
            raise ValueError(f"--cann: {self.cann} has no lib64/libascendcl.so")


class ScheduledKernel(NamedTuple):
    """One row of the execution order."""

    operator: str
    name: str


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run of one training step or one evaluation."""

    finished: bool  # it was compiled and run to its end
    reason: str  # why not
    names: Counter  # of kernels: number by operator
    libraries: Counter  # number of kernels by library
    launches: int  # number of kernels without views
    order: tuple[ScheduledKernel, ...]
    # Kernel graphs in the execution order: one on Ascend, unless something runs in Python or on
    # another device. On a GPU each branch is a separate graph.
    graphs: int
    python: int  # calls of the Python interpreter from the compiled graph
    # Row of each AllReduce in the order -> the fraction of the backward kernels that come after it
    all_reduces: Mapping[int, float]
    # Number of the optimizer's parameter, from 1 on, whose gradient has a separate AllReduce -> its
    # position in the backward pass, 0..1: the fraction of the backward kernels, views included,
    # that precede it. With segments, their numbers.
    gradient_positions: Mapping[int, float]
    ai_cpu: tuple[str, ...]  # operators that run on the Ascend's AI CPU, by name
    conv3d_float32: int  # 3-D convolutions that are not float16, backward ones included
    any_type: bool  # whether part of the graph is compiled again while it runs
    peak_bytes: int  # of device memory, fragments included, workspaces of kernels excluded
    seconds: float
    details: Mapping[str, Any]  # the JSON object of the worker


def dry_run(
    network: str,
    cfg: NetworkConfig,
    machine: Machine,
    mode: str = MODES[0],
    separate_gradients: bool = False,
) -> DryRun:
    """Compiles and runs one step of a network on a simulated machine.

    `cfg` are the settings of the network; `run.device` is replaced. `mode` is train or eval. With
    `separate_gradients` every gradient has a separate AllReduce, and `details` lists the
    `gradients` by name. Raises ValueError for a wrong setting, and if this machine cannot do it.
    """
    device = CHIPS[machine.chip]
    jit_level = cfg.run.jit_level
    level = "O2" if (machine.chip, jit_level) == ("ascend910", "auto") else jit_level
    if device == "Ascend" and level == "O2" and not machine.cann:  # CANN's graph engine
        advice = "a dry run needs --cann for it, or --run.jit_level=O0"
        raise ValueError(f"run.jit_level {jit_level} compiles by CANN's graph engine: {advice}")
    request = {
        "network": network,
        "yaml": to_yaml(replace(cfg, run=replace(cfg.run, device=device))),
        "mode": mode,
        "ranks": machine.ranks,
        "separate_gradients": separate_gradients,
    }
    result = simulate([str(SOURCES / "worker.py"), json.dumps(request)], machine)
    if result.finished and not result.order:
        reason = f"MindSpore did not save the order of its kernels within {SAVING} s after the step"
        return replace(result, finished=False, reason=reason)
    return result


def simulate(script: Sequence[str], machine: Machine) -> DryRun:
    """Runs a Python script with its arguments on a simulated machine.

    The last line of its stdout is a JSON object with `finished`, and with `reason` if that is
    false. The script is killed if it has not ended GRACE seconds after it has printed that and
    saved an execution order, or SAVING seconds after its JSON object: MindSpore's destructors
    sometimes hang on stub libraries, after they have written their files. Raises ValueError if this
    machine cannot do it.
    """
    stubs = build_stubs(CHIPS[machine.chip], get_cache_folder() / "dry_run")
    with tempfile.TemporaryDirectory() as temporary:
        unfinished.add(temporary)  # a signal deletes it, and the worker ends with this process
        folder = Path(temporary)
        (folder / "hccl").mkdir()
        (folder / "hccl" / "__init__.py").write_text(HCCL_MODULE)
        output = folder / "stdout.txt"
        start = time.monotonic()
        with open(folder / "log.txt", "w") as log, open(output, "w") as stdout:
            process = subprocess.Popen(
                [sys.executable, *script],
                stdout=stdout,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=set_environment(machine, stubs, folder),
                preexec_fn=die_with_parent,
            )
        deadline = start + TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            if output.read_text().endswith("}\n"):
                is_saved = any(folder.rglob(EXECUTION_ORDER))
                deadline = min(deadline, time.monotonic() + (GRACE if is_saved else SAVING))
            time.sleep(0.1)
        process.kill()  # no effect if it has ended
        process.wait()
        result = read_run(folder, process.returncode, time.monotonic() - start)
    unfinished.discard(temporary)
    return result


def set_environment(machine: Machine, stubs: Path, folder: Path) -> dict[str, str]:
    """The environment of the worker: stub libraries first, the chip, the ranks, the log.

    An installed CANN lacks the driver's libraries on a machine without an Ascend: its own
    substitutes follow it, then the stubs.
    """
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(DROPPED)}
    libraries, modules = inherited.get("LD_LIBRARY_PATH"), inherited.get("PYTHONPATH")
    own = {
        "MS_SIMULATION_LEVEL": "1",
        "GLOG_v": "2",
        "GLOG_logtostderr": "1",
        "MS_SUBMODULE_LOG_v": "{DEVICE:1,KERNEL:1,SESSION:1,RUNTIME_FRAMEWORK:1,GE_ADPT:0}",
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_SAVE_GRAPHS_PATH": str(folder / "graphs"),
        "MS_DEV_DUMP_IR_PASSES": "graph_build",
        "ZOO_DRY_RUN_CHIP": machine.chip,
        "ZOO_DRY_RUN_CORES": str(machine.cores),
        "LD_PRELOAD": "libchip.so",  # without its folder: a blank would end the name
        "OMP_NUM_THREADS": "1",
    }
    if CHIPS[machine.chip] == "GPU":
        own["CUDA_HOME"] = str(stubs)
        own["LD_LIBRARY_PATH"] = join_paths(stubs, stubs / "lib64")
        own["PATH"] = join_paths(stubs / "bin", inherited.get("PATH"))
        return {**inherited, **own}
    own["ZOO_DRY_RUN_SOC"] = SOC_NAMES[machine.chip]
    stub_cann = stubs / "cann"
    if machine.cann is None:
        own["ASCEND_HOME_PATH"] = str(stub_cann)
        own["LD_LIBRARY_PATH"] = join_paths(stubs, stub_cann / "lib64", libraries)
        # It need not exist: MindSpore looks only for its name.
        own["PYTHONPATH"] = join_paths(folder, "/opp/built-in/op_impl/ai_core/tbe", modules)
    else:
        cann = machine.cann.resolve()
        for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH"):
            own[name] = str(cann)
        own["ASCEND_OPP_PATH"] = str(cann / "opp")
        drivers = (cann / "devlib", cann / f"{platform.machine()}-linux" / "devlib")
        substitutes = (*drivers, stub_cann / "lib64")
        own["LD_LIBRARY_PATH"] = join_paths(stubs, cann / "lib64", *substitutes, libraries)
        kernels = cann / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe"
        packages = cann / "python" / "site-packages"
        own["PYTHONPATH"] = join_paths(packages, kernels, modules, folder)
    if machine.ranks > 1:
        own.update(RANK_SIZE=str(machine.ranks), RANK_ID="0", DEVICE_ID="0")
    return {**inherited, **own}


def join_paths(*paths: object) -> str:
    """For a variable such as PATH; None is left out."""
    return os.pathsep.join(str(path) for path in paths if path)


def read_run(folder: Path, status: int, seconds: float) -> DryRun:
    """Reads the files of a worker process, which ended with `status`, in `folder`.

    stdout.txt, whose last line is a JSON object unless the process was killed or crashed, log.txt,
    and those of MindSpore.
    """
    log = (folder / "log.txt").read_text(errors="replace")
    details = parse_line((folder / "stdout.txt").read_text().strip().rpartition("\n")[2])
    reason = details.get("reason", "")
    if not details:
        lines = [line for line in log.splitlines() if VERSION_CHECK not in line]
        reason = f"the process {describe_exit(status, lines)}"
        if seconds >= TIMEOUT:
            reason = f"not finished after {TIMEOUT} s"

    # The execution order; with several ranks it is saved twice.
    files = sorted(folder.rglob(EXECUTION_ORDER), key=lambda file: "graphs" not in file.parts)
    csv.field_size_limit(1 << 30)  # a row names all inputs of its kernel
    order = []
    graphs = set()
    for file in files[:1]:
        with open(file, newline="", errors="replace") as rows:
            for row in csv.DictReader(rows):
                graph = (row.get("node_info") or "").partition(":")[0]
                name = row.get("node_name") or ""
                operator = name.rpartition("/")[2].rpartition("-op")[0]
                # Without an operator it only continues the row before.
                if operator and not graph.startswith(EAGER_GRAPH):
                    order.append(ScheduledKernel(operator, name))
                    graphs.add(graph)

    ir_files = folder.rglob("graph_build_*.ir")
    ir = "\n".join(file.read_text(errors="replace") for file in ir_files)
    segments = {node: int(number) for number, node in ALL_REDUCE.findall(ir)}
    backward = [index for index, row in enumerate(order) if row.name.startswith(BACKWARD)]
    all_reduces = {}
    gradient_positions = {}
    for index, row in enumerate(order):
        if row.operator == "AllReduce":
            after = sum(other > index for other in backward) / max(len(backward), 1)
            all_reduces[index] = after
            if segments.get(row.name):
                gradient_positions[segments[row.name]] = 1 - after

    step_log = log.rpartition(STEP_BEGINS)[2]
    kernels = KERNEL.findall(step_log)
    if not kernels:  # on a GPU, whose kernels the log does not name
        kernels = [(k.operator, NO_LAUNCH if k.operator in VIEWS else "gpu_kernel") for k in order]
    libraries = Counter(library for _, library in kernels)
    peaks = [int(size) << 20 for size in PEAK.findall(log)] or [details.get("peak_bytes", 0)]
    return DryRun(
        finished=bool(details.get("finished")),
        reason=reason,
        names=Counter(name for name, _ in kernels),
        libraries=libraries,
        launches=len(kernels) - libraries[NO_LAUNCH],
        order=tuple(order),
        graphs=len(graphs),
        python=sum(row.operator == PYTHON for row in order),
        all_reduces=all_reduces,
        gradient_positions=gradient_positions,
        ai_cpu=tuple(sorted(set(AI_CPU.findall(step_log)))),
        conv3d_float32=len(CONV3D.findall(ir)),
        any_type="AnyType" in log,
        peak_bytes=max(peaks),
        seconds=seconds,
        details=details,
    )
