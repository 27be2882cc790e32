"""The planner: exact against brute force; the cost model against values computed by hand."""

from itertools import combinations

import numpy as np
import pytest

from scripts.analysis.plan_allreduce import (
    Backward,
    Cluster,
    count_backward,
    layer_ends,
    plan,
    predict,
)
from utils.complexity import LayerCost


def make_random_backward(seed: int, layers: int = 8) -> Backward:
    """Layers of one or two tensors; gradients complete mostly, not always, from last to first."""
    rng = np.random.RandomState(seed)
    names = []
    for i in range(layers):
        names += [f"layer{i}.weight"] + [f"layer{i}.bias"] * rng.randint(2)
    sizes = rng.randint(1, 10**7, len(names))
    ready = 0.05 + 0.1 * np.sort(rng.rand(len(names)))[::-1]
    rng.shuffle(ready[: rng.randint(1, len(ready))])
    return Backward(tuple(names), sizes=sizes, ready=ready, step=0.16)


CLUSTERS = [
    Cluster(),
    Cluster(latency=200, bandwidth=0.5),
    Cluster(latency=20000, bandwidth=0.1),
    Cluster(overlap=False, latency=100, bandwidth=1),
    Cluster(devices_per_node=64, local_bandwidth=1, local_latency=300),
]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_plan_is_the_fastest_of_all_splits(cluster):
    for seed in range(12):
        backward = make_random_backward(seed)
        *inner, final = layer_ends(backward.names)
        result = plan(backward, cluster=cluster, devices=64, most=5)
        splits = [[*chosen, final] for count in range(5) for chosen in combinations(inner, count)]
        steps = [predict(backward, cluster=cluster, devices=64, ends=ends) for ends in splits]
        best = min(step.exposed for step in steps)
        assert result.exposed == pytest.approx(best, rel=1e-9, abs=1e-12), seed
        assert len(result.segments) <= 5


ONE_NODE = {"devices_per_node": 4, "local_bandwidth": 1, "local_latency": 100}
TWO_NODES = {"devices_per_node": 2, "bandwidth": 1, "latency": 100}
TWO_NODES |= {"local_bandwidth": 10, "local_latency": 10}


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        # 6 messages of 2 MB over 1 GB/s and 100 microseconds each.
        (ONE_NODE, 6 * (100e-6 + 2e6 / 1e9)),
        # 2 messages of 4 MB inside a node, 2 of 4 MB between nodes.
        (TWO_NODES, 2 * (10e-6 + 4e6 / 10e9) + 2 * (100e-6 + 4e6 / 1e9)),
    ],
)
def test_the_cost_of_a_ring_is_that_of_its_messages(settings, seconds):
    """4 devices, 8 MB."""
    assert Cluster(**settings).all_reduce_seconds(8e6, 4) == pytest.approx(seconds)


def make_layer(name: str, macs: int) -> LayerCost:
    return LayerCost(name, kind="dense", macs=macs, inputs=1, outputs=1, parameters=1)


# A step of 1.2 s is 0.4 forward, 0.8 back; one of 3 s is 1 forward, 2 back.
@pytest.mark.parametrize(
    ("macs", "names", "cluster", "ready"),
    [
        (
            [("a", 100), ("b.c", 200), ("d", 100)],
            ["a.weight", "b.c.weight", "b.c.norm.gamma", "d.weight", "d.bias"],
            Cluster(step_seconds=1.2),
            [1.2, 1.0, 1.0, 0.6, 0.6],
        ),
        ([("a", 10**9)], ["a.weight"], Cluster(tflops=6), [3 * 2 * 1e9 * 10 / 6e12]),
    ],
)
def test_gradients_are_complete_from_the_last_layer_to_the_first(macs, names, cluster, ready):
    layers = [make_layer(*layer) for layer in macs]
    sizes = [4] * len(names)
    result = count_backward(names, sizes=sizes, layers=layers, batch=10, cluster=cluster)
    np.testing.assert_allclose(result.ready, ready)
    assert result.step == pytest.approx(ready[0])
