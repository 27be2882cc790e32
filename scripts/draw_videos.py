"""Draws the small video data set of the quickstart: real H.264 files, eight classes of motion.

    python scripts/draw_videos.py --out data/drawn [--train 40] [--test 10] [--seed 0]

--train and --test count videos per class. A finished set is left alone, an interrupted one
completed. The last line of stdout is one JSON object: root, classes, train, test (videos of each
split), drawn (by this call), seconds.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.drawing import MOTIONS, draw_dataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--train", type=int, default=40, help="training videos per class")
    parser.add_argument("--test", type=int, default=10, help="test videos per class")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same videos")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    start = time.time()
    try:
        counts = draw_dataset(arguments.out, arguments.train, arguments.test, arguments.seed)
    except (ValueError, OSError) as error:
        print(f"draw_videos.py: {error}", file=sys.stderr)
        sys.exit(2)
    result = {"root": str(arguments.out), "classes": len(MOTIONS), **counts}
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    main()
