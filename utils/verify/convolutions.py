"""Which form of a depthwise convolution is the fastest on this device (`utils.nn.conv3d.FORMS`).

Forward and backward are timed at the shapes of X3D-S (clips of 13 x 160 x 160) and of the pooling
in plain MViTv2-S (16 x 224 x 224). A network's total counts each shape as often as it has layers.
"""

from collections.abc import Mapping
from typing import Optional

from utils.verify.machine import Plan
from utils.verify.processes import Ended
from utils.verify.report import FAILED, OK, SLOW, Finding

FORMS = ("taps", "grouped", "frames")
DEFAULTS = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}
SETTINGS = {"x3d": "model.depthwise_impl", "mvit_multi": "model.depthwise_impl"}
MUCH_SLOWER = 1.2  # than the best impl
REPEATS, TOY_REPEATS = 20, 3
# Name, (N, C, T, H, W), kernel, stride of height and width, layers of a network.
SHAPES = [
    ["x3d stem", (8, 24, 13, 80, 80), (5, 1, 1), 1, 1],
    ["x3d s2", (8, 54, 13, 40, 40), (3, 3, 3), 1, 3],
    ["x3d s3", (8, 108, 13, 20, 20), (3, 3, 3), 1, 5],
    ["x3d s4", (8, 216, 13, 10, 10), (3, 3, 3), 1, 11],
    ["x3d s5", (8, 432, 13, 5, 5), (3, 3, 3), 1, 7],
    ["mvit_multi q 56", (2, 96, 8, 56, 56), (3, 3, 3), 1, 1],
    ["mvit_multi kv 56", (2, 96, 8, 56, 56), (3, 3, 3), 8, 2],
    ["mvit_multi q 28", (4, 96, 8, 28, 28), (3, 3, 3), 1, 2],
    ["mvit_multi kv 28", (4, 96, 8, 28, 28), (3, 3, 3), 4, 4],
    ["mvit_multi q 14", (8, 96, 8, 14, 14), (3, 3, 3), 1, 11],
    ["mvit_multi kv 14", (8, 96, 8, 14, 14), (3, 3, 3), 2, 22],
]
TOY_SHAPES = [
    ["x3d s3", (1, 27, 13, 20, 20), (3, 3, 3), 1, 5],
    ["mvit_multi kv 14", (1, 24, 8, 14, 14), (3, 3, 3), 2, 22],
]


def verify_convolutions(plan: Plan) -> tuple[list[Finding], dict]:
    """One process for each impl: a device that lacks one may end it."""
    shapes = TOY_SHAPES if plan.is_toy else SHAPES
    repeats = TOY_REPEATS if plan.is_toy else REPEATS
    request = {"device": plan.device, "shapes": shapes, "repeats": repeats}
    ended = {
        impl: plan.runner.run_worker(f"convolutions_{impl}", "impl", {**request, "impl": impl})
        for impl in FORMS
    }
    values = {
        impl: {line["shape"]: line["seconds"] for line in e.lines} for impl, e in ended.items()
    }
    return assess_convolutions(plan.device, shapes, ended), values


def assess_convolutions(device: str, shapes: list, ended: Mapping[str, Ended]) -> list[Finding]:
    """A finding for each network, and one for each impl that this device cannot compute.

    FAILED if the impl that the networks take on this device fails, SLOW if another is much faster.
    """
    findings, default = [], DEFAULTS[device]
    for impl, each in ended.items():
        if each.status:
            verdict = FAILED if impl == default else OK  # Ascend has no grouped one
            advice = f"the log is logs/convolutions_{impl}.log" if verdict == FAILED else ""
            findings.append(Finding(verdict, f"{impl}: not available: {each.reason}", advice))
    for network, setting in SETTINGS.items():
        own = [row for row in shapes if row[0].startswith(network)]
        totals = {impl: total_seconds(own, each) for impl, each in ended.items()}
        totals = {impl: total for impl, total in totals.items() if total is not None}
        if totals:
            findings.append(compare_forms(network, setting, default, totals))
    return findings


def total_seconds(shapes: list, ended: Ended) -> Optional[float]:
    """Of all layers of a network; None unless every shape was measured."""
    measured = {line["shape"]: line["seconds"] for line in ended.lines}
    if not all(row[0] in measured for row in shapes):
        return None
    return sum(row[4] * measured[row[0]] for row in shapes)


def compare_forms(network: str, setting: str, default: str, totals: dict[str, float]) -> Finding:
    best = min(totals, key=totals.get)
    shown = ", ".join(f"{impl} {1e3 * total:.1f} ms" for impl, total in totals.items())
    text = f"{network}: {shown}; best: {best}"
    if default in totals and totals[default] > MUCH_SLOWER * totals[best]:
        return Finding(SLOW, text, f"train {network} with --{setting}={best}, not {default}")
    return Finding(OK, text)
