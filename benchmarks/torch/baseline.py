"""Times the PyTorch twin of a network, in another process that alternates with this one."""

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
TURN_SECONDS = 2.0


class TorchTwin:
    """The twin of a network with a batch of synthetic clips of one shape.

    `environment` is the one from before MindSpore was set up, whose settings PyTorch must not have.
    Raises ValueError if PyTorch is not installed or the twin does not support a setting.
    """

    def __init__(self, network_name: str, cfg: Any, shape: tuple, environment: Mapping[str, str]):
        mixes = getattr(cfg.data, "mixes", getattr(cfg.data, "mixup", 0))
        job = {
            "network_name": network_name,
            "network": cfg.model_arguments(),
            "train": vars(cfg.train),
            "shape": shape,
            "fraction": 0.7 if mixes else 1.0,
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
        self.version = self.send(job)["torch"]

    def send(self, message: dict) -> dict:
        """The answer of the worker; ValueError with its error."""
        try:
            print(json.dumps(message, default=str), file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline())
        except (OSError, json.JSONDecodeError):
            raise ValueError("--torch: PyTorch's process has ended; its error is above") from None
        if "error" in answer:
            raise ValueError(f"--torch: {answer['error']}")
        return answer

    def run(self, work: str, seconds: float = TURN_SECONDS) -> list[float]:
        """Seconds of each step of `work`, `train` or `evaluate`, in a turn of `seconds`."""
        answer = self.send({"work": work, "seconds": seconds})
        self.peak_gb = answer["peak_gb"]
        return answer["seconds"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def check_torch(kind: str, run: Any) -> None:
    """ValueError if --torch cannot be compared fairly."""
    if kind != "step":
        raise ValueError(f"--torch goes with step, not with {kind}")
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--torch: PyTorch is not installed here (pip install torch)")
    if run.device != "CPU" or run.amp != "O0":
        raise ValueError("--torch compares float32 on the CPU: --run.device=CPU --run.amp=O0")


def measure_medians(
    step: Callable[[], Any], repeats: int, twin: Optional[TorchTwin], work: str
) -> tuple[float, float]:
    """Median seconds of a step in MindSpore and in PyTorch, in `repeats` turns; 0 without a twin.

    The first step of both is not timed.
    """
    if twin is None:
        return measure_median_seconds(step, repeats), 0.0
    step()
    twin.run(work, 0)
    mindspore_seconds, torch_seconds = [], []
    for _ in range(repeats):
        turn_end = time.monotonic() + TURN_SECONDS
        while not mindspore_seconds or time.monotonic() < turn_end:
            mindspore_seconds.append(measure_median_seconds(step, 1, warm_up=0))
        torch_seconds += twin.run(work)
    return float(np.median(mindspore_seconds)), float(np.median(torch_seconds))
