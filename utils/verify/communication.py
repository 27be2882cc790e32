"""AllReduce between the devices of this host: bandwidth, latency, and overlap with computation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from utils.distributed.cost_model import GIGA, MICRO
from utils.verify.machine import Plan
from utils.verify.processes import ProcessResult
from utils.verify.report import FAILED, OK, SKIPPED, SLOW, Finding
from utils.verify.speed import choose_recipe, simulate_step

ELEMENTS = [2**k for k in (10, 14, 18, 20, 22, 24)]  # float32, up to 64 MB
TOY_ELEMENTS = [2**k for k in (10, 16, 18, 20)]
MIN_BANDWIDTH = 5.0  # GB/s between neighbouring devices; less is SLOW
MAX_LATENCY = 200.0  # microseconds of a message; more is SLOW
SEGMENTS = 4
MIN_EXCHANGE = 0.05  # of a step: AllReduces that take less need no overlap
MIN_HIDDEN = 0.5  # of the AllReduces' time; less is no overlap
MIN_BACKWARD_AFTER = 0.5  # of the backward pass must come after the first AllReduce of a dry run
DRY_RANKS = 8
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
    n / P bytes, as in `utils.distributed.cost_model`. The bandwidth is infinite if the times do not
    grow with the size.
    """
    sizes, times = (np.array(column, float) for column in zip(*probes))
    messages = 2 * (ranks - 1)
    terms = np.stack([np.full(len(sizes), messages), messages * sizes / ranks], 1)
    (latency, slowness), _ = nnls(terms / times[:, None], np.ones(len(sizes)))
    return latency / MICRO, 1 / slowness / GIGA if slowness else math.inf


def format_cluster(result: dict[str, Any], device: str) -> str:
    """The line for section `run` of a yaml; it describes one host, without the network."""
    latency, bandwidth = fit_ring(result["probes"], result["ranks"])
    overlap = ", overlap: false" if device == "CPU" else ""
    return (
        f"cluster: {{devices_per_node: {result['ranks']}, local_latency: {latency:.1f}, "
        f"local_bandwidth: {min(bandwidth, 1e4):.4g}{overlap}}}"
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
        f"{values['ranks']} devices: {latency:.0f} us a message, {bandwidth:.3g} GB/s; for section "
        f"run of a yaml: `{format_cluster(values, device)}`"
    )
    if device != "CPU" and (bandwidth < MIN_BANDWIDTH or latency > MAX_LATENCY):
        tool = "npu-smi info -t topo" if device == "Ascend" else "nvidia-smi topo -m"
        return Finding(SLOW, text, f"look at the links between the devices: {tool}")
    return Finding(OK, text)


def verify_overlap(plan: Plan) -> tuple[list[Finding], dict]:
    """Measures TSM's recipe; a dry run shows the order of its kernels on rank 0 of 8."""
    if plan.is_dry:
        ranks = ["--ranks", str(DRY_RANKS), "--run.all_reduce=[layer2, layer3]"]
        result = simulate_step(plan, "tsm", *ranks)
        return [assess_order(result)], result.last
    if plan.devices < 2:
        return [NEEDS_DEVICES], {}
    recipe = choose_recipe(plan, "tsm")
    result = plan.measure("overlap", "overlap", plan.devices, segments=SEGMENTS, **recipe)
    return [assess_overlap(plan.device, result)], result.last


def assess_overlap(device: str, result: ProcessResult) -> Finding:
    """SLOW if most of the AllReduces' time adds to the step; a CPU cannot overlap."""
    values = result.last
    if result.status or "several" not in values:
        return result.build_failure()
    names = ("alone", "one", "several", "exchange")
    alone, one, several, exchange = (1e3 * values[name] for name in names)
    text = (
        f"a step: {alone:.1f} ms without AllReduce, {one:.1f} with one segment, {several:.1f} with "
        f"{values['segments']}; one AllReduce of all {values['bytes'] / 1e6:.1f} MB: {exchange:.1f}"
    )
    if exchange < MIN_EXCHANGE * alone:
        return Finding(OK, f"{text}: too little to matter")
    if 1 - (min(several, one) - alone) / exchange >= MIN_HIDDEN:
        return Finding(OK, f"{text}: AllReduce overlaps the backward pass")
    text += ": AllReduce does not overlap the backward pass"
    if device == "CPU":
        return Finding(OK, f"{text}, as expected on a CPU")
    return Finding(SLOW, text, "attach a trace: train with --run.profile=out/trace")


def assess_order(result: ProcessResult) -> Finding:
    """SLOW unless half of the backward pass comes after the first AllReduce."""
    values = result.last
    if not values.get("finished"):
        return result.build_failure(reason=values.get("reason"))
    after = [row["backward_after"] for row in values["all_reduces"]]
    text = (
        f"tsm, rank 0 of {DRY_RANKS}: {len(after)} AllReduces; after each, of the backward pass: "
        + ", ".join(f"{part:.0%}" for part in after)
    )
    if not after or after[0] < MIN_BACKWARD_AFTER:
        return Finding(SLOW, text, "the AllReduces come too late: report this as an issue")
    return Finding(OK, text)
