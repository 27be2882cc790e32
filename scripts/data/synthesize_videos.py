#!/usr/bin/env python3
"""Makes the synthetic video data set of the quickstart: H.264 files, eight classes of motion.

    python scripts/data/synthesize_videos.py --out data/synthetic [--train 40] [--test 10]
        [--seed 0] [--sets]

--train and --test count videos per class. --sets makes three data sets of the same motions with
different labels, for training on several at once. The command does not change a complete set, and
completes an interrupted one. The last line of stdout is one JSON object: root, classes, train, test
(videos of each split), drawn (videos made by this call), seconds; with --sets, `sets` has the
counts of each set.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import time
from typing import Any

from scripts.data.synthetic.motion_videos import MOTIONS, draw_dataset, draw_sets
from utils import cli
from utils.files import report_write_errors


def main(*, out: Path, train: int = 40, test: int = 10, seed: int = 0, sets: bool = False) -> None:
    start = time.time()
    result: dict[str, Any] = {"root": str(out)}
    with report_write_errors(out, "--out"):
        if sets:
            result["sets"] = draw_sets(out, train, test, seed)
        else:
            result.update({"classes": len(MOTIONS), **draw_dataset(out, train, test, seed)})
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
