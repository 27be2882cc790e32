"""The cost model of AllReduce on a cluster, and of waiting for the slowest device.

The latency-bandwidth model: a message of n bytes takes latency + n / bandwidth. A ring of P devices
sends 2 (P - 1) messages of n / P bytes, one after the other (Patarasuk and Yuan, 2009). In a
hierarchical ring every node first adds up among its own devices, so that only one ring of nodes
crosses the network.
"""

import math
from dataclasses import dataclass
from typing import Literal, Union

import numpy as np
from scipy.special import ndtr

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
