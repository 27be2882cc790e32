"""AllReduce between the devices of this host: right sums, bandwidth and latency."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from scripts.analysis.allreduce.cost_model import GIGA, MICRO
from scripts.verify_device.machine import Plan
from scripts.verify_device.processes import ProcessResult
from scripts.verify_device.report import FAILED, OK, SKIPPED, SLOW, Finding

ELEMENTS = [2**k for k in (10, 14, 18, 20, 22, 24)]  # float32, up to 64 MB
TOY_ELEMENTS = [2**k for k in (10, 16, 18, 20)]
MIN_BANDWIDTH = 5.0  # GB/s between neighbouring devices; less is SLOW
MAX_LATENCY = 200.0  # microseconds of a message; more is SLOW
NEEDS_DEVICES = Finding(SKIPPED, "needs two devices or more: --devices 2")


def verify_communication(plan: Plan) -> tuple[list[Finding], dict]:
    if plan.devices < 2:
        return [NEEDS_DEVICES], {}
    elements = TOY_ELEMENTS if plan.is_toy else ELEMENTS
    result = plan.measure("communication", "all_reduce", plan.devices, elements=elements)
    values = dict(result.last)
    if "probes" in values:
        values["cluster"] = format_cluster(values, plan.device)
    return [assess_communication(plan.device, result)], values


def fit_ring(probes: Sequence, ranks: int) -> tuple[float, float]:
    """(microseconds a message, GB/s) of a ring, fitted to probes: pairs of bytes and seconds.

    Minimizes the squares of the relative errors. A ring of P ranks sends 2 (P - 1) messages of
    n / P bytes, as in `scripts.analysis.allreduce.cost_model`. The bandwidth is infinite if the
    times do not grow with the size.
    """
    sizes, times = (np.array(column, float) for column in zip(*probes))
    messages = 2 * (ranks - 1)
    terms = np.stack([np.full(len(sizes), messages), messages * sizes / ranks], 1)
    (latency, slowness), _ = nnls(terms / times[:, None], np.ones(len(sizes)))
    return latency / MICRO, 1 / slowness / GIGA if slowness else math.inf


def format_cluster(result: dict[str, Any], device: str) -> str:
    """The option of scripts/analysis/plan_allreduce.py for this host, without the network."""
    latency, bandwidth = fit_ring(result["probes"], result["ranks"])
    overlap = ", overlap: false" if device == "CPU" else ""
    return (
        f"--cluster='{{devices_per_node: {result['ranks']}, local_latency: {latency:.1f}, "
        f"local_bandwidth: {min(bandwidth, 1e4):.4g}{overlap}}}'"
    )


def assess_communication(device: str, result: ProcessResult) -> Finding:
    """FAILED for wrong sums or none; SLOW, on a device, beyond the limits."""
    values = result.last
    if result.status or "probes" not in values:
        return result.build_failure("AllReduce")
    if not values["correct"]:
        return Finding(FAILED, "AllReduce returns wrong sums", "check the collective library")
    latency, bandwidth = fit_ring(values["probes"], values["ranks"])
    text = (
        f"{values['ranks']} devices: {latency:.0f} us a message, {bandwidth:.3g} GB/s; for "
        f"scripts/analysis/plan_allreduce.py: `{format_cluster(values, device)}`"
    )
    if device != "CPU" and (bandwidth < MIN_BANDWIDTH or latency > MAX_LATENCY):
        tool = "npu-smi info -t topo" if device == "Ascend" else "nvidia-smi topo -m"
        return Finding(SLOW, text, f"look at the links between the devices: {tool}")
    return Finding(OK, text)
