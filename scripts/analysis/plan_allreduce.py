#!/usr/bin/env python3
"""Finds the split of gradients into AllReduce segments, and predicts how a training scales.

    python scripts/analysis/plan_allreduce.py --config_path Y --devices 8,64,512,1536
        [--bandwidth GB/s] [--latency us] [--cluster SETTINGS] [--chip ascend910b]
        [--out FOLDER] [--network tsm] [--section.key=value ...]

--bandwidth and --latency are those between nodes.
--cluster='{devices_per_node: 6, tflops: 8, ...}' describes the machines further; docs/scaling.md
lists its settings. The times at which gradients are complete are counted from the network's
operations. With --chip, a dry run shows the order in which that Ascend completes them.

For every number of devices, prints the best split next to one segment, the config file's own split
and one segment a layer, and the line for the config file. Writes the times of all segments to
FOLDER/plan.csv, by default beside `run.out`.
docs/measured/scaling.md explains the model. The last line of stdout is one JSON object.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Optional, Union

import numpy as np

from scripts.analysis.build_networks import build_train_step, drop_pretrained
from scripts.dry_run.simulator import CHIPS, Machine, dry_run
from utils import cli, runtime
from utils.complexity import LayerCost, count_layers
from utils.files import check_folder, open_replacement, report_write_errors
from utils.load_config import build_dataclass, load_yaml
from utils.networks import Network
from utils.settings import NetworkConfig
from utils.train.gradients import MOST_SEGMENTS, segment_ends, segments_of

RANKS = 8  # of a dry run; the order of gradients is the same for any number above 1
BEST = "best"
COLUMNS = ("devices", "split", "segment", "first_layer", "last_layer", "tensors", "bytes")
COLUMNS += ("ready_ms", "begin_ms", "end_ms")
Sizes = Union[float, np.ndarray]  # bytes, or seconds, of one AllReduce or of several
GIGA = 1e9
MICRO = 1e-6
TERA = 1e12

# Segments are runs of neighbouring layers in the network's order. The backward pass completes them
# from the last to the first. One channel sends one segment at a time, in that order. A segment
# starts when all its gradients are complete and the channel is free. To send the later segments
# sooner never delays the earlier ones. So the best split of a network contains the best splits of
# its last layers, and dynamic programming finds it exactly.
#
# The times at which gradients are complete are counted: a layer's backward pass is taken as twice
# the work of its forward pass, in the reverse order, with the same time for each multiply-add. A
# dry run can give another order.
#
# The latency-bandwidth model: a message of n bytes takes latency + n / bandwidth. A ring of P
# devices sends 2 (P - 1) messages of n / P bytes, one after the other (Patarasuk and Yuan, 2009).
# In a hierarchical ring every node first adds up among its own devices, so that only one ring of
# nodes crosses the network.


@dataclass(frozen=True)
class Cluster:
    """The machines a run is planned for: the option --cluster."""

    devices_per_node: int = 8
    bandwidth: float = 12.5  # GB/s of a node into the network, each direction
    latency: float = 5.0  # microseconds of a message between nodes
    local_bandwidth: float = 100.0  # GB/s of a device to the next one in its node
    local_latency: float = 3.0  # microseconds
    overlap: bool = True  # whether gradients are sent while others are computed
    tflops: float = 10.0  # of a device in training; a multiply-add counts as two
    step_seconds: float = 0.0  # measured on one device at data.batch; 0: from tflops

    def __post_init__(self):
        positive = ("devices_per_node", "bandwidth", "local_bandwidth", "tflops")
        for name, value in vars(self).items():
            if not 0 <= value < math.inf or (name in positive and not value):
                bound = "above 0" if name in positive else "0 or more"
                raise ValueError(f"{name} must be {bound}, not {value}")

    def nodes(self, devices: int) -> int:
        """Raises ValueError if the devices are neither whole nodes nor a part of one node."""
        if devices <= self.devices_per_node:
            return 1
        if devices % self.devices_per_node:
            nodes = f"nodes of devices_per_node={self.devices_per_node}"
            raise ValueError(f"--devices: {devices} are not whole {nodes}")
        return devices // self.devices_per_node

    def all_reduce_seconds(self, size: Sizes, devices: int) -> Sizes:
        """Seconds that an AllReduce of `size` bytes takes over `devices` devices."""
        nodes = self.nodes(devices)
        inside = self.local_latency * MICRO, self.local_bandwidth * GIGA
        between = self.latency * MICRO, self.bandwidth * GIGA
        if nodes == 1:
            return ring_seconds(size, devices, *inside)
        # Half a ring inside the nodes gives each device a part of the node's sum. Rings between the
        # nodes, one for each part, divide the network among them. Then the other half of the ring.
        return ring_seconds(size, devices // nodes, *inside) + ring_seconds(size, nodes, *between)


def ring_seconds(size: Sizes, devices: int, latency: float, bandwidth: float) -> Sizes:
    return 2 * (devices - 1) * (latency + size / devices / bandwidth)


@dataclass(frozen=True)
class Backward:
    """One device's step: gradients of `names`, of `sizes` bytes, complete at `ready` seconds.

    In the network's order. The device has finished at `step` seconds; a third is the forward pass.
    """

    names: tuple[str, ...]
    sizes: np.ndarray
    ready: np.ndarray
    step: float


class Segment(NamedTuple):
    """Gradients `first_gradient` to `last`; times in seconds from the start of the step."""

    first_gradient: int
    last: int
    size: int  # bytes
    ready: float
    begin: float
    end: float


class Prediction(NamedTuple):
    """One step on several devices, in seconds; segments in the order in which they are sent."""

    segments: list[Segment]
    exposed: float  # communication that no computation hides
    step: float  # computation and exposed communication


def count_backward(
    names: Sequence[str],
    sizes: Sequence[int],
    layers: Sequence[LayerCost],
    batch: int,
    cluster: Cluster,
) -> Backward:
    """From counted operations: a step is three forward passes at the cluster's rate.

    If `step_seconds` was measured, the step takes that long; the counts then give only the fraction
    of it after which a gradient is complete.
    """
    macs = np.array([layer.macs for layer in layers], np.float64)
    total = max(macs.sum(), 1.0)
    step = cluster.step_seconds or 3 * 2 * total * batch / (cluster.tflops * TERA)
    # The fraction of the backward pass that has passed when the gradients of a layer are complete.
    # The first call of a layer is the last in the backward pass, so it replaces later ones.
    elapsed_fractions = macs[::-1].cumsum()[::-1] / total
    fractions = {layer.name: part for layer, part in zip(reversed(layers), elapsed_fractions[::-1])}
    ready = []
    for name in names:
        layer = name  # the longest counted one that the parameter's name begins with
        while layer not in fractions:
            assert layer, f"{name} belongs to no counted layer"
            layer = layer.rpartition(".")[0]
        ready.append(step / 3 + 2 * step / 3 * fractions[layer])
    return Backward(tuple(names), sizes=np.array(sizes), ready=np.array(ready), step=step)


def predict(backward: Backward, cluster: Cluster, devices: int, ends: Sequence[int]) -> Prediction:
    """The step with segments that end at the indices `ends`, ascending, the last one n - 1."""
    free = 0.0
    segments = []
    backward_end = float(backward.ready.max())
    # Without overlap every gradient is sent when the backward pass has ended.
    complete = backward.ready if cluster.overlap else np.full_like(backward.ready, backward_end)
    for first, last in reversed(segments_of(ends)):
        part = slice(first, last + 1)
        size = int(backward.sizes[part].sum())
        ready = float(complete[part].max())
        begin = max(free, ready)
        free = begin + float(cluster.all_reduce_seconds(size, devices))
        segments.append(Segment(first, last=last, size=size, ready=ready, begin=begin, end=free))
    exposed = max(0.0, free - backward_end) if devices > 1 else 0.0
    return Prediction(segments, exposed=exposed, step=backward.step + exposed)


def plan(
    backward: Backward, cluster: Cluster, devices: int, most: int = MOST_SEGMENTS
) -> Prediction:
    """The best split into at most `most` segments; of equally good ones, one with the fewest."""
    layers = layer_ends(backward.names)
    firsts = np.array([0] + [end + 1 for end in layers])  # where a segment may begin; then n
    before = np.concatenate([[0], backward.sizes.cumsum()])  # bytes ahead of an index
    count = len(layers)
    backward_end = backward.ready.max()
    complete = backward.ready if cluster.overlap else np.full_like(backward.ready, backward_end)
    # free[k, i]: when the channel has sent layers i.. in k segments; cut[k, i]: where the first of
    # these segments ends.
    free = np.full((most + 1, count + 1), np.inf)
    cut = np.zeros((most + 1, count + 1), int)
    free[0, count] = 0.0
    for i in range(count - 1, -1, -1):
        sizes = before[firsts[i + 1 :]] - before[firsts[i]]
        costs = cluster.all_reduce_seconds(sizes, devices)
        latest = np.maximum.accumulate(complete[firsts[i] :])
        ready = latest[firsts[i + 1 :] - firsts[i] - 1]  # of segments that begin with layer i
        for k in range(1, most + 1):
            ended = np.maximum(free[k - 1, i + 1 :], ready) + costs
            best = int(ended.argmin())
            free[k, i] = ended[best]
            cut[k, i] = i + 1 + best
    # An end counts only if it is later than the end of the backward pass.
    exposed = np.maximum(free[1:, 0], backward_end)
    k = 1 + int((exposed <= exposed.min() * (1 + 1e-9)).argmax())
    ends = []
    i = 0
    for left in range(k, 0, -1):
        i = cut[left, i]
        ends.append(layers[i - 1])
    return predict(backward, cluster=cluster, devices=devices, ends=ends)


def layer_of(name: str) -> str:
    """The layer of a parameter; a parameter of the network itself is its own layer."""
    return name.rpartition(".")[0] or name


def layer_ends(names: Sequence[str]) -> list[int]:
    """The index of the last parameter of every layer: where its weights and biases end."""
    layers = [layer_of(name) for name in names]
    return [i for i in range(len(names)) if i + 1 == len(names) or layers[i] != layers[i + 1]]


def read_counts(text: str) -> list[int]:
    return sorted({*map(cli.number_between(1), text.split(","))})


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    devices: Annotated[list[int], read_counts],
    bandwidth: Optional[float] = None,
    latency: Optional[float] = None,
    cluster: str = "{}",
    chip: Optional[Literal[tuple(CHIPS)]] = None,
    out: Optional[Path] = None,
) -> None:
    values = load_yaml(cluster)
    if not isinstance(values, dict):
        raise ValueError(f"--cluster: expected settings, as in {{tflops: 8}}, not {cluster}")
    options = {"bandwidth": bandwidth, "latency": latency}
    values.update({name: value for name, value in options.items() if value is not None})
    machines = build_dataclass(Cluster, values, "")
    nodes = {count: machines.nodes(count) for count in devices}
    name = cfg.run.out.name
    folder = out or cfg.run.out.with_name(f"{name}_plan")
    check_folder(folder, {"plan.csv": "devices,split,segment,"})

    # When each gradient is complete on one device, and the splits to compare.
    backward = time_gradients(network, cfg, machines, chip)
    ends = layer_ends(backward.names)
    splits = {"one segment": [len(backward.names) - 1], "one a layer": ends}
    if not isinstance(cfg.run.all_reduce, str):
        splits["yaml's own"] = segment_ends(backward.names, cfg.run.all_reduce)
    plans = {}
    for count in devices:
        plans[count] = {BEST: plan(backward, machines, count)}
        for split, split_ends in splits.items():
            plans[count][split] = predict(backward, machines, count, split_ends)

    source = f", in the order of a dry run for {chip}" if chip else ""
    size = f"{backward.sizes.sum() / 1e6:.2f} MB in {len(backward.names)} tensors"
    print(f"{name}: a step of {1e3 * backward.step:.1f} ms on one device,")
    print(f"gradients of {size}{source}\n")
    summary: dict[int, dict] = {}
    for count, predictions in plans.items():
        print(f"{count} devices ({nodes[count]} x {count // nodes[count]})")
        print("  split        segments  exposed ms   step ms  efficiency")
        summary[count] = {}
        for split, prediction in predictions.items():
            # Relative to as many devices without communication
            row = {
                "segments": len(prediction.segments),
                "exposed_ms": round(1e3 * prediction.exposed, 3),
                "step_ms": round(1e3 * prediction.step, 3),
                "efficiency": round(backward.step / prediction.step, 4),
            }
            summary[count][split] = row
            columns = f"{row['segments']:8} {row['exposed_ms']:11.2f} {row['step_ms']:9.1f}"
            print(f"  {split:12} {columns} {row['efficiency']:11.1%}")
        print()
    write_table(folder, backward, plans)
    most = max(plans)
    inner_ends = sorted(segment.last for segment in plans[most][BEST].segments)[:-1]
    names = ", ".join(backward.names[end] for end in inner_ends)
    line = f"run: {{all_reduce: {f'[{names}]' if names else 'none'}}}"
    print(f"for {most} devices:  {line}")
    print(json.dumps({"devices": summary, "yaml": line, "folder": str(folder)}))


def time_gradients(
    network: Network, cfg: NetworkConfig, cluster: Cluster, chip: Optional[str]
) -> Backward:
    """When each gradient is complete on one device: counted, or in the order of a dry run.

    A dry run sums every gradient in a separate AllReduce. The row of that AllReduce in MindSpore's
    execution order shows how much of the backward pass precedes it. Raises ValueError for a chip
    that is not an Ascend, for a step that does not compile, and if this machine cannot dry-run.
    """
    cfg = replace(cfg, run=replace(cfg.run, all_reduce="none"))
    float32 = {"amp": "O0", "cpu_amp": "O0", "amp_dtype": "float16"}
    own = drop_pretrained(replace(cfg, run=replace(cfg.run, device="CPU", **float32)))
    step = build_train_step(network.name, own, runtime.start(own.run))
    counted = count_backward(
        [p.name for p in step.optimizer.parameters],
        sizes=[p.size * p.itemsize for p in step.optimizer.parameters],
        layers=count_layers(step.net, network.get_input_shape(cfg)),
        batch=cfg.data.batch * cfg.data.clips_per_sample,
        cluster=cluster,
    )
    if not chip:
        return counted
    result = dry_run(network.name, cfg, Machine(chip, RANKS), separate_gradients=True)
    if not result.finished:
        raise ValueError(f"--chip {chip}: the train step does not compile: {result.reason}")
    names = result.details["gradients"]
    positions = {names[k - 1]: place for k, place in result.gradient_positions.items()}
    # Every backward kernel takes the same time, because only the order is known.
    forward = counted.step / 3
    fractions = np.array([positions[name] for name in counted.names])
    return replace(counted, ready=forward + fractions * (counted.step - forward))


def write_table(folder: Path, backward: Backward, plans: dict) -> None:
    """Writes plan.csv, with a row for every segment of every split."""
    path = folder / "plan.csv"
    with report_write_errors(path, "--out"), open_replacement(path, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for count, predictions in plans.items():
            for name, prediction in predictions.items():
                for i, segment in enumerate(prediction.segments):
                    first, last, size, *times = segment
                    layers = [layer_of(backward.names[k]) for k in (first, last)]
                    milliseconds = [round(1e3 * seconds, 4) for seconds in times]
                    row = (count, name, i, *layers, last - first + 1, size, *milliseconds)
                    writer.writerow(row)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
