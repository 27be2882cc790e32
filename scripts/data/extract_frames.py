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

Videos that cannot be read are left out of the lists. The command continues where it was
interrupted: it does not write a complete folder again. The last line of stdout is one JSON object:
out, videos, bad, frames, lists, seconds.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import time
from typing import Annotated, Optional

from scripts.data.prepare.frames import SUFFIXES, FrameJob, extract_frames
from scripts.data.prepare.integrity import make_job, print_left_out
from scripts.data.prepare.list_copies import (
    choose_list_paths,
    get_path_below,
    name_copy,
    write_list,
)
from scripts.executors.process_pool import PROCESSES, choose_workers, run_all
from utils import cli
from utils.data.annotation_file import read_annotations
from utils.files import check_outputs, report_write_errors
from utils.networks import Network
from utils.progress import track
from utils.settings import NetworkConfig


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    fps: cli.NonNegativeFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    quality: Annotated[int, cli.number_between(1, 100)] = 90,
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    start = time.monotonic()
    data = cfg.data
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos")
    if data.source == "frames":
        raise ValueError("data.source: the lists name folders of frames already")
    if not data.image_tmpl.endswith(SUFFIXES):
        raise ValueError(f"data.image_tmpl: {data.image_tmpl} must end in {', '.join(SUFFIXES)}")
    rows = []  # of all lists: list, path of the video in it, record, job
    lists = choose_list_paths(files, out)
    check_outputs(lists, inputs=[file.path for file in files])
    for file in files:
        for record in read_annotations(file, min_frames=0)[0]:
            path = name_copy(record, file)
            folder = out / get_path_below(data.root, file.root) / path
            video = make_job(record, file, data.reader)
            job = FrameJob(
                video,
                folder=str(folder),
                image_tmpl=data.image_tmpl,
                fps=fps,
                short_side=short_side,
                quality=quality,
            )
            rows.append((file, path, record, job))
    jobs = dict.fromkeys(job for *_, job in rows)  # a video may be in several lists
    with report_write_errors(out, "--out"):
        results = run_all(extract_frames, jobs, choose_workers(workers, PROCESSES))
        frames = dict(track(results, "extracting frames", len(jobs)))
        bad = [row for row in rows if not isinstance(frames[row[-1]], int)]
        print_left_out([(job.video.path, frames[job]) for *_, job in bad])
        for file, target in zip(files, lists):
            good = [row for row in rows if row[0] is file and isinstance(frames[row[-1]], int)]
            write_list(file, target, [(f"{p} {frames[job]}", r) for _, p, r, job in good])
    result = {"out": str(out), "videos": len(rows) - len(bad), "bad": len(bad)}
    result["frames"] = sum(count for count in frames.values() if isinstance(count, int))
    result["lists"] = [str(path) for path in lists]
    print(json.dumps({**result, "seconds": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
