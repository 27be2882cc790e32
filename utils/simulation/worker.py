"""The process of a dry run: builds a network for a simulated device and runs one step.

    python utils/simulation/worker.py REQUEST

REQUEST is a JSON object: network, config, overrides, mode (train or eval), ranks,
separate_gradients. Started by `utils.simulation.dry_run`, which sets the environment. The last line
of stdout is a JSON object.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import mindspore as ms

from utils import build_networks, runtime
from utils.config import load_config
from utils.distributed import gradient_fusion
from utils.networks import find_network

# Where MindSpore's messages go on with what a user cannot use.
DEVELOPERS = re.compile(r"C\+\+ Call Stack|Ascend Error Message|The Traceback of Net Construct")


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one step; the JSON object of the process."""
    network, ranks = request["network"], request["ranks"]
    config = Path(request["config"])
    cfg = load_config(find_network(network).config, config, request["overrides"])
    cfg = build_networks.drop_pretrained(cfg)
    rt = runtime.start(cfg.run)
    if ranks > 1:
        rt = replace(rt, size=runtime.start_data_parallel()[1])
    size: dict[str, Any] = {}
    if request["mode"] == "train":
        step = build_networks.build_train_step(network, cfg, rt)
        if request.get("separate_gradients"):
            step.reducer = gradient_fusion.reduce_separately(step.optimizer.parameters)
            size["gradients"] = [p.name for p in step.optimizer.parameters]
        outputs = step(*build_networks.make_dummy_batch(network, cfg), *step.draw_factors())
        size["parameters"] = len(step.optimizer.parameters)
    else:
        net = build_networks.build_eval_network(network, cfg)
        clips = build_networks.make_dummy_batch(network, cfg)[0]
        # Several clips of a video count as several.
        outputs = net(clips.reshape(-1, *find_network(network).dataset.get_input_shape(cfg.data)))
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        output.asnumpy()
    return {"finished": True, "peak_bytes": ms.runtime.max_memory_allocated(), **size}


def explain(error: Exception) -> str:
    """The type of an error and what it says, in one line, without MindSpore's call stack."""
    lines = []
    for line in str(error).splitlines():
        if DEVELOPERS.search(line):
            break
        if line.strip(" -"):
            lines.append(line.strip(" -"))
    return f"{type(error).__name__}: {' '.join(lines)}"[:400]


if __name__ == "__main__":
    try:
        result = main(json.loads(sys.argv[1]))
    except Exception as error:  # of any kind: what MindSpore raises when a graph cannot be built
        print(error, file=sys.stderr, flush=True)
        result = {"finished": False, "reason": explain(error)}
    print(json.dumps(result), flush=True)
    # MindSpore writes the execution order and the peak memory while Python ends. Its destructors
    # then fail on the stub libraries; the exit status means nothing.
