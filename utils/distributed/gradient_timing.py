"""When each gradient is complete, in seconds from the start of the step: counted or from a file.

Counted: a layer's backward pass is twice the work of its forward pass, in the reverse order, and
every multiply-add takes the same time. A file is a measured profile
(scripts/analysis/profile_backward.py) or holds the order of a dry run
(scripts/analysis/plan_allreduce.py --chip).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utils.distributed.cost_model import TERA, Cluster
from utils.files import write_text
from utils.messages import format_error
from utils.nn.complexity import LayerCost


@dataclass(frozen=True)
class Backward:
    """One device's step: gradients of `names`, of `sizes` bytes, complete at `ready` seconds.

    In the network's order. `forward` is where the backward pass begins, `step` where the device is
    done, both in seconds; `source` says where the times come from.
    """

    names: tuple[str, ...]
    sizes: np.ndarray
    ready: np.ndarray
    forward: float
    step: float
    source: str

    @property
    def end(self) -> float:
        """Where the last gradient is complete."""
        return float(self.ready.max())


def count_backward(
    names: Sequence[str],
    sizes: Sequence[int],
    layers: Sequence[LayerCost],
    batch: int,
    cluster: Cluster,
) -> Backward:
    """From counted operations: a step is three forward passes at the cluster's rate.

    Where `step_seconds` was measured, it is that long; the counts then say only where in it a
    gradient is complete.
    """
    macs = np.array([layer.macs for layer in layers], np.float64)
    total = max(macs.sum(), 1.0)
    step = cluster.step_seconds or 3 * 2 * total * batch / (cluster.tflops * TERA)
    # The share of the backward pass that is over when a layer's part of it is.
    over = macs[::-1].cumsum()[::-1] / total
    done: dict[str, float] = {}
    for layer, fraction in zip(layers, over):
        # The first call of a layer is the last in the backward pass.
        done.setdefault(layer.name, float(fraction))
    ready = [step / 3 + 2 * step / 3 * done[owner(name, done)] for name in names]
    return Backward(
        tuple(names), np.array(sizes), np.array(ready), step / 3, step, "counted operations"
    )


def owner(name: str, layers: Any) -> str:
    """The layer that a parameter belongs to: the longest whose name its own begins with."""
    parts = name.split(".")
    for count in range(len(parts) - 1, -1, -1):
        if ".".join(parts[:count]) in layers:
            return ".".join(parts[:count])
    raise AssertionError(f"{name} belongs to no counted layer")


def read_backward(path: Path, names: Sequence[str], sizes: Sequence[int]) -> Backward:
    """The profile in a JSON file; ValueError if it is none, or of another network.

    The file has `forward_seconds`, `step_seconds` and `ready_seconds` by name; `source`, `batch`
    and `device` are optional.
    """
    try:
        result = json.loads(Path(path).read_text())
        ready = {name: float(seconds) for name, seconds in result["ready_seconds"].items()}
        forward, step = float(result["forward_seconds"]), float(result["step_seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not a profile of a backward pass ({format_error(error)}); "
            "scripts/analysis/profile_backward.py writes one"
        ) from None
    missing = [name for name in names if name not in ready]
    extra = [name for name in ready if name not in set(names)]
    if missing or extra:
        raise ValueError(
            f"{path}: of another network: {(missing or extra)[0]} is in only one of them; "
            "measure again with scripts/analysis/profile_backward.py"
        )
    times = np.array([ready[name] for name in names])
    if not (0 < forward <= times.min() and times.max() <= step < np.inf):
        raise ValueError(f"{path}: times that are no profile: not 0 < forward <= ready <= step")
    source = result.get("source", "measured")
    source = f"{source}, {path}, batch {result.get('batch')} on {result.get('device')}"
    return Backward(tuple(names), np.array(sizes), times, forward, step, source)


def write_backward(path: Path, backward: Backward, batch: int, device: str) -> None:
    """Writes a file that `read_backward` reads; OSError if the disk refuses it."""
    result = {
        "source": backward.source,
        "device": device,
        "batch": batch,
        "forward_seconds": backward.forward,
        "step_seconds": backward.step,
        "ready_seconds": {n: float(t) for n, t in zip(backward.names, backward.ready)},
    }
    write_text(path, json.dumps(result, indent=1) + "\n")
