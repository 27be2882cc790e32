"""The split of gradients into AllReduce segments that ends the step soonest.

Segments are runs of neighbouring layers in the network's order. The backward pass completes them
from the last to the first; one channel carries one segment at a time, in that order; a segment
leaves when all its gradients are complete and the channel is free. Sending the later ones sooner
never harms the earlier ones, so the best split of a network is made of best splits of its ends, and
dynamic programming finds it exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.distributed.cost_model import Cluster
from utils.distributed.gradient_timing import Backward

MOST_SEGMENTS = 8  # HCCL's limit


@dataclass(frozen=True)
class Segment:
    """Gradients `first`..`last`, inclusive; times in seconds from the start of the step."""

    first: int
    last: int
    size: int  # bytes
    ready: float
    begin: float
    end: float


@dataclass(frozen=True)
class Prediction:
    """One step on `devices` devices, segments in the order in which they travel."""

    devices: int
    segments: tuple[Segment, ...]
    compute: float  # seconds of one device alone
    waiting: float  # for the slowest device
    exposed: float  # communication that no computation hides

    @property
    def step(self) -> float:
        return self.compute + self.waiting + self.exposed

    @property
    def efficiency(self) -> float:
        """Of the throughput of as many devices alone."""
        return self.compute / self.step

    @property
    def ends(self) -> list[int]:
        """Last index of every segment, ascending."""
        return sorted(segment.last for segment in self.segments)


def predict(backward: Backward, cluster: Cluster, devices: int, ends: Sequence[int]) -> Prediction:
    """The step with segments that end at the indices `ends`, ascending, the last one n - 1."""
    free, segments = 0.0, []
    for first, last in reversed(segments_of(ends)):
        part = slice(first, last + 1)
        size, ready = int(backward.sizes[part].sum()), leaves(backward, cluster, part)
        begin = max(free, ready)
        free = begin + float(cluster.all_reduce_seconds(size, devices))
        segments.append(Segment(first, last, size, ready, begin, free))
    exposed = max(0.0, free - backward.end) if devices > 1 else 0.0
    waiting = backward.step * (cluster.slowdown(devices) - 1)
    return Prediction(devices, tuple(segments), backward.step, waiting, exposed)


def segments_of(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) index of the segments that end at `ends`, ascending."""
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends))


def leaves(backward: Backward, cluster: Cluster, part: slice) -> float:
    """When a segment may leave: complete, and, without overlap, nothing left to compute."""
    return float(backward.ready[part].max()) if cluster.overlap else backward.end


def plan(
    backward: Backward, cluster: Cluster, devices: int, most: int = MOST_SEGMENTS
) -> Prediction:
    """The best split into at most `most` segments; of equally good ones, one with the fewest."""
    layers = layer_ends(backward.names)
    firsts = np.array([0] + [end + 1 for end in layers])  # where a segment may begin; then n
    before = np.concatenate([[0], backward.sizes.cumsum()])  # bytes ahead of an index
    count = len(layers)
    # done[k, i]: when the channel is free of layers i.., sent in k segments; cut[k, i]: where the
    # first of these segments ends.
    done = np.full((most + 1, count + 1), np.inf)
    cut = np.zeros((most + 1, count + 1), int)
    done[0, count] = 0.0
    for i in range(count - 1, -1, -1):
        sizes = before[firsts[i + 1 :]] - before[firsts[i]]
        costs = cluster.all_reduce_seconds(sizes, devices)
        ready = segments_ready(backward, cluster, firsts[i:])
        for k in range(1, most + 1):
            ended = np.maximum(done[k - 1, i + 1 :], ready) + costs
            best = int(ended.argmin())
            done[k, i], cut[k, i] = ended[best], i + 1 + best
    # A later end counts only where it is later than the backward pass itself.
    exposed = np.maximum(done[1:, 0], backward.end)
    k = 1 + int((exposed <= exposed.min() * (1 + 1e-9)).argmax())
    ends, i = [], 0
    while k:
        i, k = cut[k, i], k - 1
        ends.append(layers[i - 1])
    return predict(backward, cluster, devices, ends)


def segments_ready(backward: Backward, cluster: Cluster, firsts: np.ndarray) -> np.ndarray:
    """When the segments that begin at firsts[0] and end before firsts[1], firsts[2], ... leave."""
    if not cluster.overlap:
        return np.full(len(firsts) - 1, backward.end)
    latest = np.maximum.accumulate(backward.ready[firsts[0] :])
    return latest[firsts[1:] - firsts[0] - 1]


def even_ends(names: Sequence[str], sizes: Sequence[int], count: int) -> list[int]:
    """Ends of `count` segments of about as many bytes each, between layers."""
    sums, layers = np.cumsum(sizes), layer_ends(names)
    wanted = [sums[-1] * (i + 1) / count for i in range(count)]
    return sorted({min(layers, key=lambda end: abs(sums[end] - size)) for size in wanted})


def layer_of(name: str) -> str:
    """The layer of a parameter; one that hangs on the network itself is a layer of its own."""
    return name.rpartition(".")[0] or name


def layer_ends(names: Sequence[str]) -> list[int]:
    """The index of the last parameter of every layer: where its weights and biases end."""
    layers = [layer_of(name) for name in names]
    return [i for i in range(len(names)) if i + 1 == len(names) or layers[i] != layers[i + 1]]
