"""Times the implementations of a depthwise convolution on this device (`utils.nn.conv3d`).

Forward and backward are timed at the shapes of X3D-S (clips of 13 x 160 x 160) and of the pooling
in plain MViTv2-S (16 x 224 x 224). A network's total counts each shape as often as it has layers.
"""

from collections.abc import Mapping

from utils.verify.machine import Plan
from utils.verify.processes import ProcessResult
from utils.verify.report import OK, SLOW, Finding

# Device -> implementation that the networks use by default. All are exact.
DEFAULT_IMPLS = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}
NETWORKS = ("x3d", "mvit_multi")
MUCH_SLOWER = 1.2  # times the seconds of the fastest one
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
    """Measures each implementation in a separate process: a missing kernel may end the process."""
    shapes = TOY_SHAPES if plan.is_toy else SHAPES
    results, values = {}, {}
    for impl in DEFAULT_IMPLS.values():
        results[impl] = plan.measure(f"convolutions_{impl}", "depthwise", impl=impl, shapes=shapes)
        values[impl] = {line["shape"]: line["seconds"] for line in results[impl].lines}
    return assess_convolutions(plan.device, shapes, results), values


def assess_convolutions(
    device: str, shapes: list, results: Mapping[str, ProcessResult]
) -> list[Finding]:
    """A finding for each network, and one for each implementation that this device lacks.

    FAILED if the default implementation fails, SLOW if another is much faster.
    """
    findings, default = [], DEFAULT_IMPLS[device]
    for impl, result in results.items():
        if result.status:
            failure = result.build_failure(f"{impl}: not available")
            # Ascend has no grouped 3-D convolution.
            findings.append(failure if impl == default else Finding(OK, failure.text))
    for network in NETWORKS:
        layers = {row[0]: row[4] for row in shapes if row[0].startswith(network)}
        totals = {}
        for impl, result in results.items():
            seconds = {line["shape"]: line["seconds"] for line in result.lines}
            if layers.keys() <= seconds.keys():
                totals[impl] = sum(count * seconds[name] for name, count in layers.items())
        if totals:
            findings.append(compare_impls(network, default, totals))
    return findings


def compare_impls(network: str, default: str, totals: dict[str, float]) -> Finding:
    best = min(totals, key=totals.get)
    times = ", ".join(f"{impl} {1e3 * total:.1f} ms" for impl, total in totals.items())
    text = f"{network}: {times}; best: {best}"
    if default in totals and totals[default] > MUCH_SLOWER * totals[best]:
        advice = f"train {network} with --model.depthwise_impl={best}, not {default}"
        return Finding(SLOW, text, advice)
    return Finding(OK, text)
