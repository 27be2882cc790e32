#!/usr/bin/env python3
"""Writes the frames of a network's videos as folders of images, which are read faster.

    python scripts/data/extract_frames.py --config_path Y --out DIR [--section.key=value ...]
        [--fps F] [--short_side 256] [--quality 90] [--workers N] [--network x3d]

Then train with `--data.root=DIR --data.source=frames`. DIR gets, for each video, a folder with the
path of the video, and every list under its own name, with lines `path num_frames label`. The images
have the names of `data.image_tmpl`: JPEG files of `quality`, or with `--data.image_tmpl
img_{:05d}.png` files without loss. Frames with a short side above `short_side` are downscaled; 0
keeps all sizes.

By default all frames are written. X3D and MViT sample by time: they need the frame rate of the
folders as `data.folder_fps`. If the videos have several rates, `--fps` writes all of them at one
rate, which repeats or drops frames.

A segment of a video gets a folder `VIDEO_START_END`, which the new lists name as a whole video.

Videos that cannot be read are left out of the lists, and listed in `NAME.bad.tsv`: line number,
kind, path, reason. The command continues where it was interrupted: it does not write a complete
folder again. The last line of stdout is one JSON object: out, videos, bad, frames, lists, seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from functools import partial
from typing import Annotated, Any, Optional

from scripts.data.prepare.copies import copy_lists
from scripts.data.prepare.encoder import SUFFIXES, extract_frames
from scripts.executors.process_pool import PROCESSES, choose_workers
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig, VideoData

FLOW_NAMES = "flow_{}_{:05d}.jpg"  # of the recipes: data.image_tmpl


def main(network: Network, cfg: NetworkConfig, **options: Any) -> None:
    extract_lists(network, cfg, **options)


def extract_lists(
    network: Network,
    cfg: NetworkConfig,
    flow: bool = False,
    *,
    out: Path,
    fps: cli.PositiveFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    quality: Optional[Annotated[int, cli.number_between(1, 100)]] = None,
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    """Writes the frames or, for extract_flow.py, the optical flow."""
    image_tmpl = FLOW_NAMES
    if isinstance(cfg.data, VideoData) and not flow:  # `copy_lists` refuses a network of images
        image_tmpl = cfg.data.image_tmpl
    if not image_tmpl.endswith(SUFFIXES):
        raise ValueError(f"data.image_tmpl: {image_tmpl} must end in {', '.join(SUFFIXES)}")
    work = partial(
        extract_frames,
        image_tmpl=image_tmpl,
        fps=fps,
        short_side=short_side,
        quality=quality or (95 if flow else 90),
        flow=flow,
    )
    result, findings = copy_lists(
        network, cfg, out, work, workers=choose_workers(workers, PROCESSES)
    )
    result["frames"] = sum(finding.frames for finding in findings.values())
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, extract_lists)
