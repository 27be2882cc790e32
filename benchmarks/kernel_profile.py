"""Profiles the kernels of a training step on a CPU, and compares their speed with the machine's.

MindSpore's profiler gives the time of every kernel and the shapes of its inputs. Convolutions and
matrix products are rated in GFLOP/s, the others in GB/s: their inputs and one output of the size of
the largest input, each moved once. Kernels that compute on fewer numbers than they are passed, such
as slices, have a rate above the true one.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from benchmarks import results
from scripts.analysis.build_networks import build_cell, measure_median_seconds
from utils.config import NetworkConfig
from utils.data.loader import count_usable_cores
from utils.networks import Network
from utils.runtime import Runtime
from utils.train.profiler import RECORDED, StepProfiler

SHOWN = 10  # kernels in the table
COPIED = 2**26  # numbers of each core: more than caches hold
INPUT = re.compile(r"input_\d+:\[([\d, ]*)\]")
CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")
PRODUCTS = ("MatMul", "BatchMatMul")
Launch = tuple[str, tuple]  # operator, shapes of the inputs


@dataclass
class Cost:
    """The sum over the kernels of one operator in a step."""

    operator: str
    kernels: int
    milliseconds: float
    flops: float = 0.0
    bytes: float = 0.0


def profile_kernels(
    network: Network, cfg: NetworkConfig, rt: Runtime, matmul_gflops: float
) -> dict:
    """Runs a training step on synthetic clips; prints the table of its costliest operators."""
    if rt.device != "CPU":
        raise ValueError("kernels are profiled on a CPU only: --run.device=CPU")
    step, inputs = build_cell(network.name, cfg=cfg, rt=rt, mode="train")
    step(*inputs).asnumpy()
    with tempfile.TemporaryDirectory() as name:
        profiler = StepProfiler(Path(name), rt)
        profiler.start()
        for _ in range(profiler.steps[1]):
            step(*inputs).asnumpy()
            profiler.step()
        profiler.stop()
        (traces,) = Path(name).glob(f"*_{os.getpid()}_*/FRAMEWORK")
        costs = add_costs(read_times(traces), read_launches(traces))
    copy_rate = measure_copy_gbs()
    total = sum(cost.milliseconds for cost in costs)
    rows = [
        describe_cost(cost, total=total, matmul_gflops=matmul_gflops, copy_rate=copy_rate)
        for cost in costs[:SHOWN]
    ]
    print(*format_costs(rows), sep="\n")
    return {
        "batch": cfg.data.batch,
        "kernels": sum(cost.kernels for cost in costs),
        "kernel_milliseconds": round(total, 1),
        "copy_gb_per_second": round(copy_rate, 1),
        "matmul_gflops": round(matmul_gflops, 1),
        "operators": rows,
    }


def read_times(traces: Path) -> dict[str, Cost]:
    """Kernels and milliseconds of each operator: the sum of the medians over the steps."""
    costs = {}
    for line in (traces / "cpu_op_execute_timestamp_0.txt").read_text().splitlines():
        name, _, runs = line.split(";")
        operator = re.sub(r"-op\d+$", "", name.rpartition("/")[2])
        cost = costs.setdefault(operator, Cost(operator, 0, 0.0))
        cost.kernels += 1
        cost.milliseconds += float(np.median([float(run.split(",")[1]) for run in runs.split()]))
    return costs


def read_launches(traces: Path) -> list[Launch]:
    """Every launch of a kernel in the recorded steps."""
    launches = []
    for line in (traces / "cpu_framework_0.txt").read_text().splitlines():
        operator, _, _, inputs = line.split(";", 3)
        shapes = [tuple(map(int, filter(None, s.split(",")))) for s in INPUT.findall(inputs)]
        launches.append((operator, tuple(shapes)))
    return launches


def add_costs(costs: dict[str, Cost], launches: list[Launch]) -> list[Cost]:
    """The costs of the operators with their operations and bytes, the largest time first."""
    outputs, weights = match_convolutions(launches)
    for operator, inputs in launches:
        if operator in costs:
            sizes = [prod(shape) for shape in inputs]
            costs[operator].bytes += 4 * (sum(sizes) + max(sizes, default=0)) / RECORDED
            costs[operator].flops += (
                count_flops(operator, inputs=inputs, outputs=outputs, weights=weights) / RECORDED
            )
    return sorted(costs.values(), key=lambda cost: -cost.milliseconds)


def match_convolutions(launches: list[Launch]) -> tuple[dict, dict]:
    """The shapes that a convolution's kernels are not passed: outputs, and weights.

    The keys are (shape of the input, output channels). The output is known from the gradient of the
    weight, the weight from the forward convolution.
    """
    outputs = {}
    weights = {}
    for operator, inputs in launches:
        if operator == "Conv2DBackpropFilter":
            outputs[inputs[1], inputs[0][1]] = inputs[0]
        elif operator == "Conv2D":
            weights[inputs[0], inputs[1][0]] = inputs[1]
    return outputs, weights


def count_flops(operator: str, inputs: tuple, outputs: dict, weights: dict) -> float:
    """Floating point operations of a convolution or a product; 0 for other operators."""
    if operator in PRODUCTS:
        return count_product_flops(*inputs[:2])
    if operator not in CONVOLUTIONS:
        return 0.0
    one, other = inputs[:2]
    if operator == "Conv2D":
        output = outputs.get((one, other[0]), ())
        weight = other
    elif operator == "Conv2DBackpropInput":
        output = one
        weight = other
    else:
        output = one
        weight = weights.get((other, one[1]), ())
    return 2.0 * prod(output) * prod(weight[1:]) if output and weight else 0.0


def count_product_flops(one: tuple, other: tuple) -> float:
    """Of a matrix product, whichever factor is transposed: the common axis is summed."""
    pairs = ((-1, -2), (-1, -1), (-2, -2), (-2, -1))
    inner = next((one[i] for i, j in pairs if one[i] == other[j]), 1)
    return 2.0 * prod(one) * other[-1] * other[-2] / inner


def measure_copy_gbs(repeats: int = 5) -> float:
    """GB/s, read and written, of a copy by a thread on each core."""
    cores = count_usable_cores()
    source, target = (np.ones((cores, COPIED // 4), np.float32) for _ in range(2))

    with ThreadPoolExecutor(cores) as pool:
        seconds = measure_median_seconds(lambda: list(pool.map(np.copyto, target, source)), repeats)
    return 2 * source.nbytes / seconds / 1e9


def describe_cost(cost: Cost, total: float, matmul_gflops: float, copy_rate: float) -> dict:
    rate = (cost.flops or cost.bytes) / max(cost.milliseconds, 1e-6) / 1e6
    return {
        "operator": cost.operator,
        "kernels": cost.kernels,
        "milliseconds": round(cost.milliseconds, 2),
        "fraction": round(cost.milliseconds / total, 3),
        "unit": "GFLOP/s" if cost.flops else "GB/s",
        "rate": float(f"{rate:.3g}"),
        "of_machine": round(rate / (matmul_gflops if cost.flops else copy_rate), 2),
    }


def format_costs(rows: list[dict]) -> Iterator[str]:
    header = ("operator", "kernels", "ms in a step", "of the time", "rate", "of the machine's")
    cells = ("{operator}", "{kernels}", "{milliseconds:.1f}", "{fraction:.1%}", "{rate:.4g} {unit}")
    cells += ("{of_machine:.2f}",)
    return results.format_table(header, ([c.format(**row) for c in cells] for row in rows))
