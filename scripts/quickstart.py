#!/usr/bin/env python3
"""A small training from start to end: synthetic videos, TSM and the same network without shift.

    bash scripts/quickstart.sh [--device GPU]        (makes the environment, then runs this)

Makes encoded videos whose class is their motion, trains both networks at the same time with one
recipe (one after the other on a GPU or an Ascend), evaluates them with 2 clips x 3 crops, and
prints TSM's metrics as one JSON line, a table, and the command that shows TSM in a browser. Two to
five minutes on two cores. Writes data/synthetic, out/quickstart_tsm and out/quickstart_tsn, or
out/quickstart_tsm_gpu and so on. Complete steps are not repeated.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Callable

from scripts.finetuning.own_commands import run_command
from utils import cli
from utils.files import ROOT, get_base_folder
from utils.messages import print_line
from utils.processes import pass_on_signals
from utils.settings import Device

DATA = get_base_folder() / "data" / "synthetic"
OUT = get_base_folder() / "out"
CONFIG = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
VIDEOS = ["--train", "60", "--test", "16"]  # per class
COLUMNS = ("top-1, 95 % interval", "top-5, 95 % interval")
EXPLANATION = """Both networks have the same layers and
the same frames as input; only the shift uses their order."""
NETWORKS: dict[str, list[str]] = {"TSM": [], "TSN": ["--model.shift_div=0"]}


def main(*, device: Device = "CPU") -> None:
    with pass_on_signals() as add:
        print_line("making videos of 8 motions that look alike in any single frame")
        run_command(["scripts/data/synthesize_videos.py", "--out", str(DATA), *VIDEOS], add)
        print_line("training TSM and TSN, the same network without the shift, then evaluating both")
        start = time.monotonic()
        with ThreadPoolExecutor(len(NETWORKS) if device == "CPU" else 1) as pool:
            work = partial(train_and_evaluate, add, device)
            results = dict(zip(NETWORKS, pool.map(work, NETWORKS)))
    print(json.dumps(results["TSM"]))
    print(format_table(results, time.monotonic() - start))
    print("TSM in a browser: source .venv/bin/activate\npip install 'gradio>=6.31,<7' 'numpy<2'")
    paths = [ROOT / "scripts" / "demo.py", DATA / "videos" / "test", results["TSM"]["checkpoint"]]
    demo, examples, checkpoint = map(os.path.relpath, paths)
    words = ["python", demo, "--examples", examples, "--checkpoint_path", checkpoint]
    print(shlex.join(words), flush=True)


def train_and_evaluate(add: Callable, device: str, name: str) -> dict:
    """Trains with the smoke recipe, then evaluates the last checkpoint."""
    start = time.monotonic()
    suffix = "" if device == "CPU" else f"_{device.lower()}"
    out = OUT / f"quickstart_{name.lower()}{suffix}"
    shared = ["--config_path", str(CONFIG), f"--data.root={DATA}", *NETWORKS[name]]
    shared += [f"--run.device={device}", f"--run.out={out}"]
    training = run_command(["tsm/train.py", *shared], add, name)
    checkpoint = training["checkpoint"]
    train_seconds = round(time.monotonic() - start, 1)
    evaluation = ["tsm/eval.py", *shared, f"--checkpoint_path={checkpoint}"]
    result = run_command(evaluation, add, name)
    times = {"train_seconds": train_seconds, "first_step_seconds": training["first_step_seconds"]}
    return {**result, "checkpoint": checkpoint, **times}


def format_table(results: dict, seconds: float) -> str:
    row = "{:<8}{:>27}{:>27}{:>8}{:>7}{:>14}{:>9}".format
    rows = [row("network", *COLUMNS, "videos", "views", "first step s", "train s")]
    for name, result in results.items():
        accuracies = []
        for key in ("top1", "top5"):
            bounds = f"({100 * result[f'{key}_low']:.1f} to {100 * result[f'{key}_high']:.1f})"
            accuracies.append(f"{result[key]:.1%} {bounds}")
        cells = [result["videos"], result["views"], result["first_step_seconds"] or "-"]
        rows.append(row(name, *accuracies, *cells, round(result["train_seconds"])))
    rows.append(f"Training and evaluation took {seconds:.0f} s. {EXPLANATION}")
    return "\n".join(rows)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
