#!/usr/bin/env python3
"""Dry run: compiles one step for an Ascend or a GPU on a machine without either.

    python scripts/analysis/dry_run.py --config_path Y --chip ascend910b
        [--ranks 8] [--mode train|eval] [--cores 24] [--cann FOLDER] [--keep FOLDER]
        [--network tsm] [--section.key=value ...]

The chip is ascend910b, ascend910, ascend910_93 or gpu (an A100). --ranks is the number of devices
that train together, of which rank 0 is simulated; --cores the number of cores of its host.
MindSpore compiles the graph for the chip, selects kernels and plans memory, on stub libraries that
gcc builds in a minute, or on an installed CANN (--cann); nothing is computed. --keep saves
MindSpore's log, graphs and execution order. docs/accelerators.md explains what a dry run proves.

Prints the kernels of a step by library and by name, kernels of the AI CPU, peak memory and the
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

TABLE_NAMES = 16  # kernels by name in the table


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    chip: Literal[tuple(CHIPS)],
    ranks: cli.PositiveInt = 1,
    mode: Literal[MODES] = MODES[0],
    cores: cli.PositiveInt = CORES,
    cann: Optional[Path] = None,
    keep: Optional[Path] = None,
) -> int:
    result = dry_run(
        network.name,
        cfg=cfg,
        machine=Machine(chip, ranks=ranks, cores=cores, cann=cann),
        mode=mode,
        keep=keep,
    )
    name = cfg.run.out.name
    memory = cfg.run.device_memory
    fits = result.peak_bytes <= memory << 30
    if result.finished:
        print(f"{name}: {mode} step for {chip}, rank 0 of {ranks}, {cores} cores\n")
        rows = [("kernels", f"{len(result.kernels)}, of which {result.launches} are launched")]
        rows += [(f"  {library}", count) for library, count in result.libraries.most_common()]
        rows += [("most frequent", "")]
        rows += [(f"  {kernel}", count) for kernel, count in result.names.most_common(TABLE_NAMES)]
        peak = f"{result.peak_bytes / 2**30:.2f} GB; run.device_memory is {memory} GB"
        rows += [
            ("kernel graphs", result.graphs),
            ("calls of Python", result.python),
            ("AI CPU kernels", ", ".join(result.ai_cpu) or "none"),
            ("Conv3D in float32", result.conv3d_float32),
            ("peak memory", peak if fits else f"{peak}: too little"),
        ]
        for row in result.all_reduces:
            after = f"{result.backward_after(row):.0%} of the backward kernels come after it"
            rows.append(("AllReduce", f"row {row} of {len(result.order)}; {after}"))
        print("\n".join(f"{title:24} {text}".rstrip() for title, text in rows))
    else:
        print(f"{name}: no {mode} step for {chip}: {result.reason}", file=sys.stderr)
    print(json.dumps({**result.summary(), "device_memory_gb": memory, "fits": fits}))
    return 0 if result.finished else 1


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
