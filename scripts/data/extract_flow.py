#!/usr/bin/env python3
"""Writes the optical flow of listed videos as folders of images, for TSM's flow recipes.

    python scripts/data/extract_flow.py --config_path Y --out DIR [--section.key=value ...]
        [--fps F] [--short_side 256] [--quality 95] [--workers N] [--network tsm]

Y is a recipe that reads the videos, as tsm/configs/tsm_r50_k400_8f.yaml. Then train on DIR:

    python tsm/train.py --config_path tsm/configs/tsm_r50_k400_flow_8f.yaml --data.root=DIR

DIR gets the lists and a folder for every video, as from extract_frames.py, whose options these are.
Between two frames, the images `flow_x_00001.jpg` and `flow_y_00001.jpg` hold the motion to the
right and downwards, clipped to 20 pixels: 0 is -20, 255 is 20, as in TSN's dense_flow. So a video
has one pair of images fewer than frames. `--quality` is JPEG's; a frame that `--fps` repeats
has no motion.

The method is OpenCV's DIS, which runs on a CPU. The published weights were made with TV-L1: with
the flow of DIS their accuracy differs.

The last line of stdout is the JSON object of extract_frames.py; `frames` counts the pairs.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

from typing import Any

from scripts.data.extract_frames import extract_lists
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig


def main(network: Network, cfg: NetworkConfig, **options: Any) -> None:
    extract_lists(network, cfg, True, **options)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, extract_lists)
