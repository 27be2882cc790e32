"""Draws the small image data set of ResNet's smoke recipe, in CIFAR-10's binary format.

    python scripts/data/synthesize_images.py --out data/drawn_images [--seed 0]

The last line of stdout is one JSON object: root,
classes, train, test (images of each split), seconds.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.data.synthetic.pattern_images import PATTERNS, draw_cifar10
from utils.usage import Parser, quietly


def parse_arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same images")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    start = time.time()
    try:
        counts = draw_cifar10(arguments.out, arguments.seed)
    except OSError as error:
        print(f"error: --out: cannot write {arguments.out}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    result = {"root": str(arguments.out), "classes": len(PATTERNS), **counts}
    print(json.dumps({**result, "seconds": round(time.time() - start, 1)}))


if __name__ == "__main__":
    with quietly():
        main()
