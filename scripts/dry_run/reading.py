"""Reads the result of a dry run (`scripts.dry_run.simulator`) from MindSpore's log and files.

MindSpore writes each selected kernel and the peak of the planned memory into its log, the order of
the kernels into `execute_order.csv`, and the graphs as they are built into `graph_build_*.ir`.
"""

import contextlib
import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from utils.processes import describe_exit

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


class Kernel(NamedTuple):
    """One kernel of a step: its operator, and the library it comes from."""

    name: str
    library: str


class ScheduledKernel(NamedTuple):
    """One row of the execution order: the full name of a kernel, and the number of its graph."""

    name: str
    graph: str

    @property
    def operator(self) -> str:
        """Empty for a row that only continues the row before."""
        return self.name.rpartition("/")[2].rpartition("-op")[0]


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run of one training step or one evaluation."""

    chip: str
    finished: bool  # it was compiled and run to its end
    reason: str  # why not
    kernels: tuple[Kernel, ...]
    order: tuple[ScheduledKernel, ...]
    ai_cpu: tuple[str, ...]  # operators that run on the Ascend's AI CPU, by name
    conv3d_float32: int  # 3-D convolutions that are not float16, backward ones included
    any_type: bool  # whether part of the graph is compiled again while it runs
    peak_bytes: int  # of device memory, fragments included, workspaces of kernels excluded
    seconds: float
    details: Mapping[str, Any]  # the JSON object of the worker
    gradient_nodes: Mapping[str, int]  # name of an AllReduce -> number of its segment, from 1 on

    @cached_property
    def names(self) -> Counter:
        """Number of kernels by operator."""
        return Counter(kernel.name for kernel in self.kernels)

    @cached_property
    def libraries(self) -> Counter:
        """Number of kernels by library."""
        return Counter(kernel.library for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Number of kernels without views."""
        return len(self.kernels) - self.libraries[NO_LAUNCH]

    @property
    def graphs(self) -> int:
        """Kernel graphs in the execution order.

        One on Ascend, unless something runs in Python or on another device. On a GPU each branch
        is a separate graph.
        """
        return len({row.graph for row in self.order})

    @property
    def python(self) -> int:
        """Calls of the Python interpreter from the compiled graph."""
        return sum(row.operator == PYTHON for row in self.order)

    def find_rows(self, operator: str) -> list[int]:
        """Rows of the execution order with this operator."""
        return [row for row, kernel in enumerate(self.order) if kernel.operator == operator]

    @property
    def all_reduces(self) -> list[int]:
        return self.find_rows("AllReduce")

    def backward_after(self, row: int) -> float:
        """The fraction of the backward kernels that come after a row of the execution order."""
        rows = [i for i, kernel in enumerate(self.order) if kernel.name.startswith(BACKWARD)]
        return sum(index > row for index in rows) / max(len(rows), 1)

    def locate_gradients(self, names: Sequence[str]) -> dict[str, float]:
        """The position in the backward pass, 0..1, of the AllReduce of each gradient, by name.

        A position is the fraction of the backward kernels, views included, that precede it. `names`
        are those of the optimizer's parameters, in its order. Raises ValueError if a gradient has
        no separate AllReduce.
        """
        positions = {}
        for row in self.all_reduces:
            number = self.gradient_nodes.get(self.order[row].name)
            if number:
                positions[names[number - 1]] = 1 - self.backward_after(row)
        missing = [name for name in names if name not in positions]
        if missing:
            raise ValueError(f"the dry run shows no AllReduce of the gradient of {missing[0]}")
        return positions

    def summary(self) -> dict[str, Any]:
        """The JSON object of the command."""
        return {
            "chip": self.chip,
            "finished": self.finished,
            **({"reason": self.reason} if self.reason else {}),
            "kernels": len(self.kernels),
            "launches": self.launches,
            "by_library": dict(self.libraries.most_common()),
            "by_name": dict(self.names.most_common()),
            "graphs": self.graphs,
            "python": self.python,
            "any_type": self.any_type,
            "ai_cpu": list(self.ai_cpu),
            "conv3d_float32": self.conv3d_float32,
            "peak_gb": round(self.peak_bytes / 2**30, 2),
            "all_reduces": [
                {"row": row, "backward_after": round(self.backward_after(row), 3)}
                for row in self.all_reduces
            ],
            "seconds": round(self.seconds, 1),
        }


def read_run(chip: str, folder: Path, stdout: str, status: int, seconds: float) -> DryRun:
    """Reads the files of a worker process in `folder`: log.txt and those of MindSpore.

    `stdout` and `status` are those of the process. Its last line is a JSON object, unless it was
    killed or crashed.
    """
    log = (folder / "log.txt").read_text(errors="replace")
    details = read_result(stdout)
    reason = details.get("reason", "")
    if not details:
        lines = [line for line in log.splitlines() if VERSION_CHECK not in line]
        reason = f"the process {describe_exit(status, lines)}"
    files = folder.rglob("graph_build_*.ir")
    graphs = "\n".join(file.read_text(errors="replace") for file in files)
    order = tuple(read_order(folder))
    peaks = [int(size) << 20 for size in PEAK.findall(log)] or [details.get("peak_bytes", 0)]
    step_log = log.rpartition(STEP_BEGINS)[2]
    kernels = [Kernel(*match) for match in KERNEL.findall(step_log)]
    for row in () if kernels else order:  # on a GPU, whose kernels the log does not name
        library = NO_LAUNCH if row.operator in VIEWS else "gpu_kernel"
        kernels.append(Kernel(row.operator, library))
    return DryRun(
        chip=chip,
        finished=bool(details.get("finished")),
        reason=reason,
        kernels=tuple(kernels),
        order=order,
        ai_cpu=tuple(sorted(set(AI_CPU.findall(step_log)))),
        conv3d_float32=len(CONV3D.findall(graphs)),
        any_type="AnyType" in log,
        peak_bytes=max(peaks),
        seconds=seconds,
        details=details,
        gradient_nodes={node: int(number) for number, node in ALL_REDUCE.findall(graphs)},
    )


def read_result(stdout: str) -> dict[str, Any]:
    """The JSON object in the last line; empty if there is none."""
    with contextlib.suppress(IndexError, json.JSONDecodeError):
        result = json.loads(stdout.strip().splitlines()[-1])
        return result if isinstance(result, dict) else {}
    return {}


def read_order(folder: Path) -> Iterator[ScheduledKernel]:
    """The rows of MindSpore's execution order; with several ranks it is saved twice."""
    files = sorted(folder.rglob(EXECUTION_ORDER), key=lambda file: "graphs" not in file.parts)
    csv.field_size_limit(1 << 30)  # a row names all inputs of its kernel
    for file in files[:1]:
        with open(file, newline="", errors="replace") as rows:
            for row in csv.DictReader(rows):
                graph = (row.get("node_info") or "").partition(":")[0]
                kernel = ScheduledKernel(row.get("node_name") or "", graph)
                if kernel.operator and not graph.startswith(EAGER_GRAPH):
                    yield kernel
