"""The same network in eager PyTorch: a process of its own that works in turns with this one."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np

from utils.build_networks import measure_median_seconds
from utils.config import ROOT
from utils.data.loader import count_usable_cores

WORKER = ROOT / "benchmarks" / "torch" / "worker.py"
TURN = 2.0  # seconds


class TorchTwin:
    """The twin of a room's network with a batch of made-up clips of one shape.

    `environment` is that of before MindSpore was set up: its settings are not PyTorch's. Raises
    ValueError where PyTorch is not installed or the twin does not know a setting.
    """

    def __init__(self, network_name: str, cfg: Any, shape: tuple, environment: Mapping[str, str]):
        mixes = getattr(cfg.data, "mixes", getattr(cfg.data, "mixup", 0))
        job = {
            "network_name": network_name,
            "network": cfg.model_arguments(),
            "train": vars(cfg.train),
            "shape": shape,
            "share": 0.7 if mixes else 1.0,
            "threads": count_usable_cores(),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )
        self.peak_gb = 0.0
        self.version = self.ask(job)["torch"]

    def ask(self, message: dict) -> dict:
        try:
            print(json.dumps(message, default=str), file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline())
        except (OSError, json.JSONDecodeError):
            raise ValueError("--torch: PyTorch's process has ended; it has told why") from None
        if "error" in answer:
            raise ValueError(f"--torch: {answer['error']}")
        return answer

    def run(self, work: str, seconds: float = TURN) -> list[float]:
        """Seconds of each step of `work`, `train` or `evaluate`, in a turn of so many seconds."""
        answer = self.ask({"work": work, "seconds": seconds})
        self.peak_gb = answer["peak_gb"]
        return answer["seconds"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def check(kind: str, run: Any) -> None:
    """ValueError where there is no fair comparison to be had."""
    if kind != "step":
        raise ValueError(f"--torch goes with step, not with {kind}")
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--torch: PyTorch is not installed here (pip install torch)")
    if run.device != "CPU" or run.amp != "O0":
        raise ValueError("--torch compares float32 on the CPU: --run.device=CPU --run.amp=O0")


def medians(
    ours: Callable[[], Any], repeats: int, twin: Optional[TorchTwin], work: str
) -> tuple[float, float]:
    """Median seconds of a step here and there, in `repeats` turns; 0 there without a twin.

    The first step of either is not timed.
    """
    if twin is None:
        return measure_median_seconds(ours, repeats), 0.0
    ours()
    twin.run(work, 0)
    here, there = [], []
    for _ in range(repeats):
        here += turn(ours)
        there += twin.run(work)
    return float(np.median(here)), float(np.median(there))


def turn(work: Callable[[], Any]) -> list[float]:
    """Seconds of each run in a turn; at least one."""
    times = []
    while not times or sum(times) < TURN:
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return times
