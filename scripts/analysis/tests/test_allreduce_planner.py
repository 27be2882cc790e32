"""The planner: exact against brute force; the cost model against values computed by hand."""

import itertools

import numpy as np
import pytest

from scripts.analysis.allreduce.cost_model import Cluster, expected_maximum
from scripts.analysis.allreduce.planner import (
    Backward,
    count_backward,
    layer_ends,
    layer_names,
    plan,
    predict,
)
from utils.complexity import LayerCost
from utils.distributed.segments import MOST_SEGMENTS, segment_ends


def make_random_backward(seed: int, layers: int = 8) -> Backward:
    """Layers of one or two tensors; gradients complete mostly, not always, from last to first."""
    rng = np.random.RandomState(seed)
    names = []
    for i in range(layers):
        names += [f"layer{i}.weight"] + [f"layer{i}.bias"] * rng.randint(2)
    sizes = rng.randint(1, 10**7, len(names))
    ready = 0.05 + 0.1 * np.sort(rng.rand(len(names)))[::-1]
    rng.shuffle(ready[: rng.randint(1, len(ready))])
    return Backward(
        tuple(names), sizes=sizes, ready=ready, forward=0.05, step=0.16, source="synthetic"
    )


CLUSTERS = [
    Cluster(),
    Cluster(latency=200, bandwidth=0.5),
    Cluster(latency=20000, bandwidth=0.1, algorithm="ring"),
    Cluster(overlap=False, latency=100, bandwidth=1),
    Cluster(devices_per_node=64, local_bandwidth=1, local_latency=300),
]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("seed", range(12))
def test_the_plan_is_the_fastest_of_all_splits(seed, cluster):
    backward = make_random_backward(seed)
    *inner, final = layer_ends(backward.names)
    result = plan(backward, cluster=cluster, devices=64, most=5)
    best = min(
        (
            predict(backward, cluster=cluster, devices=64, ends=[*chosen, final])
            for chosen in list_splits(inner, 4)
        ),
        key=lambda p: p.exposed,
    )
    assert result.exposed == pytest.approx(best.exposed, rel=1e-9, abs=1e-12)
    assert len(result.segments) <= 5


def list_splits(ends, most):
    for count in range(most + 1):
        yield from itertools.combinations(ends, count)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(latency=0, local_latency=0, bandwidth=1e15, local_bandwidth=1e15),
        Cluster(overlap=False),
    ],
    ids=["all splits are equally fast", "no overlap"],
)
def test_a_plan_has_one_segment_if_more_are_not_faster(cluster):
    assert len(plan(make_random_backward(0), cluster, 64).segments) == 1


def test_a_plan_ends_with_the_last_parameter_and_cuts_between_layers():
    for seed in range(20):
        backward = make_random_backward(seed, layers=30)
        ends = plan(backward, Cluster(bandwidth=0.3, latency=1), 16).ends
        assert ends[-1] == len(backward.names) - 1
        assert set(ends) <= set(layer_ends(backward.names))
        assert len(ends) <= MOST_SEGMENTS


def test_the_cost_of_a_ring_is_that_of_its_messages():
    """4 devices, 8 MB: 6 messages of 2 MB over 1 GB/s and 100 microseconds each."""
    cluster = Cluster(devices_per_node=4, local_bandwidth=1, local_latency=100)
    assert cluster.all_reduce_seconds(8e6, 4) == pytest.approx(6 * (100e-6 + 2e6 / 1e9))
    flat = Cluster(devices_per_node=2, bandwidth=1, latency=100, algorithm="ring")
    assert flat.all_reduce_seconds(8e6, 4) == pytest.approx(6 * (100e-6 + 2e6 / 1e9))


def test_a_hierarchical_ring_crosses_the_network_once():
    """2 nodes of 2: 2 messages of 4 MB inside, 2 of 4 MB between."""
    cluster = Cluster(
        devices_per_node=2, bandwidth=1, latency=100, local_bandwidth=10, local_latency=10
    )
    inside = 2 * (10e-6 + 4e6 / 10e9)
    between = 2 * (100e-6 + 4e6 / 1e9)
    assert cluster.all_reduce_seconds(8e6, 4) == pytest.approx(inside + between)


def test_one_device_has_no_communication_cost():
    result = predict(make_random_backward(2), cluster=Cluster(jitter=0.1), devices=1, ends=[0, 3])
    assert result.exposed == result.waiting == 0
    assert result.efficiency == 1


@pytest.mark.parametrize(("count", "mean"), [(1, 0), (2, 0.5642), (8, 1.4236), (1000, 3.2414)])
def test_the_slowest_device_has_the_expected_delay(count, mean):
    """Known values of the mean of the largest of n standard normal numbers."""
    assert expected_maximum(count) == pytest.approx(mean, abs=2e-4)


def test_devices_must_fill_whole_nodes():
    with pytest.raises(ValueError, match="12 devices are not whole nodes of 8"):
        Cluster().nodes(12)


def make_layer(name: str, macs: int) -> LayerCost:
    return LayerCost(name, kind="dense", macs=macs, inputs=1, outputs=1, parameters=1)


def test_gradients_are_complete_from_the_last_layer_to_the_first():
    """Three layers of 1, 2 and 1 parts of the work; a step of 1.2 s is 0.4 forward, 0.8 back."""
    layers = [make_layer("a", 100), make_layer("b.c", 200), make_layer("d", 100)]
    names = ["a.weight", "b.c.weight", "b.c.norm.gamma", "d.weight", "d.bias"]
    cluster = Cluster(step_seconds=1.2)
    result = count_backward(names, sizes=[4] * 5, layers=layers, batch=8, cluster=cluster)
    assert result.forward == pytest.approx(0.4)
    np.testing.assert_allclose(result.ready, [1.2, 1.0, 1.0, 0.6, 0.6])


def test_the_tflops_give_the_time_of_a_step():
    result = count_backward(
        ["a.weight"],
        sizes=[4],
        layers=[make_layer("a", 10**9)],
        batch=10,
        cluster=Cluster(tflops=6),
    )
    assert result.step == pytest.approx(3 * 2 * 1e9 * 10 / 6e12)


def test_the_gradient_of_a_layer_called_twice_is_complete_at_its_first_call():
    layers = [make_layer("a", 100), make_layer("b", 100), make_layer("a", 100)]
    result = count_backward(
        ["a.weight", "b.weight"],
        sizes=[4, 4],
        layers=layers,
        batch=1,
        cluster=Cluster(step_seconds=3),
    )
    np.testing.assert_allclose(result.ready, [3, 1 + 2 * 2 / 3])


@pytest.mark.parametrize("name", ["bandwidth", "latency", "jitter"])
def test_a_cluster_setting_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must"):
        Cluster(**{name: float("nan")})


def test_the_shortest_names_give_the_same_ends():
    names = [f"base.layer{k}.{i}.{leaf}" for k in (1, 2) for i in (0, 1) for leaf in ("w", "b")]
    names = ["table", "conv1.weight", *names, "fc.weight", "fc.bias"]
    for ends in ([0, 11], [1, 3, 5, 9, 11], [1, 7, 11], [11]):
        assert segment_ends(names, layer_names(names, ends)) == ends
    assert layer_names(names, [0, 5, 7, 11]) == ["table", "layer1", "layer2.0"]
