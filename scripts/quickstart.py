"""The main job, small: drawn videos, TSM against the same network without shift, a table.

    bash scripts/quickstart.sh        (makes the environment, then runs this)

Draws real encoded videos whose class is their motion, trains both networks with one recipe,
evaluates them with 2 clips x 3 crops, and ends with TSM's metrics as one JSON line and a table.
What is done already is not done again.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA, OUT = ROOT / "data" / "drawn", ROOT / "out"
CONFIG = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
NETWORKS = {
    "TSM": [f"--run.out={OUT / 'quickstart_tsm'}"],
    "TSN (no shift)": [f"--run.out={OUT / 'quickstart_tsn'}", "--model.shift_div=0"],
}


def main() -> None:
    began = time.monotonic()
    say("drawing videos: 8 motions that no single frame can tell apart")
    call("scripts/draw_videos.py", "--out", str(DATA), "--train", "60", "--test", "16")
    results = {name: train_and_evaluate(name, extra) for name, extra in NETWORKS.items()}
    print(json.dumps(results["TSM"]))
    print(table(results, time.monotonic() - began), flush=True)


def train_and_evaluate(name: str, extra: list) -> dict:
    """Trains with the smoke recipe, then evaluates the last checkpoint."""
    began = time.monotonic()
    data = f"--data.root={DATA}"
    say(f"training {name}")
    trained = call("tsm/train.py", "--config_path", str(CONFIG), data, *extra)
    trained_for = time.monotonic() - began
    say(f"evaluating {name}")
    where = f"--checkpoint_path={trained['checkpoint']}"
    result = call("tsm/eval.py", "--config_path", str(CONFIG), where, data, *extra)
    return {**result, "train_seconds": round(trained_for, 1)}


def call(script: str, *arguments: str) -> dict:
    """Runs a script of the zoo; returns the JSON object in its last line of stdout."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def say(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


def table(results: dict, seconds: float) -> str:
    rows = [f"{'network':<16}{'top-1':>8}{'top-5':>8}{'videos':>8}{'views':>7}{'train s':>9}"]
    for name, result in results.items():
        rows.append(
            f"{name:<16}{result['top1']:>8.1%}{result['top5']:>8.1%}{result['videos']:>8}"
            f"{result['views']:>7}{result['train_seconds']:>9.0f}"
        )
    rows.append(
        f"all of it: {seconds:.0f} s. The same frames, the same layers: only the shift sees"
    )
    rows.append("in which order they come.")
    return "\n".join(rows)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
