"""Draws the small video data set of the quickstart: real H.264 files, eight classes of motion.

    python scripts/data/synthesize_videos.py --out data/drawn [--train 40] [--test 10] [--seed 0]
        [--sets]

--train and --test count videos per class. --sets draws three data sets of the same motions with
different labels, for training on several at once. A finished set is left alone, an interrupted one
completed. The last line of stdout is one JSON object: root, classes, train, test (videos of each
split), drawn (by this call), seconds; with --sets, `sets` has the counts of each.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.data.synthetic.motion_videos import MOTIONS, draw_dataset, draw_sets
from utils.usage import Parser, quietly


def parse_arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--train", type=int, default=40, help="training videos per class")
    parser.add_argument("--test", type=int, default=10, help="test videos per class")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same videos")
    parser.add_argument("--sets", action="store_true", help="three sets with labels of their own")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    start = time.time()
    numbers = arguments.out, arguments.train, arguments.test, arguments.seed
    try:
        if arguments.sets:
            counts = {"sets": draw_sets(*numbers)}
        else:
            counts = {"classes": len(MOTIONS), **draw_dataset(*numbers)}
    except (ValueError, OSError) as error:
        reason = f"--out: cannot write {arguments.out}: " if isinstance(error, OSError) else ""
        print(f"error: {reason}{getattr(error, 'strerror', error)}", file=sys.stderr)
        sys.exit(2)
    result = {"root": str(arguments.out), **counts}
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    with quietly():
        main()
