"""Draws the small video data set of the quickstart: real H.264 files, eight classes of motion.

    python scripts/data/synthesize_videos.py --out data/drawn [--train 40] [--test 10] [--seed 0]
        [--sets]

--train and --test count videos per class. --sets draws three data sets of the same motions with
different labels, for training on several at once. A finished set is left alone, an interrupted one
completed. The last line of stdout is one JSON object: root, classes, train, test (videos of each
split), drawn (by this call), seconds; with --sets, `sets` has the counts of each.
"""

import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli
from utils.data.synthetic.motion_videos import MOTIONS, draw_dataset, draw_sets
from utils.files import report_write_errors


def main(*, out: Path, train: int = 40, test: int = 10, seed: int = 0, sets: bool = False) -> None:
    start = time.time()
    with report_write_errors(out, "--out"):
        if sets:
            counts = {"sets": draw_sets(out, train, test, seed)}
        else:
            counts = {"classes": len(MOTIONS), **draw_dataset(out, train, test, seed)}
    result = {"root": str(out), **counts}
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
