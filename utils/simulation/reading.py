"""What MindSpore's log and execution order say about a dry run (`utils.simulation.dry_run`).

MindSpore writes each selected kernel and the peak of the planned memory into its log, the order of
the kernels into `execute_order.csv`, and the graphs as they are built into `graph_build_*.ir`.
"""

import csv
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

NO_LAUNCH = "rt_kernel"  # reshapes and the like: views, which launch nothing
VIEWS = {"Reshape", "ExpandDims", "Squeeze", "Flatten"}  # the same on a GPU
PYTHON = "PyExecute"  # a call of the Python interpreter
BACKWARD = "Gradients/"  # how names of backward kernels begin

KERNEL = re.compile(r"kernel opname:(\w+), kernel type:(\w+)")  # Ascend only
AI_CPU = re.compile(r"prim name: (\w+), ge name: Cust\w+")  # MindSpore's own AI-CPU kernels
CONV3D = re.compile(r" = Conv3D\w*\(.*\n.*: \(<Tensor\[Float32\]")
PEAK = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")
ERROR = re.compile(r"\[(?:ERROR|CRITICAL)\]|\w*Error:")
VERSION_CHECK = "_check_version.py"  # complains about parts of CANN that a dry run does not need


class Kernel(NamedTuple):
    """One kernel of a step: its operator, and the library it comes from."""

    name: str
    library: str


class Step(NamedTuple):
    """One row of the execution order: operator, stream, number of its kernel graph."""

    operator: str
    stream: str
    backward: bool
    graph: str


@dataclass(frozen=True)
class DryRun:
    """What is known of one step, or one evaluation, after a dry run."""

    chip: str
    finished: bool  # it was compiled and run to its end
    reason: str  # why not
    kernels: tuple[Kernel, ...]
    order: tuple[Step, ...]
    ai_cpu: tuple[str, ...]  # operators that run on the Ascend's AI CPU, by name
    conv3d_float32: int  # 3-D convolutions that are not float16, backward ones included
    any_type: bool  # whether part of the graph is compiled again while it runs
    peak_bytes: int  # of device memory, fragments included, workspaces of kernels excluded
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)  # what the worker reported

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
        is a graph of its own.
        """
        return len({step.graph for step in self.order})

    @property
    def python(self) -> int:
        """Calls of the Python interpreter from the compiled graph."""
        return sum(step.operator == PYTHON for step in self.order)

    def find_rows(self, operator: str) -> list[int]:
        """Rows of the execution order with this operator."""
        return [row for row, step in enumerate(self.order) if step.operator == operator]

    @property
    def all_reduces(self) -> list[int]:
        return self.find_rows("AllReduce")

    @property
    def backward_rows(self) -> list[int]:
        return [row for row, step in enumerate(self.order) if step.backward]

    def backward_after(self, row: int) -> float:
        """The fraction of the backward kernels that come after a row of the execution order."""
        rows = self.backward_rows
        return sum(other > row for other in rows) / max(len(rows), 1)

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
    """Reads what a worker process has left in `folder`: log.txt and what MindSpore saved.

    `stdout` and `status` are those of the process. Its last line is a JSON object, unless it was
    killed or crashed.
    """
    log = (folder / "log.txt").read_text(errors="replace")
    details = read_result(stdout)
    reason = details.get("reason", "")
    if not details:
        reason = f"the process ended {name_status(status)}: {find_last_error(log)}"
    graphs = [file.read_text(errors="replace") for file in folder.rglob("graph_build_*.ir")]
    order = tuple(read_order(folder))
    peaks = [int(size) << 20 for size in PEAK.findall(log)] or [details.get("peak_bytes", 0)]
    return DryRun(
        chip=chip,
        finished=bool(details.get("finished")),
        reason=reason,
        kernels=tuple(Kernel(*match) for match in KERNEL.findall(log)) or list_kernels(order),
        order=order,
        ai_cpu=tuple(sorted(set(AI_CPU.findall(log)))),
        conv3d_float32=sum(len(CONV3D.findall(graph)) for graph in graphs),
        any_type="AnyType" in log,
        peak_bytes=max(peaks),
        seconds=seconds,
        details=details,
    )


def read_result(stdout: str) -> dict[str, Any]:
    """The JSON object in the last line; empty if there is none."""
    try:
        result = json.loads((stdout.strip().splitlines() or [""])[-1])
    except json.JSONDecodeError:
        return {}
    return result if isinstance(result, dict) else {}


def name_status(status: int) -> str:
    """`with status 1`, or `by SIGABRT`."""
    return f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def find_last_error(log: str) -> str:
    """The last line of a log that reports an error; the last line if none does."""
    lines = [line for line in log.splitlines() if line.strip() and VERSION_CHECK not in line]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["no output"])[-1][:300]


def read_order(folder: Path) -> Iterator[Step]:
    """The rows of MindSpore's execution order; with several ranks it is saved twice."""
    files = sorted(folder.rglob("execute_order.csv"), key=lambda file: "graphs" not in file.parts)
    for file in files[:1]:
        csv.field_size_limit(1 << 30)  # a row names all inputs of its kernel
        with open(file, newline="", errors="replace") as rows:
            for row in csv.DictReader(rows):
                name = row.get("node_name") or ""
                operator = name.rpartition("/")[2].rpartition("-op")[0]
                if operator:  # not a further line of the row before
                    graph = (row.get("node_info") or "").partition(":")[0]
                    stream = row.get("stream_id") or ""
                    yield Step(operator, stream, name.startswith(BACKWARD), graph)


def list_kernels(order: tuple[Step, ...]) -> tuple[Kernel, ...]:
    """The kernels by the execution order: for a GPU, whose kernels the log does not name."""
    return tuple(
        Kernel(step.operator, NO_LAUNCH if step.operator in VIEWS else "gpu_kernel")
        for step in order
    )
