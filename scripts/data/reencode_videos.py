#!/usr/bin/env python3
"""Writes the videos of a network's lists as MP4 files that are read faster.

    python scripts/data/reencode_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--short_side 256] [--gop 12] [--quality 18] [--workers N]
        [--executor processes|dask:ADDRESS] [--part I/N] [--network x3d]

Then train with `--data.root=DIR`. The files are H.264 without audio, with a key frame every `gop`
frames. Videos with a short side above `short_side` are downscaled; 0 keeps all sizes. `quality` is
the constant rate factor of H.264, 0 to 51, lower is better. Frame numbers and times stay the same.

DIR gets every video under its own path, with the ending .mp4, and every list under its own name,
with lines `path label`. A segment of a video gets a file `PATH_START_END.mp4`, which the new list
names as a whole video. Videos that cannot be read are left out, and listed in `NAME.bad.tsv`: line
number, kind, path, reason.

The command continues where it was interrupted, even killed: it does not write a complete file
again. `--executor dask:ADDRESS` encodes on a Dask cluster. `--part I/N` writes part I of N of the
videos, from 1 to N, and no list. When all parts have ended, run the command without `--part`: it
writes the lists, and what the parts have left. Docs: docs/many_machines.md. The last line of stdout
is one JSON object: out, videos, bad, bytes, original_bytes, lists, seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
from functools import partial
from typing import Annotated, Optional

from scripts.data.prepare.copies import copy_lists
from scripts.data.prepare.encoder import MAX_QUALITY, reencode_video
from scripts.data.prepare.integrity import GOOD
from scripts.executors.process_pool import PROCESSES, Executor, PartOption, choose_workers
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    short_side: cli.NonNegativeInt = 256,
    gop: cli.PositiveInt = 12,
    quality: Annotated[int, cli.number_between(0, MAX_QUALITY)] = 18,
    workers: Optional[cli.PositiveInt] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
) -> None:
    result, findings = copy_lists(
        network,
        cfg,
        out,
        partial(reencode_video, short_side=short_side, gop=gop, quality=quality),
        workers=choose_workers(workers, executor),
        executor=executor,
        part=part,
        suffix=".mp4",
    )
    encoded = [job for job, finding in findings.items() if finding.kind == GOOD]
    originals = {video.path for video, _ in encoded}  # segments of one video count it once
    result["bytes"] = sum(os.path.getsize(target) for _, target in encoded)
    result["original_bytes"] = sum(map(os.path.getsize, originals))
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
