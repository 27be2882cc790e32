#!/usr/bin/env python3
"""Exports a ResNet checkpoint to MINDIR or ONNX, runs the file and compares it with the network.

    python resnet50/export.py --checkpoint_path C --format mindir|onnx|safetensors --target F
        [--config_path Y] [--batch 4|free] [--input uint8|float32] [--precision fp32|fp16]
        [--outputs scores|scores,features] [--overwrite]

The exported file takes images (N, 3, crop, crop) and returns logits (N, classes). N is
eval.batch, or --batch. The file normalises uint8 pixels; with --input float32 it expects normalised
ones. The last line of stdout is one JSON object: format, file, bytes, precision, opset (of ONNX),
input, outputs, max_abs_difference, relative_difference. See docs/export.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from resnet50.network import NETWORK
from utils.inference.export import run_export

if __name__ == "__main__":
    run_export(NETWORK, __doc__)
