"""AllReduce between the devices of this host: bandwidth, latency, and overlap with computation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from utils.distributed.cost_model import GIGA, MICRO
from utils.verify.machine import Plan
from utils.verify.processes import Ended
from utils.verify.report import FAILED, OK, SKIPPED, SLOW, Finding
from utils.verify.speed import choose_recipe, simulate_step

ELEMENTS = [2**k for k in (10, 14, 18, 20, 22, 24)]  # float32, up to 64 MB
TOY_ELEMENTS = [2**k for k in (10, 16, 18, 20)]
REPEATS, TOY_REPEATS = 30, 5
LEAST_BANDWIDTH = 5.0  # GB/s of a device to the next one; less is SLOW
MOST_LATENCY = 200.0  # microseconds of a message; more is SLOW
SEGMENTS = 4
LITTLE = 0.05  # of a step: AllReduces that take less need no overlap
HIDDEN = 0.5  # of the AllReduces' time; less is no overlap
HALF = 0.5  # of the backward pass must come after the first AllReduce of a dry run
DRY_RANKS = 8
ONE = "needs two devices or more: --devices 2"
LOG = "the log is logs/{}.log; see also those in out/logs"


def verify_communication(plan: Plan) -> tuple[list[Finding], dict]:
    if plan.devices < 2:
        return [Finding(SKIPPED, ONE)], {}
    request = {
        "device": plan.device,
        "elements": TOY_ELEMENTS if plan.is_toy else ELEMENTS,
        "repeats": TOY_REPEATS if plan.is_toy else REPEATS,
    }
    ended = plan.runner.run_worker("communication", "all_reduce", request, plan.devices)
    result = dict(ended.last)
    if "probes" in result:
        result["cluster"] = format_cluster(result, plan.device)
    return [assess_communication(plan.device, ended)], result


def fit_ring(probes: Sequence, ranks: int) -> tuple[float, float]:
    """(microseconds a message, GB/s) of the ring that fits the probes, pairs of bytes and seconds.

    By least squares of the relative errors, as the model of `utils.distributed.cost_model`: 2 (P -
    1) messages of n / P bytes. Infinite bandwidth if the times do not grow with the size.
    """
    sizes, times = (np.array(column, float) for column in zip(*probes))
    messages = 2 * (ranks - 1)
    terms = np.stack([np.full(len(sizes), messages), messages * sizes / ranks], 1)
    (latency, slowness), _ = nnls(terms / times[:, None], np.ones(len(sizes)))
    return latency / MICRO, 1 / slowness / GIGA if slowness else math.inf


def format_cluster(result: dict[str, Any], device: str) -> str:
    """The line for the section `run` of a yaml: of one host, the network is not measured."""
    latency, bandwidth = fit_ring(result["probes"], result["ranks"])
    overlap = ", overlap: false" if device == "CPU" else ""
    return (
        f"cluster: {{devices_per_node: {result['ranks']}, local_latency: {latency:.1f}, "
        f"local_bandwidth: {min(bandwidth, 1e4):.4g}{overlap}}}"
    )


def assess_communication(device: str, ended: Ended) -> Finding:
    """FAILED for wrong sums or none; SLOW, on a device, below the limits."""
    result, log = ended.last, LOG.format("communication")
    if ended.status or "probes" not in result:
        return Finding(FAILED, f"AllReduce: {ended.reason or 'no result'}", log)
    if not result["correct"]:
        return Finding(FAILED, "AllReduce returns wrong sums", "check the collective library")
    latency, bandwidth = fit_ring(result["probes"], result["ranks"])
    text = (
        f"{result['ranks']} devices: {latency:.0f} us a message, {bandwidth:.3g} GB/s; for section "
        f"run of a yaml: `{format_cluster(result, device)}`"
    )
    if device != "CPU" and (bandwidth < LEAST_BANDWIDTH or latency > MOST_LATENCY):
        tool = "npu-smi info -t topo" if device == "Ascend" else "nvidia-smi topo -m"
        return Finding(SLOW, text, f"look at the links between the devices: {tool}")
    return Finding(OK, text)


def verify_overlap(plan: Plan) -> tuple[list[Finding], dict]:
    """TSM's recipe; in a dry run its order of kernels on rank 0 of 8."""
    if plan.is_dry:
        ranks = ["--ranks", str(DRY_RANKS), "--run.all_reduce=[layer2, layer3]"]
        ended = simulate_step(plan, "tsm", *ranks)
        return [assess_order(ended)], ended.last
    if plan.devices < 2:
        return [Finding(SKIPPED, ONE)], {}
    request = {"network": "tsm", "segments": SEGMENTS, **choose_recipe(plan, "tsm")}
    request["repeats"] = TOY_REPEATS if plan.is_toy else REPEATS
    ended = plan.runner.run_worker("overlap", "overlap", request, plan.devices)
    return [assess_overlap(plan.device, ended)], ended.last


def assess_overlap(device: str, ended: Ended) -> Finding:
    """SLOW if most of the AllReduces' time adds to the step; a CPU cannot overlap."""
    result = ended.last
    if ended.status or "several" not in result:
        return Finding(FAILED, ended.reason or "no result", LOG.format("overlap"))
    names = ("alone", "one", "several", "exchange")
    alone, one, several, exchange = (1e3 * result[name] for name in names)
    text = (
        f"a step: {alone:.1f} ms without AllReduce, {one:.1f} with one segment, {several:.1f} with "
        f"{result['segments']}; one AllReduce of all {result['bytes'] / 1e6:.1f} MB: {exchange:.1f}"
    )
    hidden = 1 - (min(several, one) - alone) / exchange
    if exchange < LITTLE * alone:
        return Finding(OK, f"{text}: too little to matter")
    if hidden >= HIDDEN:
        return Finding(OK, f"{text}: AllReduce overlaps the backward pass")
    text += ": AllReduce does not overlap the backward pass"
    if device == "CPU":
        return Finding(OK, f"{text}, as expected on a CPU")
    return Finding(SLOW, text, "attach a trace: train with --run.profile=out/trace")


def assess_order(ended: Ended) -> Finding:
    """SLOW unless half of the backward pass comes after the first AllReduce."""
    result = ended.last
    if not result.get("finished"):
        reason = result.get("reason") or ended.reason
        return Finding(FAILED, reason, LOG.format("dry_run_tsm_ranks"))
    after = [each["backward_after"] for each in result["all_reduces"]]
    text = (
        f"tsm, rank 0 of {DRY_RANKS}: {len(after)} AllReduces; after each, of the backward pass: "
        + ", ".join(f"{part:.0%}" for part in after)
    )
    if not after or after[0] < HALF:
        return Finding(SLOW, text, "the AllReduces come too late: report this as an issue")
    return Finding(OK, text)
