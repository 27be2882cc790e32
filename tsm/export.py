#!/usr/bin/env python3
"""Exports a TSM checkpoint to MINDIR or ONNX, runs the file and compares it with the network.

    python tsm/export.py --checkpoint_path C --format mindir|onnx|safetensors --target F
        [--config_path Y] [--batch 4|free] [--input uint8|float32] [--precision fp32|fp16]
        [--outputs scores|scores,features] [--online] [--overwrite]

The exported file takes clips (N, T, C, crop, crop) and returns what the network returns, usually
logits (N, classes). N is eval.batch, or --batch. With --online the file of a network with
model.online takes one frame (1, C, crop, crop) and the buffers of the frames before, zeros at the
start, and returns scores (1, classes) and the new buffers. The file normalises uint8 pixels; with
--input float32 it expects normalised ones. The last line of stdout is one JSON object: format,
file, bytes, precision, opset (of ONNX), input, buffers, outputs, max_abs_difference,
relative_difference. See docs/export.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from tsm.network import NETWORK
from utils.inference.export import run_export

if __name__ == "__main__":
    run_export(NETWORK, __doc__)
