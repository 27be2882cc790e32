"""The process of a dry run: builds a network for a simulated device and runs one step.

    python scripts/dry_run/worker.py REQUEST

REQUEST is a JSON object: network, yaml (the content of the config file), mode (train or eval),
ranks, separate_gradients. The config file is written to the current folder.
`scripts.dry_run.simulator` sets the environment and starts this process. The last line of stdout is
a JSON object.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from dataclasses import replace
from typing import Any

import mindspore as ms

from scripts.analysis import build_networks
from scripts.dry_run.simulator import STEP_BEGINS
from utils import runtime
from utils.load_config import load_config
from utils.networks import find_network
from utils.train.gradients import Packing, SegmentSum


def main(request: dict[str, Any]) -> dict[str, Any]:
    network = request["network"]
    ranks = request["ranks"]
    config = Path("config.yaml")
    config.write_text(request["yaml"])
    cfg = build_networks.drop_pretrained(load_config(find_network(network).config, config))
    rt = runtime.start(cfg.run)
    if ranks > 1:
        rt = replace(rt, size=runtime.open_collectives()[1])
    cell, inputs = build_networks.build_cell(network, cfg=cfg, rt=rt, mode=request["mode"])
    details: dict[str, Any] = {}
    if request["separate_gradients"]:
        # One AllReduce for every gradient; a recipe has no more than MOST_SEGMENTS.
        weights = cell.optimizer.parameters
        cell.sync.pack = Packing(weights, [[i] for i in range(len(weights))])
        cell.sync.reduce = SegmentSum(len(weights))
        details["gradients"] = [p.name for p in weights]
    print(STEP_BEGINS, file=sys.stderr, flush=True)
    outputs = cell(*inputs)
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        output.asnumpy()
    return {"finished": True, "peak_bytes": ms.runtime.max_memory_allocated(), **details}


if __name__ == "__main__":
    try:
        result = main(json.loads(sys.argv[1]))
    except Exception as error:  # MindSpore raises any kind if it cannot build a graph
        print(error, file=sys.stderr, flush=True)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
        result = {"finished": False, "reason": reason}
    print(json.dumps(result), flush=True)
    # MindSpore writes the execution order and the peak memory while Python ends. Its destructors
    # then fail on the stub libraries; the exit status means nothing.
