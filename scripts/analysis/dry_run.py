#!/usr/bin/env python3
"""Dry run: compiles one step for an Ascend or a GPU on a machine without either.

    python scripts/analysis/dry_run.py --config_path Y --chip ascend910b
        [--ranks 8] [--mode train|eval] [--cores 24] [--cann FOLDER]
        [--network tsm] [--section.key=value ...]

The chip is ascend910b, ascend910, ascend910_93 or gpu (an A100). --ranks is the number of devices
that train together, of which rank 0 is simulated; --cores the number of cores of its host.
MindSpore compiles the graph for the chip, selects kernels and plans memory, on stub libraries that
gcc builds in a minute, or on an installed CANN (--cann); nothing is computed. docs/accelerators.md
explains what a dry run proves.

Prints the kernels of a step by library, kernels of the AI CPU, peak memory and the
position of each AllReduce in the backward pass. The last line of stdout is one JSON object. Exit
status 0: the step ran; 1: the graph cannot be built or run, for the reason on stderr.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Literal, Optional

from scripts.dry_run.simulator import CHIPS, CORES, MODES, Machine, dry_run
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    chip: Literal[tuple(CHIPS)],
    ranks: cli.PositiveInt = 1,
    mode: Literal[MODES] = MODES[0],
    cores: cli.PositiveInt = CORES,
    cann: Optional[Path] = None,
) -> int:
    machine = Machine(chip, ranks=ranks, cores=cores, cann=cann)
    result = dry_run(network.name, cfg=cfg, machine=machine, mode=mode)
    name = cfg.run.out.name
    memory = cfg.run.device_memory
    fits = result.peak_bytes <= memory << 30
    kernels = result.libraries.total()
    if result.finished:
        print(f"{name}: {mode} step for {chip}, rank 0 of {ranks}, {cores} cores\n")
        peak = f"{result.peak_bytes / 2**30:.2f} GB; run.device_memory is {memory} GB"
        rows = [
            ("kernels", f"{kernels}, of which {result.launches} are launched"),
            *((f"  {library}", count) for library, count in result.libraries.most_common()),
            ("kernel graphs", result.graphs),
            ("calls of Python", result.python),
            ("AI CPU kernels", ", ".join(result.ai_cpu) or "none"),
            ("Conv3D in float32", result.conv3d_float32),
            ("peak memory", peak if fits else f"{peak}: too little"),
        ]
        after = "of the backward kernels come after it"
        rows += [("AllReduce", f"{part:.0%} {after}") for part in result.all_reduces.values()]
        for title, text in rows:
            print(f"{title:24} {text}".rstrip())
    else:
        print(f"{name}: no {mode} step for {chip}: {result.reason}", file=sys.stderr)
    summary = {
        "chip": chip,
        "finished": result.finished,
        **({"reason": result.reason} if result.reason else {}),
        "kernels": kernels,
        "launches": result.launches,
        "by_library": dict(result.libraries.most_common()),
        "by_name": dict(result.names.most_common()),
        "graphs": result.graphs,
        "python": result.python,
        "any_type": result.any_type,
        "ai_cpu": list(result.ai_cpu),
        "conv3d_float32": result.conv3d_float32,
        "peak_gb": round(result.peak_bytes / 2**30, 2),
        "all_reduces": [
            {"row": row, "backward_after": round(after, 3)}
            for row, after in result.all_reduces.items()
        ],
        "seconds": round(result.seconds, 1),
        "device_memory_gb": memory,
        "fits": fits,
    }
    print(json.dumps(summary))
    return 0 if result.finished else 1


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
