#!/usr/bin/env python3
"""Evaluates a checkpoint on every data set of the config file, each with its own head and views.

    python mvit_multi/eval.py --config_path Y --checkpoint_path C [--report DIR]
        [--eval.sets=[kinetics] ...]

Prints a table. The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss
(means over the data sets), videos, unreadable, sets (metrics and views of each data set),
checkpoint, seconds; it is also written next to the checkpoint. Exit status 1 if videos could not be
read, unless eval.allow_unreadable is true. `--report` writes tables and a page of videos, classes
and probabilities into DIR, one folder for each data set, and a page of all: docs/evaluation.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from mvit_multi.network import NETWORK
from utils.inference.evaluate import evaluate

if __name__ == "__main__":
    evaluate(NETWORK, __doc__)
