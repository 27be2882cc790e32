"""A process of scripts/analysis/verify_device.py, for what needs MindSpore or may not end.

    python utils/verify/worker.py TASK REQUEST --run.device=DEVICE

TASK is a name of TASKS; REQUEST is a JSON object. Every line of stdout that begins with `{` is a
JSON object with results; a task that fails in the middle has printed those that it had.
`--run.device` is there for scripts/launch.py.
"""

import importlib
import json
import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

# Task -> module of utils.verify and its generator of results.
TASKS = {
    "parity": ("measuring", "measure_parity"),
    "step": ("measuring", "measure_step"),
    "impl": ("measuring", "measure_impl"),
    "all_reduce": ("exchanging", "measure_all_reduce"),
    "overlap": ("exchanging", "measure_overlap"),
    "difference": ("measuring", "measure_difference"),
    "images": ("training", "draw_images"),
}


def main() -> None:
    task, request = sys.argv[1], json.loads(sys.argv[2])
    module, function = TASKS[task]
    run = getattr(importlib.import_module(f"utils.verify.{module}"), function)
    for result in run(request):
        if os.environ.get("MS_NODE_ID", "0") == "0":
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
