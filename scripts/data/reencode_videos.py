#!/usr/bin/env python3
"""Writes the videos of a network's lists, or of a folder, as MP4 files that are read faster.

    python scripts/data/reencode_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--short_side 256] [--gop 12] [--quality 18] [--workers N]
        [--executor processes|dask:ADDRESS] [--part I/N] [--network x3d]
    python scripts/data/reencode_videos.py --videos FOLDER --out DIR [--short_side 256] ...

Then train with `--data.root=DIR`. The files are H.264 without audio, with a key frame every `gop`
frames. Videos with a short side above `short_side` are downscaled; 0 keeps all sizes. `quality` is
the constant rate factor of H.264, 0 to 51, lower is better. Frame numbers and times stay the same.

DIR gets every video under its own path, with the ending .mp4, and every list under its own name,
with lines `path label`. A segment of a video gets a file `PATH_START_END.mp4`, which the new list
names as a whole video. Videos that cannot be read are left out, and listed in `NAME.bad.tsv`: line
number, kind, path, reason. With `--videos`, that is `bad.tsv`, and there are no lists.

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
from typing import Annotated, Any, Optional

from scripts.data.prepare.copies import Copying, Line, copy_lists, copy_videos, find_lists
from scripts.data.prepare.encoder import MAX_QUALITY, EncodeJob, EncodeOptions, reencode_video
from scripts.data.prepare.integrity import GOOD, Finding, VideoJob
from scripts.executors.process_pool import PROCESSES, Executor, PartOption, choose_workers
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig
from utils.video.media_files import VIDEO_SUFFIXES, find_files


def build_copying(
    *,
    out: Path,
    short_side: cli.NonNegativeInt = 256,
    gop: cli.PositiveInt = 12,
    quality: Annotated[int, cli.number_between(0, MAX_QUALITY)] = 18,
    workers: Optional[cli.PositiveInt] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
) -> Copying:
    """The options of the command line."""
    options = EncodeOptions(short_side, gop, quality)

    def build_job(video: VideoJob, copy: Path) -> EncodeJob:
        return EncodeJob(video, str(out / copy), options)

    workers = choose_workers(workers, executor)
    return Copying(
        out,
        build_job=build_job,
        work=reencode_video,
        title="re-encoding",
        workers=workers,
        executor=executor,
        part=part,
        suffix=".mp4",
    )


def reencode_lists(network: Network, cfg: NetworkConfig, **options: Any) -> None:
    copying = build_copying(**options)
    print_result(*copy_lists(cfg, find_lists(network, cfg), copying))


def reencode_folder(*, videos: Path, **options: Any) -> None:
    copying = build_copying(**options)
    table = copying.out / "bad.tsv"
    if not videos.is_dir():
        raise ValueError(f"--videos: {videos} is not a folder")
    names = find_files(videos, VIDEO_SUFFIXES).files
    if not names:
        raise ValueError(f"--videos: {videos} has no video")
    lines = []
    for number, name in enumerate(names, 1):
        copy = Path(name if name.endswith(".mp4") else f"{name}.mp4")
        job = copying.build_job(VideoJob(str(videos / name)), copy)
        lines.append(Line(number, name=str(videos / name), work=job))
    print_result(*copy_videos(copying, [lines], [table]))


def print_result(result: dict[str, Any], findings: dict[EncodeJob, Finding]) -> None:
    encoded = [job for job, finding in findings.items() if finding.kind == GOOD]
    originals = {job.video.path for job in encoded}  # segments of one video count it once
    result["bytes"] = sum(os.path.getsize(job.target) for job in encoded)
    result["original_bytes"] = sum(map(os.path.getsize, originals))
    print(json.dumps(result))


if __name__ == "__main__":
    if any(word.partition("=")[0] == "--videos" for word in sys.argv):
        cli.run_command(reencode_folder, __doc__, build_copying)
    cli.run_for_network(reencode_lists, __doc__, build_copying)
