"""Measures train steps over a slow network and compares them with the planner's predictions.

    python benchmarks/scaling/measure_scaling.py --config_path Y [--workers 2] [--rate 100mbit]
        [--splits 1,2,4] [--steps 20] [--out FILE] [--network tsm] [--section.key=value ...]

Each worker, on the CPU, is a separate host: a network namespace on a bridge, which sends at most
RATE. Latency and bandwidth come from AllReduces of four sizes, the computation from steps without
communication. The step with each number of segments is predicted from these alone, and measured.
Needs Linux, root and iproute2. The last line of stdout is one JSON object.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli  # isort: split

import numpy as np

from benchmarks.results import print_result
from benchmarks.scaling import netns
from utils.build_networks import drop_pretrained
from utils.config import ROOT, to_yaml
from utils.distributed.cost_model import Cluster
from utils.distributed.fusion_planner import MOST_SEGMENTS, predict
from utils.distributed.gradient_timing import Backward
from utils.networks import Network
from utils.verify.communication import fit_ring

PORT, TIMEOUT = 8118, 900  # of the scheduler; seconds for everything
MOST_WORKERS = 16
SIGNALS = 16  # bytes: loss, top-1 and two signals have an AllReduce of their own


def read_rate(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"must be a rate of tc, as in 100mbit, not {text}")
    return text


def read_splits(text: str) -> list[int]:
    """Numbers of segments, separated by commas."""
    return [cli.integer_between(1, MOST_SEGMENTS)(count) for count in text.split(",")]


def main(
    network: Network,
    cfg,
    *,
    workers: Annotated[int, cli.integer_between(2, MOST_WORKERS)] = 2,
    rate: Annotated[str, read_rate] = "100mbit",
    splits: Annotated[Sequence[int], read_splits] = (1, 2, 4),
    steps: cli.PositiveInt = 20,
    out: Optional[Path] = None,
) -> None:
    reason = netns.explain_missing()
    if reason:
        raise ValueError(f"a limited network cannot be made: {reason}")
    cfg = drop_pretrained(replace(cfg, run=replace(cfg.run, device="CPU")))
    with tempfile.TemporaryDirectory() as folder:
        options = ["--splits", ",".join(map(str, splits)), "--steps", str(steps)]
        results = measure(network, cfg, workers, rate, options, folder)
    cluster = fit_cluster(results["probes"], workers)
    rows = [compare_step(results, cluster, int(count)) for count in results["steps"]]
    for line in format_lines(rate, results, cluster, rows):
        print(line)
    result = {
        "config": cfg.run.out.name,
        "workers": workers,
        "rate": rate,
        "latency_us": round(cluster.latency, 1),
        "gigabytes_per_second": round(cluster.bandwidth, 6),
        "compute_ms": round(1e3 * results["compute"], 2),
        "steps": rows,
    }
    print_result(result, out)


def measure(
    network: Network, cfg, workers: int, rate: str, options: list[str], folder: str
) -> dict:
    """Runs the workers, each in its own namespace, and reads what the first one wrote."""
    config, result = Path(folder) / "config.yaml", Path(folder) / "result.json"
    config.write_text(to_yaml(cfg))
    script = [str(ROOT / "benchmarks" / "scaling" / "worker.py"), "--config_path", str(config)]
    script += ["--network", network.name, *options, "--out", str(result)]
    with netns.hosts(workers, rate) as hosts:
        jobs = [start_host(i, name, hosts, script, folder) for i, (name, _) in enumerate(hosts)]
        for job in jobs:
            try:
                job.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                job.kill()
    if not result.exists():
        logs = sorted(Path(folder).glob("*/worker_*.log"))
        tail = logs[0].read_text(errors="replace")[-2000:] if logs else "no worker started"
        raise RuntimeError(f"the workers have failed:\n{tail}")
    return json.loads(result.read_text())


def start_host(
    rank: int, name: str, hosts: list, script: list[str], folder: str
) -> subprocess.Popen:
    """Starts msrun on one of the hosts."""
    msrun = ["msrun", f"--worker_num={len(hosts)}", "--local_worker_num=1", f"--node_rank={rank}"]
    msrun += [f"--master_addr={hosts[0][1]}", f"--master_port={PORT}", "--join=True"]
    msrun += [f"--log_dir={folder}/{rank}", *script]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *msrun],
        env={**os.environ, "PATH": path, "GLOG_v": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )


def fit_cluster(probes: list, workers: int) -> Cluster:
    """A ring of hosts; the collective of the CPU does not compute while it sends: no overlap."""
    latency, bandwidth = fit_ring(probes, workers)
    return Cluster(1, bandwidth, latency, algorithm="ring", overlap=False)


def compare_step(result: dict, cluster: Cluster, count: int) -> dict:
    """Measured and predicted milliseconds of a step with `count` segments."""
    sizes, compute = np.array(result["sizes"]), result["compute"]
    backward = Backward(
        tuple(result["names"]), sizes, np.full(len(sizes), compute), 0.0, compute, "measured"
    )
    measured = result["steps"][str(count)]
    predicted = predict(backward, cluster, result["ranks"], measured["ends"]).step
    predicted += cluster.all_reduce_seconds(SIGNALS, result["ranks"])
    return {
        "segments": len(measured["ends"]),
        "measured_ms": round(1e3 * measured["seconds"], 2),
        "foretold_ms": round(1e3 * predicted, 2),
        "error": round(predicted / measured["seconds"] - 1, 4),
    }


def format_lines(rate: str, result: dict, cluster: Cluster, rows: list[dict]) -> list[str]:
    lines = [
        f"{result['ranks']} workers, {rate}: {cluster.latency:.0f} us a message, "
        f"{1e3 * cluster.bandwidth:.2f} MB/s, {1e3 * result['compute']:.1f} ms of computing",
        f"{'segments':>8} {'measured ms':>12} {'predicted ms':>12} {'error':>8}",
    ]
    for row in rows:
        lines.append(
            f"{row['segments']:8} {row['measured_ms']:12.1f} {row['foretold_ms']:12.1f} "
            f"{row['error']:8.1%}"
        )
    return lines


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
