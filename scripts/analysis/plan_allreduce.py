#!/usr/bin/env python3
"""Finds the split of gradients into AllReduce segments, and predicts how a training scales.

    python scripts/analysis/plan_allreduce.py --config_path Y --devices 8,64,512,1536
        [--bandwidth GB/s] [--latency us] [--topology NODESxDEVICES] [--cluster SETTINGS]
        [--chip ascend910b] [--out FOLDER] [--network tsm]
        [--section.key=value ...]

--bandwidth and --latency are those between nodes, --topology sets the devices of a node.
--cluster='{local_bandwidth: 50, tflops: 8, ...}' describes the machines further; docs/scaling.md
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

import argparse
import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Optional

import numpy as np

from scripts.analysis.allreduce import (
    Backward,
    Cluster,
    Prediction,
    count_backward,
    layer_ends,
    layer_of,
    plan,
    predict,
)
from scripts.analysis.build_networks import build_train_step, drop_pretrained
from scripts.dry_run.simulator import CHIPS, Machine, dry_run
from utils import cli, runtime
from utils.complexity import count_layers
from utils.files import check_folder, open_replacement, report_write_errors
from utils.load_config import build_dataclass, load_yaml
from utils.networks import Network
from utils.train.gradients import segment_ends

RANKS = 8  # of a dry run; the order of gradients is the same for any number above 1
BEST = "best"


def read_topology(text: str) -> tuple[int, int]:
    """(nodes, devices of a node)."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"must be NODESxDEVICES, as in 256x6, not {text}")
    return int(match[1]), int(match[2])


def read_counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"must be numbers above 0, as in 8,64,512, not {text}")
    return sorted({int(word) for word in words})


def read_cluster(text: str) -> Cluster:
    """The machines from settings as YAML: {tflops: 8, ...}."""
    try:
        values = load_yaml(text)
        if not isinstance(values, dict):
            raise ValueError("expected settings, as in {tflops: 8, latency: 5}")
        return build_dataclass(Cluster, values, "")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(
    network: Network,
    cfg,
    *,
    devices: Annotated[list[int], read_counts],
    bandwidth: Optional[float] = None,
    latency: Optional[float] = None,
    topology: Optional[Annotated[tuple[int, int], read_topology]] = None,
    cluster: Optional[Annotated[Cluster, read_cluster]] = None,
    chip: Optional[Literal[tuple(CHIPS)]] = None,
    out: Optional[Path] = None,
) -> None:
    nodes, per_node = topology or (max(devices), None)
    changes = {"bandwidth": bandwidth, "latency": latency, "devices_per_node": per_node}
    changes = {name: value for name, value in changes.items() if value is not None}
    cluster = replace(cluster or Cluster(), **changes)
    for count in devices:
        if cluster.nodes(count) > nodes:
            shape = "x".join(map(str, topology))
            raise ValueError(f"--devices: {count} devices are more than --topology {shape} has")
    folder = out or cfg.run.out.with_name(f"{cfg.run.out.name}_plan")
    check_folder(folder, {"plan.csv": "devices,split,segment,"})
    positions = order_gradients(network.name, cfg, chip) if chip else {}
    backward = time_gradients(network, cfg, cluster)
    if chip:
        backward = time_positions(positions, backward, chip)
    plans = {
        count: compare(backward, cluster=cluster, devices=count, own=cfg.run.all_reduce)
        for count in devices
    }
    size = backward.sizes.sum() / 1e6
    tensors = len(backward.names)
    print(f"{cfg.run.out.name}: a step of {1e3 * backward.step:.1f} ms on one device,")
    print(f"gradients of {size:.2f} MB in {tensors} tensors; {backward.source}\n")
    for count, predictions in plans.items():
        print(f"{count} devices ({cluster.nodes(count)} x {count // cluster.nodes(count)})")
        print(
            f"  {'split':12} {'segments':>8} {'exposed ms':>11} {'step ms':>9} {'efficiency':>11}"
        )
        for split, prediction in predictions.items():
            print(
                f"  {split:12} {len(prediction.segments):8} {1e3 * prediction.exposed:11.2f} "
                f"{1e3 * prediction.step:9.1f} {prediction.efficiency:11.1%}"
            )
        print()
    write_table(folder, backward, plans)
    names = [backward.names[end] for end in plans[max(plans)][BEST].ends[:-1]]
    split = f"[{', '.join(names)}]" if names else "none"
    line = f"run: {{all_reduce: {split}}}"
    print(f"for {max(plans)} devices:  {line}")
    summary = {
        count: {
            split: {
                "segments": len(prediction.segments),
                "exposed_ms": round(1e3 * prediction.exposed, 3),
                "step_ms": round(1e3 * prediction.step, 3),
                "efficiency": round(prediction.efficiency, 4),
            }
            for split, prediction in predictions.items()
        }
        for count, predictions in plans.items()
    }
    print(json.dumps({"devices": summary, "yaml": line, "folder": str(folder)}))


def order_gradients(network: str, cfg: Any, chip: str) -> dict[str, float]:
    """The position in the backward pass, 0..1, at which each gradient is complete, by name.

    A dry run sums every gradient in a separate AllReduce. The row of that AllReduce in MindSpore's
    execution order shows how much of the backward pass precedes it. Raises ValueError for a chip
    that is not an Ascend, for a step that does not compile, and if this machine cannot dry-run.
    """
    if CHIPS[chip] != "Ascend":
        raise ValueError(f"--chip {chip}: a dry run shows the order of gradients on Ascend only")
    cfg = replace(cfg, run=replace(cfg.run, all_reduce="none"))
    result = dry_run(network, cfg=cfg, machine=Machine(chip, RANKS), separate_gradients=True)
    if not result.finished:
        raise ValueError(f"--chip {chip}: the train step does not compile: {result.reason}")
    return result.locate_gradients(result.details["gradients"])


def time_positions(positions: Mapping[str, float], counted: Backward, chip: str) -> Backward:
    """The step of `counted` with its gradients complete at `positions`, 0..1, by name.

    Every backward kernel takes the same time, because only the order is known. Raises ValueError if
    the dry run has other gradients than `counted`.
    """
    if set(positions) != set(counted.names):
        (name, *_) = set(positions) ^ set(counted.names)
        raise ValueError(f"--chip {chip}: {name} is trained either there or on a CPU, not on both")
    fractions = np.array([positions[name] for name in counted.names])
    ready = counted.forward + fractions * (counted.step - counted.forward)
    source = f"in the order of a dry run for {chip}, times from counted operations"
    return replace(counted, ready=np.minimum(ready, counted.step), source=source)


def time_gradients(network: Network, cfg, cluster: Cluster) -> Backward:
    """When each gradient is complete on one device, counted from operations."""
    float32 = {"amp": "O0", "cpu_amp": "O0", "amp_dtype": "float16"}
    run = replace(cfg.run, device="CPU", **float32, all_reduce="none")
    cfg = drop_pretrained(replace(cfg, run=run))
    step = build_train_step(network.name, cfg, runtime.start(cfg.run))
    names = [p.name for p in step.optimizer.parameters]
    sizes = [p.size * p.itemsize for p in step.optimizer.parameters]
    layers = count_layers(step.net, network.get_input_shape(cfg))
    clips = cfg.data.batch * cfg.data.clips_per_sample
    return count_backward(names, sizes=sizes, layers=layers, batch=clips, cluster=cluster)


def compare(backward: Backward, cluster: Cluster, devices: int, own) -> dict[str, Prediction]:
    """Predictions by the name of the split; `own` is run.all_reduce, which may be no split."""
    ends = layer_ends(backward.names)
    splits = {"one segment": [len(backward.names) - 1], "one a layer": ends}
    if not isinstance(own, str):
        splits["yaml's own"] = segment_ends(backward.names, own)
    others = {
        name: predict(backward, cluster=cluster, devices=devices, ends=ends)
        for name, ends in splits.items()
    }
    return {BEST: plan(backward, cluster, devices), **others}


def write_table(folder: Path, backward: Backward, plans: dict) -> None:
    """Writes plan.csv, with a row for every segment of every split."""
    rows = [
        {
            "devices": count,
            "split": name,
            "segment": i,
            "first_layer": layer_of(backward.names[segment.first_gradient]),
            "last_layer": layer_of(backward.names[segment.last]),
            "tensors": segment.last - segment.first_gradient + 1,
            "bytes": segment.size,
            "ready_ms": round(1e3 * segment.ready, 4),
            "begin_ms": round(1e3 * segment.begin, 4),
            "end_ms": round(1e3 * segment.end, 4),
        }
        for count, predictions in plans.items()
        for name, prediction in predictions.items()
        for i, segment in enumerate(prediction.segments)
    ]
    path = folder / "plan.csv"
    with report_write_errors(path, "--out"), open_replacement(path, newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
