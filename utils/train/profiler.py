"""`run.profile`: a trace of a few training steps, by MindSpore's profiler.

The trace, `trace_view.json`, is in Chrome's format: it opens in MindStudio Insight, in TensorBoard
with its plug-in, and in any viewer of that format.
"""

import csv
import json
import os
import re
from pathlib import Path
from typing import Optional

import numpy as np
from mindspore.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from utils.files import report_write_errors
from utils.log import log
from utils.runtime import Runtime

# Steps
SKIPPED = 3
WARM_UP = 1
RECORDED = 5
COLLECTIVES = re.compile(r"AllReduce|AllGather|ReduceScatter|Broadcast-op|AlltoAll|hcom_")
# {column of Ascend's table: name here}
COLUMNS = {
    "Computing": "computing",
    "Communication(Not Overlapped)": "communication",
    "Free": "waiting",
}


class StepProfiler:
    """`start`, `step` after every step, `stop`; does nothing if `folder` is None."""

    steps = SKIPPED + WARM_UP + 1, SKIPPED + WARM_UP + RECORDED  # first and last recorded one

    def __init__(self, folder: Optional[Path], rt: Runtime):
        self.folder = folder
        self.profiler = None
        if folder is None:
            return
        with report_write_errors(folder, "run.profile"):
            folder.mkdir(parents=True, exist_ok=True)
        device = {"Ascend": [ProfilerActivity.NPU], "GPU": [ProfilerActivity.GPU]}
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *device.get(rt.device, [])],
            schedule=schedule(
                wait=0, warmup=WARM_UP, active=RECORDED, repeat=1, skip_first=SKIPPED
            ),
            on_trace_ready=tensorboard_trace_handler(str(folder)),
        )

    def start(self) -> None:
        if self.profiler:
            self.profiler.start()

    def step(self) -> None:
        if self.profiler:
            self.profiler.step()

    def stop(self) -> dict[str, float]:
        """Ends the trace; returns the fractions of `read_time_fractions`."""
        if self.profiler is None:
            return {}
        self.profiler.stop()
        log.info("run.profile: the trace of steps %d to %d is in %s", *self.steps, self.folder)
        return read_time_fractions(self.folder)


def read_time_fractions(folder: Path) -> dict[str, float]:
    """Fractions of the time in this process's newest trace in `folder`; {} without one.

    `computing`, `communication` (if no kernel computes meanwhile) and `waiting`.
    """
    outputs = sorted(Path(folder).glob(f"*_{os.getpid()}_*/ASCEND_PROFILER_OUTPUT"))
    if not outputs:
        return {}
    table = outputs[-1] / "step_trace_time.csv"
    trace = outputs[-1] / "trace_view.json"
    if table.exists():
        return sum_table(table)
    return sum_kernels(json.loads(trace.read_text())) if trace.exists() else {}


def sum_table(path: Path) -> dict[str, float]:
    """The fractions in Ascend's table of steps."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    sums = {name: sum(float(row[title]) for row in rows) for title, name in COLUMNS.items()}
    return {name: round(value / sum(sums.values()), 4) for name, value in sums.items()}


def sum_kernels(events: list[dict]) -> dict[str, float]:
    """Fractions of the time from the first kernel's start to the last one's end.

    `events` are in Chrome's format. {} without kernels: the run ended before the first traced step.
    """
    kernels = [event for event in events if event.get("args", {}).get("type") == "HostCpuOps"]
    if not kernels:
        return {}
    starts = np.array([float(event["ts"]) for event in kernels])
    ends = starts + [float(event["dur"]) for event in kernels]
    computes = np.array([not COLLECTIVES.search(event["name"]) for event in kernels])
    total = max(ends.max() - starts.min(), 1e-12)
    busy = measure_union(starts, ends) / total
    computing = measure_union(starts[computes], ends[computes]) / total
    fractions = {"computing": computing, "communication": busy - computing, "waiting": 1 - busy}
    return {name: round(float(value), 4) for name, value in fractions.items()}


def measure_union(starts: np.ndarray, ends: np.ndarray) -> float:
    """The length of the union of intervals."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts)
    starts = starts[order]
    reached = np.maximum.accumulate(ends[order])
    gaps = np.maximum(starts[1:] - reached[:-1], 0).sum()
    return float(reached[-1] - starts[0] - gaps)
