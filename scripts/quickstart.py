"""A small training from start to end: synthetic videos, TSM and the same network without shift.

    bash scripts/quickstart.sh [--device GPU]        (makes the environment, then runs this)

Makes encoded videos whose class is their motion, trains both networks at the same time with one
recipe (one after the other on a GPU or an Ascend), evaluates them with 2 clips x 3 crops, and
prints TSM's metrics as one JSON line, a table, and the command that shows both networks in a
browser. Two to five minutes on two cores. Writes data/synthetic, out/quickstart_tsm and
out/quickstart_tsn, or out/quickstart_tsm_gpu and so on. Complete steps are not repeated.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Callable, Union

import yaml
from tqdm import tqdm

from utils import cli
from utils.files import ROOT, get_base_folder
from utils.messages import name_commands
from utils.processes import pass_on_signals
from utils.settings import Device

DATA = get_base_folder() / "data" / "synthetic"
OUT = get_base_folder() / "out"
CONFIG = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
VIDEOS = ["--train", "60", "--test", "16"]  # per class
NETWORKS: dict[str, list[str]] = {"TSM": [], "TSN": ["--model.shift_div=0"]}


def main(*, device: Device = "CPU") -> None:
    with pass_on_signals() as add:
        make_and_train(device, add)


def make_and_train(device: str, add: Callable[[subprocess.Popen], None]) -> None:
    """All steps; `add` makes signals go to a process."""
    print_step("making videos of 8 motions that look alike in any single frame")
    run_script(add, "", "scripts/data/synthesize_videos.py", "--out", str(DATA), *VIDEOS)
    print_step("training TSM and TSN, the same network without the shift, then evaluating both")
    start = time.monotonic()
    with ThreadPoolExecutor(len(NETWORKS) if device == "CPU" else 1) as pool:
        work = partial(train_and_evaluate, add, device)
        results = dict(zip(NETWORKS, pool.map(work, NETWORKS)))
    print(json.dumps(results["TSM"]))
    print(format_table(results, time.monotonic() - start))
    print("TSM in a browser: source .venv/bin/activate")
    print("pip install 'gradio>=6.31,<7' 'numpy<2'")
    print(format_demo(results["TSM"]["checkpoint"]), flush=True)


def train_and_evaluate(add: Callable, device: str, name: str) -> dict:
    """Trains with the smoke recipe, then evaluates the last checkpoint."""
    start = time.monotonic()
    suffix = "" if device == "CPU" else f"_{device.lower()}"
    out = OUT / f"quickstart_{name.lower()}{suffix}"
    shared = ["--config_path", str(CONFIG), f"--data.root={DATA}", *NETWORKS[name]]
    shared += [f"--run.device={device}", f"--run.out={out}"]
    trained = run_script(add, name, "tsm/train.py", *shared)
    train_seconds = round(time.monotonic() - start, 1)
    result = run_script(
        add, name, "tsm/eval.py", *shared, f"--checkpoint_path={trained['checkpoint']}"
    )
    return {**result, "checkpoint": trained["checkpoint"], "train_seconds": train_seconds}


def run_script(add: Callable, name: str, script: str, *arguments: str) -> dict:
    """Runs a script of the zoo; returns the JSON object in its last line of stdout.

    If it fails, this script ends with its exit status; the reason is on stderr.
    With a name, each line of the script is printed after it, and its epochs are a progress bar.
    """
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if name else None,
        text=True,
    )
    add(process)
    if name:
        show_progress(name, script, process.stderr)
    output = process.stdout.read()
    if process.wait():
        sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
    return json.loads(output.splitlines()[-1])


def show_progress(name: str, script: str, lines) -> None:
    """Prints the lines of a script after its name, and a progress bar of its epochs."""
    epochs = yaml.safe_load(CONFIG.read_text())["train"]["epochs"]
    disable = True if "eval" in script else None  # None: shown on a terminal
    position = list(NETWORKS).index(name)
    with tqdm(total=epochs, desc=name, unit="epoch", disable=disable, position=position) as bar:
        for line in lines:
            tqdm.write(f"[{name}] {line.rstrip()}", file=sys.stderr)
            result = re.search(r"epoch ([\d.]+) ", line)
            if result:
                bar.update(float(result.group(1)) - bar.n)


def print_step(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


def format_accuracy(result: dict, name: str) -> str:
    low = result[f"{name}_low"]
    return f"{result[name]:.1%} ({100 * low:.1f} to {100 * result[f'{name}_high']:.1f})"


def format_table(results: dict, seconds: float) -> str:
    columns = "".join(f"{name + ', 95 % interval':>27}" for name in ("top-1", "top-5"))
    rows = [f"{'network':<8}{columns}{'videos':>8}{'views':>7}{'train s':>9}"]
    for name, result in results.items():
        accuracies = "".join(f"{format_accuracy(result, key):>27}" for key in ("top1", "top5"))
        rows.append(
            f"{name:<8}{accuracies}{result['videos']:>8}{result['views']:>7}"
            f"{result['train_seconds']:>9.0f}"
        )
    rows.append(
        f"Training and evaluation took {seconds:.0f} s. Both networks have the same layers and"
    )
    rows.append("the same frames as input; only the shift uses their order.")
    return "\n".join(rows)


def format_demo(checkpoint: str) -> str:
    """The command that shows the network; paths start at the current folder."""
    words = ["python", shorten_path(ROOT / "scripts" / "demo.py")]
    words += ["--examples", shorten_path(DATA / "videos" / "test")]
    words += ["--config_path", shorten_path(CONFIG), "--checkpoint_path", shorten_path(checkpoint)]
    return name_commands(shlex.join(words))


def shorten_path(path: Union[str, Path]) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


if __name__ == "__main__":
    cli.run_command(main, __doc__)
