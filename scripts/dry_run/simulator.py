"""Dry runs: compiles one step of a network for an Ascend or a GPU on a machine without either.

A separate process (`scripts.dry_run.worker`) runs MindSpore in simulation mode on stub libraries
(`scripts.dry_run.stub_libraries`). MindSpore compiles the graph for the chip, selects kernels and
plans streams and memory as on a device, but computes nothing. So a dry run shows whether a graph
compiles, which kernels a step launches, in which order, and how much memory it takes. It shows no
values and no times, and not whether CANN's compiler accepts a kernel.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from scripts.dry_run.reading import EXECUTION_ORDER, DryRun, read_run
from scripts.dry_run.stub_libraries import SOURCES, build_stubs
from utils.files import check_folder, get_cache_folder, report_write_errors
from utils.load_config import to_yaml
from utils.processes import die_with_parent
from utils.settings import Device, NetworkConfig
from utils.signals import end_command, handle_signals

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
        if self.ranks > 1 and self.device == "GPU":
            # Its simulation has a substitute for HCCL, but not for NCCL.
            raise ValueError(
                f"--ranks {self.ranks}: MindSpore simulates several ranks on Ascend only"
            )
        if self.cann and self.device == "GPU":
            raise ValueError(f"--cann is for Ascend, not for --chip {self.chip}")
        if self.cann and not (self.cann / "lib64" / "libascendcl.so").is_file():
            raise ValueError(
                f"--cann: {self.cann} has no lib64/libascendcl.so; give the folder that CANN's "
                "set_env.sh calls ASCEND_HOME_PATH"
            )

    @property
    def device(self) -> Device:
        return CHIPS[self.chip]


def dry_run(
    network: str,
    cfg: NetworkConfig,
    machine: Machine,
    mode: str = MODES[0],
    keep: Optional[Path] = None,
    separate_gradients: bool = False,
) -> DryRun:
    """Compiles and runs one step of a network on a simulated machine.

    `cfg` are the settings of the network; `run.device` is replaced. `mode` is train or eval, `keep`
    a folder for MindSpore's log and execution order. With `separate_gradients` every gradient has
    a separate AllReduce, and `details` lists the `gradients` by name. Raises ValueError for a
    wrong setting, and if this machine cannot do it.
    """
    jit_level = cfg.run.jit_level
    level = "O2" if (machine.chip, jit_level) == ("ascend910", "auto") else jit_level
    if machine.device == "Ascend" and level == "O2" and not machine.cann:  # CANN's graph engine
        raise ValueError(
            f"run.jit_level {jit_level} compiles by CANN's graph engine on {machine.chip}: a "
            "dry run needs --cann for it, or --run.jit_level=O0"
        )
    request = {
        "network": network,
        "yaml": to_yaml(replace(cfg, run=replace(cfg.run, device=machine.device))),
        "mode": mode,
        "ranks": machine.ranks,
        "separate_gradients": separate_gradients,
    }
    result = simulate([str(SOURCES / "worker.py"), json.dumps(request)], machine, keep)
    if result.finished and not result.order:
        reason = f"MindSpore did not save the order of its kernels within {SAVING} s after the step"
        return replace(result, finished=False, reason=reason)
    return result


def simulate(script: Sequence[str], machine: Machine, keep: Optional[Path] = None) -> DryRun:
    """Runs a Python script with its arguments on a simulated machine.

    The last line of its stdout is a JSON object with `finished`, and with `reason` if that is
    false. Raises ValueError if this machine cannot do it.
    """
    if keep:
        check_folder(keep, {}, "--keep")  # files of two runs would be mixed
    stubs = build_stubs(machine.device, get_cache_folder() / "dry_run")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def stop(number: int) -> None:  # ctrl-C or SIGTERM; the worker ends with this process
            shutil.rmtree(folder, ignore_errors=True)
            end_command(number)

        with handle_signals(stop):
            start = time.monotonic()
            stdout, status = run_worker(script, set_environment(machine, stubs, folder), folder)
            result = read_run(
                machine.chip,
                folder=folder,
                stdout=stdout,
                status=status,
                seconds=time.monotonic() - start,
            )
            if keep:
                with report_write_errors(keep, "--keep"):
                    shutil.copytree(folder, keep, dirs_exist_ok=True)
    return result


def run_worker(script: Sequence[str], environment: dict[str, str], folder: Path) -> tuple[str, int]:
    """Runs a Python script in `folder`, with its stderr in log.txt; (stdout, exit status).

    A script is killed if it has not ended GRACE seconds after it has printed its JSON object and
    saved an execution order, or SAVING seconds after its JSON object: MindSpore's destructors
    sometimes hang on stub libraries, after they have written their files.
    """
    (folder / "hccl").mkdir()
    (folder / "hccl" / "__init__.py").write_text(HCCL_MODULE)
    output = folder / "stdout.txt"
    with open(folder / "log.txt", "w") as log, open(output, "w") as stdout:
        process = subprocess.Popen(
            [sys.executable, *script],
            stdout=stdout,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            preexec_fn=die_with_parent,
        )
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        if output.read_text().endswith("}\n"):
            is_saved = any(folder.rglob(EXECUTION_ORDER))
            deadline = min(deadline, time.monotonic() + (GRACE if is_saved else SAVING))
        time.sleep(0.1)
    process.kill()  # no effect if it has ended
    process.wait()
    text = output.read_text()
    if not text.endswith("}\n") and time.monotonic() >= deadline:
        text = json.dumps({"finished": False, "reason": f"not finished after {TIMEOUT} s"})
    return text, process.returncode


def set_environment(machine: Machine, stubs: Path, folder: Path) -> dict[str, str]:
    """The environment of the worker: stub libraries first, the chip, the ranks, the log."""
    inherited_variables = {
        name: text for name, text in os.environ.items() if not name.startswith(DROPPED)
    }
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
    if machine.device == "GPU":
        own["CUDA_HOME"] = str(stubs)
        own["LD_LIBRARY_PATH"] = str(stubs / "lib64")
        own["PATH"] = join_paths(stubs / "bin", inherited_variables.get("PATH"))
    else:
        own["ZOO_DRY_RUN_SOC"] = SOC_NAMES[machine.chip]
        own.update(
            set_cann(
                machine.cann,
                stubs=stubs / "cann",
                folder=folder,
                inherited_variables=inherited_variables,
            )
        )
    if machine.ranks > 1:
        own.update(RANK_SIZE=str(machine.ranks), RANK_ID="0", DEVICE_ID="0")
    own["LD_LIBRARY_PATH"] = join_paths(stubs, own["LD_LIBRARY_PATH"])
    return {**inherited_variables, **own}


def set_cann(
    installed: Optional[Path], stubs: Path, folder: Path, inherited_variables: dict[str, str]
) -> dict[str, str]:
    """The variables of CANN: as its set_env.sh sets them, or for stub libraries.

    An installed CANN lacks the driver's libraries on a machine without an Ascend: its own
    substitutes follow it, then the stubs.
    """
    libraries = inherited_variables.get("LD_LIBRARY_PATH")
    modules = inherited_variables.get("PYTHONPATH")
    if installed is None:
        # The second need not exist: MindSpore looks only for its name.
        kernels = "/opp/built-in/op_impl/ai_core/tbe"
        return {
            "ASCEND_HOME_PATH": str(stubs),
            "LD_LIBRARY_PATH": join_paths(stubs / "lib64", libraries),
            "PYTHONPATH": join_paths(folder, kernels, modules),
        }
    cann = installed.resolve()
    drivers = (cann / "devlib", cann / f"{platform.machine()}-linux" / "devlib", stubs / "lib64")
    kernels = cann / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe"
    names = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH")
    return {
        **dict.fromkeys(names, str(cann)),
        "ASCEND_OPP_PATH": str(cann / "opp"),
        "LD_LIBRARY_PATH": join_paths(cann / "lib64", *drivers, libraries),
        "PYTHONPATH": join_paths(cann / "python" / "site-packages", kernels, modules, folder),
    }


def join_paths(*paths: object) -> str:
    """For a variable such as PATH; None is left out."""
    return os.pathsep.join(str(path) for path in paths if path)
