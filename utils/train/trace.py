"""Where the time of the traced steps went: computing, communication that nothing hid, waiting.

Read from what MindSpore's profiler leaves: on a CPU the kernels of `trace_view.json`, of which
those that exchange something are told by name; on Ascend the table `step_trace_time.csv`.
"""

import csv
import json
import os
import re
from pathlib import Path

import numpy as np

EXCHANGES = re.compile(r"AllReduce|AllGather|ReduceScatter|Broadcast-op|AlltoAll|hcom_")
# The columns of Ascend's table, and what they are called here.
COLUMNS = {
    "Computing": "computing",
    "Communication(Not Overlapped)": "communication",
    "Free": "waiting",
}


def time_shares(folder: Path) -> dict[str, float]:
    """Shares of the traced time by this process's newest trace in `folder`; {} without one."""
    found = sorted(Path(folder).glob(f"*_{os.getpid()}_*/ASCEND_PROFILER_OUTPUT"))
    if not found:
        return {}
    table, trace = found[-1] / "step_trace_time.csv", found[-1] / "trace_view.json"
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
