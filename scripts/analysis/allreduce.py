"""Plans the split of gradients into AllReduce segments that ends the step soonest.

Segments are runs of neighbouring layers in the network's order. The backward pass completes them
from the last to the first. One channel sends one segment at a time, in that order. A segment starts
when all its gradients are complete and the channel is free. To send the later segments sooner never
delays the earlier ones. So the best split of a network contains the best splits of its last layers,
and dynamic programming finds it exactly.

The times at which gradients are complete are counted: a layer's backward pass is taken as twice the
work of its forward pass, in the reverse order, with the same time for each multiply-add. A dry run
can give another order.

The latency-bandwidth model: a message of n bytes takes latency + n / bandwidth. A ring of P devices
sends 2 (P - 1) messages of n / P bytes, one after the other (Patarasuk and Yuan, 2009). In a
hierarchical ring every node first adds up among its own devices, so that only one ring of nodes
crosses the network.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Union

import numpy as np
from scipy.special import ndtr

from utils.complexity import LayerCost
from utils.train.gradients import MOST_SEGMENTS, segments_of

Sizes = Union[float, np.ndarray]  # bytes, or seconds, of one AllReduce or of several

GIGA = 1e9
MICRO = 1e-6
TERA = 1e12


@dataclass(frozen=True)
class Cluster:
    """The machines a run is planned for: the option --cluster."""

    devices_per_node: int = 8
    bandwidth: float = 12.5  # GB/s of a node into the network, each direction
    latency: float = 5.0  # microseconds of a message between nodes
    local_bandwidth: float = 100.0  # GB/s of a device to the next one in its node
    local_latency: float = 3.0  # microseconds
    algorithm: Literal["hierarchical", "ring"] = "hierarchical"
    overlap: bool = True  # whether gradients are sent while others are computed
    tflops: float = 10.0  # of a device in training; a multiply-add counts as two
    step_seconds: float = 0.0  # measured on one device at data.batch; 0: from tflops
    jitter: float = 0.0  # standard deviation of a device's step, as a share of it

    def __post_init__(self):
        for name in ("devices_per_node", "bandwidth", "local_bandwidth", "tflops"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("latency", "local_latency", "step_seconds", "jitter"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative, not {value}")

    def nodes(self, devices: int) -> int:
        """Raises ValueError if the devices are neither whole nodes nor a part of one node."""
        if devices <= self.devices_per_node:
            return 1
        if devices % self.devices_per_node:
            raise ValueError(
                f"{devices} devices are not whole nodes of {self.devices_per_node} "
                "(--topology, or devices_per_node of --cluster)"
            )
        return devices // self.devices_per_node

    def all_reduce_seconds(self, size: Sizes, devices: int) -> Sizes:
        """Seconds that an AllReduce of `size` bytes takes over `devices` devices."""
        nodes = self.nodes(devices)
        inside = self.local_latency * MICRO, self.local_bandwidth * GIGA
        between = self.latency * MICRO, self.bandwidth * GIGA
        if nodes == 1:
            return ring_seconds(size, devices, *inside)
        if self.algorithm == "ring":
            slower = max(inside[0], between[0]), min(inside[1], between[1])
            return ring_seconds(size, devices, *slower)
        # Half a ring inside the nodes gives each device a part of the node's sum. Rings between the
        # nodes, one for each part, divide the network among them. Then the other half of the ring.
        return ring_seconds(size, devices // nodes, *inside) + ring_seconds(size, nodes, *between)


def ring_seconds(size: Sizes, devices: int, latency: float, bandwidth: float) -> Sizes:
    return 2 * (devices - 1) * (latency + size / devices / bandwidth)


def expected_maximum(count: int) -> float:
    """Mean of the largest of `count` standard normal numbers: 0 of 1, 1.42 of 8, 3.36 of 1,536."""
    x = np.linspace(-9, 9, 3601)
    # E[max] = integral of [x > 0] - P(max <= x)
    return float((np.heaviside(x, 0.5) - ndtr(x) ** count).sum() * (x[1] - x[0]))


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
    ready = []
    for name in names:
        layer = name  # the longest counted one that the parameter's name begins with
        while layer not in fractions:
            assert layer, f"{name} belongs to no counted layer"
            layer = layer.rpartition(".")[0]
        ready.append(step / 3 + 2 * step / 3 * fractions[layer])
    return Backward(
        tuple(names),
        sizes=np.array(sizes),
        ready=np.array(ready),
        forward=step / 3,
        step=step,
        source="counted operations",
    )


def predict(backward: Backward, cluster: Cluster, devices: int, ends: Sequence[int]) -> Prediction:
    """The step with segments that end at the indices `ends`, ascending, the last one n - 1."""
    free = 0.0
    segments = []
    # Without overlap every gradient is sent when the backward pass has ended.
    complete = backward.ready if cluster.overlap else np.full_like(backward.ready, backward.end)
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


def plan(
    backward: Backward, cluster: Cluster, devices: int, most: int = MOST_SEGMENTS
) -> Prediction:
    """The best split into at most `most` segments; of equally good ones, one with the fewest."""
    layers = layer_ends(backward.names)
    firsts = np.array([0] + [end + 1 for end in layers])  # where a segment may begin; then n
    before = np.concatenate([[0], backward.sizes.cumsum()])  # bytes ahead of an index
    count = len(layers)
    complete = backward.ready if cluster.overlap else np.full_like(backward.ready, backward.end)
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
