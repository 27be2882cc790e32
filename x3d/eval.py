#!/usr/bin/env python3
"""Evaluates an X3D checkpoint.

    python x3d/eval.py --config_path Y --checkpoint_path C [--report DIR] [--eval.crops=3 ...]

The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss, videos,
unreadable, views, checkpoint, seconds; it is also written next to the checkpoint. Exit status 1 if
videos could not be read, unless eval.allow_unreadable is true. `--report` writes tables and a page
of every video, class and probability into a folder: docs/evaluation.md.
Multi-label metrics are map, classes, top1, loss: docs/labels.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from utils.inference.evaluate import evaluate
from x3d.network import NETWORK

if __name__ == "__main__":
    evaluate(NETWORK, __doc__)
