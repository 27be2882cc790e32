"""Finds the split of gradients into AllReduce segments, and predicts how a training scales.

    python scripts/analysis/plan_allreduce.py --config_path Y --devices 8,64,512,1536
        [--bandwidth GB/s] [--latency us] [--topology NODESxDEVICES]
        [--profile FILE | --chip ascend910b] [--out FOLDER] [--network tsm]
        [--section.key=value ...]

The machines are those of the yaml's `run.cluster`, or its defaults; --bandwidth and --latency are
those between nodes, --topology says how many devices a node has. Others are described, in place of
the yaml's, as --run.cluster='{local_bandwidth: 50, tflops: 8, ...}'. Gradients are complete when
FILE says (scripts/analysis/profile_backward.py), or as counted from the network's operations. With
--chip, a dry run shows the order in which that Ascend completes them; only the times are counted.
The order is saved as gradients.json in FOLDER, for --profile and run.gradient_profile.

Prints, for every number of devices, the best split against one segment, the yaml's own and one
segment a layer; writes plan.csv, timeline.png and scaling.png into FOLDER; and prints the yaml line
to paste. docs/scaling.md explains the model. The last line of stdout is one JSON object.
"""

import argparse
import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli, runtime
from utils.build_networks import build_train_step, drop_pretrained
from utils.config import get_base_folder
from utils.distributed import plan_plots
from utils.distributed.cost_model import Cluster
from utils.distributed.fusion_planner import Prediction, layer_ends, layer_of, plan, predict
from utils.distributed.gradient_fusion import backward_of, layer_names, segment_ends
from utils.distributed.gradient_timing import Backward, write_backward
from utils.files import report_write_errors
from utils.networks import Network
from utils.simulation.gradient_order import order_gradients, time_positions

BEST, ONE, HAND, LAYERS = "best", "one segment", "yaml's own", "one a layer"


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


def main(
    network: Network,
    cfg,
    *,
    devices: Annotated[list[int], read_counts],
    bandwidth: Optional[float] = None,
    latency: Optional[float] = None,
    topology: Optional[Annotated[tuple[int, int], read_topology]] = None,
    profile: Optional[Path] = None,
    chip: str = "",
    out: Optional[Path] = None,
) -> None:
    nodes, per_node = topology or (max(devices), None)
    changes = {"bandwidth": bandwidth, "latency": latency, "devices_per_node": per_node}
    changes = {name: value for name, value in changes.items() if value is not None}
    cluster = replace(cfg.run.cluster or Cluster(), **changes)
    for count in devices:
        if cluster.nodes(count) > nodes:
            shape = "x".join(map(str, topology))
            raise ValueError(f"--devices: {count} devices are more than --topology {shape} has")
    folder = out or cfg.run.out / "plan"
    if chip and profile:
        raise ValueError(
            "--chip and --profile exclude each other: each sets when gradients are ready"
        )
    if chip:
        backward = simulate_order(network, cfg, cluster, chip, folder)
    else:
        backward = find_ready_times(network, cfg, cluster, profile)
    plans = {count: compare(backward, cluster, count, cfg.run.all_reduce) for count in devices}
    size, tensors = backward.sizes.sum() / 1e6, len(backward.names)
    print(f"{cfg.run.out.name}: a step of {1e3 * backward.step:.1f} ms on one device,")
    print(f"gradients of {size:.2f} MB in {tensors} tensors; {backward.source}\n")
    for count, result in plans.items():
        print(format_plan(backward, cluster, count, result))
    write(folder, backward, plans)
    largest = plans[max(plans)][BEST]
    line = yaml_line(backward, largest)
    print(f"for {largest.devices} devices:  {line}")
    print(json.dumps({**summary(plans), "yaml": line, "folder": str(folder)}))


def simulate_order(network: Network, cfg, cluster: Cluster, chip: str, folder: Path) -> Backward:
    """When each gradient is complete: the order of a dry run, counted times.

    Writes gradients.json into the folder.
    """
    path = folder / "gradients.json"
    with report_write_errors(folder, "--out"):  # before the dry run, which takes a minute
        folder.mkdir(parents=True, exist_ok=True)
    positions = order_gradients(network.name, cfg, chip, get_base_folder() / ".cache" / "dry_run")
    cfg = replace(cfg, run=replace(cfg.run, gradient_profile=None))
    backward = time_positions(positions, find_ready_times(network, cfg, cluster, None), chip)
    with report_write_errors(path, "--out"):
        write_backward(path, backward, cfg.data.batch, chip)
    return backward


def find_ready_times(network: Network, cfg, cluster: Cluster, profile: Optional[Path]) -> Backward:
    """When each gradient of a network is complete on one device: from a file, or counted."""
    run = replace(cfg.run, device="CPU", amp="O0", all_reduce="none", cluster=cluster)
    run = replace(run, gradient_profile=profile or cfg.run.gradient_profile)
    cfg = drop_pretrained(replace(cfg, run=run))
    step = build_train_step(network.name, cfg, runtime.start(cfg.run))
    names = [p.name for p in step.optimizer.parameters]
    sizes = [p.size * p.itemsize for p in step.optimizer.parameters]
    clips = cfg.data.batch * getattr(
        cfg.data, "repeated_aug", 1
    )  # several of a video count as several
    shape = (clips, *network.dataset.get_input_shape(cfg.data))
    return backward_of(step.net, names, sizes, cfg.run, shape)


def compare(backward: Backward, cluster: Cluster, devices: int, asked) -> dict[str, Prediction]:
    """Predictions by the name of the split; the yaml's own only where it has one."""
    last = len(backward.names) - 1
    splits = {ONE: [last], LAYERS: layer_ends(backward.names)}
    if not isinstance(asked, str):
        splits[HAND] = segment_ends(backward.names, asked)
    others = {name: predict(backward, cluster, devices, ends) for name, ends in splits.items()}
    return {BEST: plan(backward, cluster, devices), **others}


def format_plan(backward: Backward, cluster: Cluster, devices: int, result: dict) -> str:
    """The lines for one number of devices."""
    lines = [
        f"{devices} devices ({cluster.nodes(devices)} x {devices // cluster.nodes(devices)})",
        f"  {'split':12} {'segments':>8} {'exposed ms':>11} {'step ms':>9} {'efficiency':>11}",
    ]
    for name, each in result.items():
        lines.append(
            f"  {name:12} {len(each.segments):8} {1e3 * each.exposed:11.2f} "
            f"{1e3 * each.step:9.1f} {each.efficiency:11.1%}"
        )
    lines += ["  the best split, in the order in which it travels:"]
    for each in result[BEST].segments:
        first, last = (layer_of(backward.names[i]) for i in (each.first, each.last))
        ready, begin, end = (1e3 * v for v in (each.ready, each.begin, each.end))
        lines.append(
            f"    {last} .. {first}: {each.last - each.first + 1} tensors, "
            f"{each.size / 1e6:.2f} MB, complete at {ready:.1f}, sent {begin:.1f} to {end:.1f} ms"
        )
    return "\n".join(lines) + "\n"


def yaml_line(backward: Backward, best: Prediction) -> str:
    names = layer_names(backward.names, best.ends)
    return f"run: {{all_reduce: [{', '.join(names)}]}}" if names else "run: {all_reduce: none}"


def write(folder: Path, backward: Backward, plans: dict) -> None:
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "plan.csv", "w", newline="") as file:
            write_csv(file, backward, plans)
    # One segment a layer is a hundred bars, which say nothing in a picture.
    last = {name: each for name, each in plans[max(plans)].items() if name != LAYERS}
    plan_plots.draw_timeline(folder / "timeline.png", backward, last)
    curves = {name: [each[name] for each in plans.values()] for name in plans[max(plans)]}
    plan_plots.draw_scaling(folder / "scaling.png", curves)


def write_csv(file, backward: Backward, plans: dict) -> None:
    """A row for every segment of every split."""
    rows = csv.writer(file)
    head = "devices split segment first_layer last_layer tensors bytes ready_ms begin_ms end_ms"
    rows.writerow([*head.split(), "exposed_ms", "step_ms", "efficiency"])
    for count, result in plans.items():
        for name, each in result.items():
            whole = [round(1e3 * v, 4) for v in (each.exposed, each.step)]
            for i, s in enumerate(each.segments):
                ends = [layer_of(backward.names[k]) for k in (s.first, s.last)]
                times = [round(1e3 * v, 4) for v in (s.ready, s.begin, s.end)]
                tail = [s.last - s.first + 1, s.size, *times, *whole, round(each.efficiency, 6)]
                rows.writerow([count, name, i, *ends, *tail])


def summary(plans: dict) -> dict:
    return {
        "devices": {
            count: {
                name: {
                    "segments": len(each.segments),
                    "exposed_ms": round(1e3 * each.exposed, 3),
                    "step_ms": round(1e3 * each.step, 3),
                    "efficiency": round(each.efficiency, 4),
                }
                for name, each in result.items()
            }
            for count, result in plans.items()
        }
    }


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
