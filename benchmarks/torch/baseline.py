"""Times the PyTorch reference of a network, in other processes that alternate with this one.

On a GPU it has the precision of the run: float32 with or without TF32, or float16 autocast with a
gradient scaler for every amp level above O0.

Each of VARIANTS has a process, because any of them can be the fastest one. All have what a careful
user sets: an allocator that keeps freed memory, a fused optimizer.
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from utils.cores import count_usable_cores
from utils.data.rows import EvalRows
from utils.evaluate.label_space import LabelSpace
from utils.files import ROOT
from utils.networks import Network
from utils.settings import NetworkConfig, Run

WORKER = ROOT / "benchmarks" / "torch" / "worker.py"
TURN_SECONDS = 2.0
# Settings by the name in results.
VARIANTS: dict[str, dict] = {
    "torch": {"layout": "default", "compiled": False},
    "torch_channels_last": {"layout": "channels_last", "compiled": False},
    "torch_compiled": {"layout": "channels_last", "compiled": True},
}
# Otherwise glibc returns the activations of a step to the system, and the next one gets new pages.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


class TorchReference:
    """The reference of a network with a batch of synthetic clips of one shape, in one of VARIANTS.

    `environment` is the one from before MindSpore was set up, whose settings PyTorch must not have.
    Raises ValueError if PyTorch is not installed or the reference does not support a setting.
    """

    def __init__(
        self,
        network_name: str,
        cfg: NetworkConfig,
        shape: tuple,
        variant: Mapping[str, Any],
        environment: Mapping[str, str],
    ):
        job = {
            "network_name": network_name,
            "network": cfg.model_arguments(),
            "train": vars(cfg.train),
            "shape": shape,
            "fraction": 0.7 if cfg.data.mixes else 1.0,
            "threads": count_usable_cores(),
            "device": {"GPU": "cuda"}.get(cfg.run.device, "cpu"),
            "half": cfg.run.amp_level != "O0",
            "tf32": cfg.run.tf32,
            **variant,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**ALLOCATOR, **environment},
        )
        self.train_peak_gb = 0.0
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
        if work == "train":
            self.train_peak_gb = answer["peak_gb"]
        return answer["seconds"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure_files(
    network: Network,
    cfg: Any,
    rows: EvalRows,
    head: LabelSpace,
    rate: float,
    environment: Mapping[str, str],
) -> dict:
    """Videos/s of a whole evaluation in PyTorch with the same frames and crops, and our `rate` over
    the fastest one's. The first video is not timed.

    Raises ValueError for other networks than TSM of RGB frames and X3D, and other crops than one or
    three.
    """
    _, *axes, crop, _ = rows.shape
    is_tsm = network.name == "tsm"
    if network.name not in ("tsm", "x3d") or rows.crops not in (1, 3) or axes[is_tsm] != 3:
        raise ValueError("--torch: of eval, only TSM of RGB frames and X3D, with 1 or 3 crops")
    videos = []
    for record in rows.records:
        with rows.open_video(record) as video:
            clips = head.frame_indices(video).reshape(rows.clips, -1)
            videos.append((str(video.path), clips.tolist()))
    side = cfg.data.resize if is_tsm else cfg.data.scales[0]
    if rows.crops == 3 and not is_tsm:
        side = crop  # as X3D's tests with three crops
    files = {"videos": videos, "workers": count_usable_cores(), "side": side, "crop": crop}
    files |= {"crops": rows.crops, "channels_first": not is_tsm}
    result: dict[str, Any] = {}
    rates = []
    for name, variant in VARIANTS.items():
        reference = TorchReference(network.name, cfg, rows.shape, variant, environment)
        answer = reference.send({"files": files})
        reference.close()
        rates.append((len(videos) - 1) / answer["seconds"])
        result[f"{name}_videos_per_second"] = round(rates[-1], 2)
        result[f"{name}_peak_gb"] = round(answer["peak_gb"], 2)
    result["videos_over_torch"] = round(rate / max(rates), 2)
    return result


def check_torch(kind: str, run: Run) -> None:
    """ValueError if --torch cannot be compared fairly."""
    if kind not in ("step", "eval"):
        raise ValueError(f"--torch goes with step and eval, not with {kind}")
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--torch: PyTorch is not installed here (pip install torch)")
    if run.device == "Ascend":
        raise ValueError("--torch: the PyTorch references run on a CPU or a GPU; set --run.device")
    if run.device == "CPU" and run.amp_level != "O0":
        raise ValueError("--torch compares float32 on a CPU: without --run.amp")


def measure_medians(
    step: Callable[[], Any], repeats: int, references: Sequence[TorchReference], work: str
) -> list[float]:
    """Median seconds of a step in MindSpore, then in each of the references, in `repeats` turns.

    The first step of all is not timed.
    """
    if not references:
        return [measure_median_seconds(step, repeats)]
    step()
    for reference in references:
        reference.run(work, 0)
    mindspore_seconds = []
    torch_seconds = [[] for _ in references]
    for _ in range(repeats):
        turn_end = time.monotonic() + TURN_SECONDS
        while not mindspore_seconds or time.monotonic() < turn_end:
            mindspore_seconds.append(measure_median_seconds(step, 1, warm_up=0))
        for reference, seconds in zip(references, torch_seconds):
            seconds += reference.run(work)
    return [float(np.median(seconds)) for seconds in (mindspore_seconds, *torch_seconds)]


def measure_median_seconds(work: Callable[[], Any], repeats: int, warm_up: int = 1) -> float:
    """Median of several timed runs, after `warm_up` that are not timed."""
    times = []
    for _ in range(warm_up + repeats):
        start = time.monotonic()
        work()
        times.append(time.monotonic() - start)
    return float(np.median(times[warm_up:]))
