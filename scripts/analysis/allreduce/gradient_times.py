"""The times at which gradients are complete, in seconds from the start of the step.

They are counted: a layer's backward pass is taken as twice the work of its forward pass, in the
reverse order, with the same time for each multiply-add. A dry run can give another order.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from scripts.analysis.allreduce.cost_model import TERA, Cluster
from utils.complexity import LayerCost


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
    elapsed_fractions = macs[::-1].cumsum()[::-1] / total
    fractions = {layer.name: part for layer, part in zip(reversed(layers), elapsed_fractions[::-1])}
    ready = [step / 3 + 2 * step / 3 * fractions[find_layer(name, fractions)] for name in names]
    return Backward(
        tuple(names),
        sizes=np.array(sizes),
        ready=np.array(ready),
        forward=step / 3,
        step=step,
        source="counted operations",
    )


def find_layer(name: str, layers: Container[str]) -> str:
    """The counted layer of a parameter: the longest one that the parameter's name begins with."""
    layer = name
    while layer not in layers:
        assert layer, f"{name} belongs to no counted layer"
        layer = layer.rpartition(".")[0]
    return layer
