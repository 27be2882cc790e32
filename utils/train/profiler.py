"""`run.profile`: a trace of a few training steps, by MindSpore's profiler.

The trace, `trace_view.json`, opens in MindStudio Insight, in TensorBoard with its plug-in, and, as
it is in Chrome's format, in any viewer of that.
"""

import csv
import json
import os
import re
from pathlib import Path
from typing import Optional

import numpy as np
from mindspore.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from utils.files import explained
from utils.log import log
from utils.runtime import Runtime

SKIPPED, WARM_UP, RECORDED = 3, 1, 5  # steps


class Profiling:
    """`start`, `step` after every step, `stop`; nothing happens where `folder` is None."""

    def __init__(self, folder: Optional[Path], rt: Runtime):
        self.folder, self.profiler = folder, None
        if folder is None:
            return
        with explained(folder, "run.profile"):
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
        """Ends the trace; returns where its time went, where the back end tells."""
        if self.profiler is None:
            return {}
        self.profiler.stop()
        log.info("run.profile: the trace of steps %d to %d is in %s", *self.steps, self.folder)
        return time_shares(self.folder)

    @property
    def steps(self) -> tuple[int, int]:
        first = SKIPPED + WARM_UP + 1
        return first, first + RECORDED - 1


EXCHANGES = re.compile(r"AllReduce|AllGather|ReduceScatter|Broadcast-op|AlltoAll|hcom_")
# The columns of Ascend's table, and what they are called here.
COLUMNS = {
    "Computing": "computing",
    "Communication(Not Overlapped)": "communication",
    "Free": "waiting",
}


def time_shares(folder: Path) -> dict[str, float]:
    """Shares of the traced time by this process's newest trace in `folder`; {} without one."""
    result = sorted(Path(folder).glob(f"*_{os.getpid()}_*/ASCEND_PROFILER_OUTPUT"))
    if not result:
        return {}
    table, trace = result[-1] / "step_trace_time.csv", result[-1] / "trace_view.json"
    if table.exists():
        return of_table(table)
    return of_kernels(json.loads(trace.read_text())) if trace.exists() else {}


def of_table(path: Path) -> dict[str, float]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    sums = {name: sum(float(row[title]) for row in rows) for title, name in COLUMNS.items()}
    return rounded(sums, sum(sums.values()))


def of_kernels(events: list[dict]) -> dict[str, float]:
    """Of the time from the first kernel's begin to the last one's end; {} where there are none.

    `events` are in Chrome's format.
    """
    kernels = [e for e in events if e.get("args", {}).get("type") == "HostCpuOps"]
    if not kernels:  # the run ended before the first traced step
        return {}
    spans = [(float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in kernels]
    computing = [span for span, e in zip(spans, kernels) if not EXCHANGES.search(e["name"])]
    busy, computed = covered(spans), covered(computing)
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    parts = {"computing": computed, "communication": busy - computed, "waiting": whole - busy}
    return rounded(parts, whole)


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of the spans."""
    if not spans:
        return 0.0
    begins, ends = np.array(sorted(spans)).T
    reached = np.maximum.accumulate(ends)
    gaps = np.maximum(begins[1:] - reached[:-1], 0).sum()
    return float(reached[-1] - begins[0] - gaps)


def rounded(parts: dict[str, float], whole: float) -> dict[str, float]:
    return {name: round(value / max(whole, 1e-12), 4) for name, value in parts.items()}
