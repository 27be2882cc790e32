"""The times at which gradients are complete, in seconds from the start of the step.

They are counted or read from a file. To count them, a layer's backward pass is taken as twice the
work of its forward pass, in the reverse order, with the same time for each multiply-add. A file is
a measured profile (scripts/analysis/profile_backward.py) or holds the order of a dry run
(scripts/analysis/plan_allreduce.py --chip).
"""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils.complexity import LayerCost
from utils.cost_model import TERA, Cluster
from utils.files import write_text
from utils.messages import format_error, format_line


@dataclass(frozen=True)
class Backward:
    """One device's step: gradients of `names`, of `sizes` bytes, complete at `ready` seconds.

    In the network's order. `forward` is when the backward pass begins and `step` when the device
    has finished, both in seconds; `source` describes the origin of the times.
    """

    names: tuple[str, ...]
    sizes: np.ndarray
    ready: np.ndarray
    forward: float
    step: float
    source: str

    @property
    def end(self) -> float:
        """When the last gradient is complete."""
        return float(self.ready.max())


def count_backward(
    names: Sequence[str],
    sizes: Sequence[int],
    layers: Sequence[LayerCost],
    batch: int,
    cluster: Cluster,
) -> Backward:
    """From counted operations: a step is three forward passes at the cluster's rate.

    If `step_seconds` was measured, the step takes that long; the counts then give only the fraction
    of it after which a gradient is complete.
    """
    macs = np.array([layer.macs for layer in layers], np.float64)
    total = max(macs.sum(), 1.0)
    step = cluster.step_seconds or 3 * 2 * total * batch / (cluster.tflops * TERA)
    # The fraction of the backward pass that has passed when the gradients of a layer are complete.
    # The first call of a layer is the last in the backward pass, so it replaces later ones.
    passed = macs[::-1].cumsum()[::-1] / total
    fractions = {layer.name: part for layer, part in zip(reversed(layers), passed[::-1])}
    ready = [step / 3 + 2 * step / 3 * fractions[find_layer(name, fractions)] for name in names]
    return Backward(
        tuple(names), np.array(sizes), np.array(ready), step / 3, step, "counted operations"
    )


def find_layer(name: str, layers: Container[str]) -> str:
    """The counted layer of a parameter: the longest one that the parameter's name begins with."""
    layer = name
    while layer not in layers:
        assert layer, f"{name} belongs to no counted layer"
        layer = layer.rpartition(".")[0]
    return layer


def read_backward(path: Path, names: Sequence[str], sizes: Sequence[int]) -> Backward:
    """Reads a profile; ValueError if the file holds none, or that of another network.

    The file has `forward_seconds`, `step_seconds` and `ready_seconds` by name; `source`, `batch`
    and `device` are optional.
    """
    try:
        result = json.loads(Path(path).read_text())
        ready = {name: float(seconds) for name, seconds in result["ready_seconds"].items()}
        forward = float(result["forward_seconds"])
        step = float(result["step_seconds"])
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
    source = format_line(source)  # texts of the file are printed
    return Backward(tuple(names), np.array(sizes), times, forward, step, source)


def write_backward(path: Path, backward: Backward, batch: int, device: str) -> None:
    """Writes a file that `read_backward` reads; OSError if it cannot be written."""
    result = {
        "source": backward.source,
        "device": device,
        "batch": batch,
        "forward_seconds": backward.forward,
        "step_seconds": backward.step,
        "ready_seconds": {n: float(t) for n, t in zip(backward.names, backward.ready)},
    }
    write_text(path, json.dumps(result, indent=1) + "\n")
