#!/usr/bin/env python3
"""Makes the synthetic image data set of ResNet's smoke recipe, in CIFAR-10's binary format.

    python scripts/data/synthesize_images.py --out data/synthetic_images [--seed 0]

The last line of stdout is one JSON object: root, classes, train, test (images of each split),
seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import time

from scripts.data.synthetic.pattern_images import PATTERNS, draw_cifar10
from utils import cli
from utils.files import report_write_errors


def main(*, out: Path, seed: cli.Seed = 0) -> None:
    start = time.time()
    with report_write_errors(out, "--out"):
        counts = draw_cifar10(out, seed)
    result = {"root": str(out), "classes": len(PATTERNS), **counts}
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
