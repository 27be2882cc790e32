#!/usr/bin/env python3
"""Evaluates a ResNet checkpoint.

    python resnet50/eval.py --config_path Y --checkpoint_path C [--report DIR] [--eval.batch=64 ...]

The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss, videos
(images here), unreadable, views, checkpoint, seconds; it is also written next to the checkpoint.
Exit status 1 if images could not be read, unless eval.allow_unreadable is true. `--report` writes
tables and a page of every image, class and probability into a folder: docs/evaluation.md.
Multi-label metrics are map, classes, top1, loss: docs/labels.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from resnet50.network import NETWORK
from utils.inference.evaluate import evaluate

if __name__ == "__main__":
    evaluate(NETWORK, __doc__)
