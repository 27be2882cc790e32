"""Plans the split of gradients into AllReduce segments that ends the step soonest.

Segments are runs of neighbouring layers in the network's order. The backward pass completes them
from the last to the first. One channel sends one segment at a time, in that order. A segment starts
when all its gradients are complete and the channel is free. To send the later segments sooner never
delays the earlier ones. So the best split of a network contains the best splits of its last layers,
and dynamic programming finds it exactly.

The times at which gradients are complete are counted: a layer's backward pass is taken as twice the
work of its forward pass, in the reverse order, with the same time for each multiply-add. A dry run
can give another order.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from scripts.analysis.allreduce.cost_model import TERA, Cluster, expected_maximum
from utils.complexity import LayerCost
from utils.train.gradients import MOST_SEGMENTS, segments_of


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


@dataclass(frozen=True)
class Segment:
    """Gradients `first_gradient` to `last`; times in seconds from the start of the step."""

    first_gradient: int
    last: int
    size: int  # bytes
    ready: float
    begin: float
    end: float


@dataclass(frozen=True)
class Prediction:
    """One step on several devices, segments in the order in which they are sent."""

    segments: tuple[Segment, ...]
    compute: float  # seconds of one device alone
    waiting: float  # for the slowest device
    exposed: float  # communication that no computation hides

    @property
    def step(self) -> float:
        return self.compute + self.waiting + self.exposed

    @property
    def efficiency(self) -> float:
        """Throughput, relative to that of the same number of devices without communication."""
        return self.compute / self.step

    @property
    def ends(self) -> list[int]:
        """Last index of every segment, ascending."""
        return sorted(segment.last for segment in self.segments)


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


def predict(backward: Backward, cluster: Cluster, devices: int, ends: Sequence[int]) -> Prediction:
    """The step with segments that end at the indices `ends`, ascending, the last one n - 1."""
    free = 0.0
    segments = []
    complete = list_ready_seconds(backward, cluster)
    for first, last in reversed(segments_of(ends)):
        part = slice(first, last + 1)
        size = int(backward.sizes[part].sum())
        ready = float(complete[part].max())
        begin = max(free, ready)
        free = begin + float(cluster.all_reduce_seconds(size, devices))
        segments.append(Segment(first, last=last, size=size, ready=ready, begin=begin, end=free))
    exposed = max(0.0, free - backward.end) if devices > 1 else 0.0
    waiting = backward.step * cluster.jitter * expected_maximum(devices)
    return Prediction(tuple(segments), compute=backward.step, waiting=waiting, exposed=exposed)


def list_ready_seconds(backward: Backward, cluster: Cluster) -> np.ndarray:
    """When each gradient can be sent; without overlap only when the backward pass has ended."""
    return backward.ready if cluster.overlap else np.full_like(backward.ready, backward.end)


def plan(
    backward: Backward, cluster: Cluster, devices: int, most: int = MOST_SEGMENTS
) -> Prediction:
    """The best split into at most `most` segments; of equally good ones, one with the fewest."""
    layers = layer_ends(backward.names)
    firsts = np.array([0] + [end + 1 for end in layers])  # where a segment may begin; then n
    before = np.concatenate([[0], backward.sizes.cumsum()])  # bytes ahead of an index
    count = len(layers)
    complete = list_ready_seconds(backward, cluster)
    # free[k, i]: when the channel has sent layers i.. in k segments; cut[k, i]: where the first of
    # these segments ends.
    free = np.full((most + 1, count + 1), np.inf)
    cut = np.zeros((most + 1, count + 1), int)
    free[0, count] = 0.0
    for i in range(count - 1, -1, -1):
        sizes = before[firsts[i + 1 :]] - before[firsts[i]]
        costs = cluster.all_reduce_seconds(sizes, devices)
        latest = np.maximum.accumulate(complete[firsts[i] :])
        ready = latest[firsts[i + 1 :] - firsts[i] - 1]  # of segments that begin with layer i
        for k in range(1, most + 1):
            ended = np.maximum(free[k - 1, i + 1 :], ready) + costs
            best = int(ended.argmin())
            free[k, i] = ended[best]
            cut[k, i] = i + 1 + best
    # An end counts only if it is later than the end of the backward pass.
    exposed = np.maximum(free[1:, 0], backward.end)
    k = 1 + int((exposed <= exposed.min() * (1 + 1e-9)).argmax())
    ends = []
    i = 0
    while k:
        i = cut[k, i]
        k = k - 1
        ends.append(layers[i - 1])
    return predict(backward, cluster=cluster, devices=devices, ends=ends)


def layer_of(name: str) -> str:
    """The layer of a parameter; a parameter of the network itself is its own layer."""
    return name.rpartition(".")[0] or name


def layer_ends(names: Sequence[str]) -> list[int]:
    """The index of the last parameter of every layer: where its weights and biases end."""
    layers = [layer_of(name) for name in names]
    return [i for i in range(len(names)) if i + 1 == len(names) or layers[i] != layers[i + 1]]
