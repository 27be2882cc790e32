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
import os
import time
from typing import Annotated, Optional, Union

from scripts.data.integrity import make_job
from scripts.data.prepare.frames import SUFFIXES, FrameJob, extract_frames
from scripts.executors.process_pool import PROCESSES, choose_workers, run_all
from utils import cli
from utils.config import NetworkConfig
from utils.data.annotation_file import format_label, read_annotations
from utils.data.packed.reader import pack_folder
from utils.files import check_outputs, copy_output, report_write_errors, write_text
from utils.messages import print_line
from utils.networks import Network
from utils.progress import track

MAX_SHOWN = 5  # unreadable videos named on stderr


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    fps: cli.NonNegativeFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    quality: Annotated[int, cli.integer_between(1, 100)] = 90,
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
    rows = []  # of all lists: list, path of the video in it, label, job
    for file in files:
        check_outputs([pack_folder(out, file)], inputs=[file.path])
        for record in read_annotations(file, min_frames=0)[0]:
            segment = str(record.segment).split() if record.segment else []
            path = get_path_below(file.root, "_".join([record.path, *segment]))
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
            rows.append((file, path, format_label(record.label), job))
    jobs = dict.fromkeys(job for *_, job in rows)  # a video may be in several lists
    with report_write_errors(out, "--out"):
        results = run_all(extract_frames, jobs, choose_workers(workers, PROCESSES))
        frames = dict(track(results, "extracting frames", len(jobs)))
        bad = [row for row in rows if not isinstance(frames[row[-1]], int)]
        for *_, job in bad[:MAX_SHOWN]:
            print_line(f"left out: {job.video.path}: {frames[job]}")
        for file in files:
            good = [row for row in rows if row[0] is file and isinstance(frames[row[-1]], int)]
            if not good:
                raise ValueError(f"{file.path} has no video that can be read")
            target = pack_folder(out, file)
            lines = [f"{p} {frames[job]} {k}\n" for _, p, k, job in good]
            write_text(target, "".join(lines), "--out")
            if file.path.with_name("labels.txt").is_file():
                copy_output(file.path.with_name("labels.txt"), target.with_name("labels.txt"))
    result = {"out": str(out), "videos": len(rows) - len(bad), "bad": len(bad)}
    result["frames"] = sum(count for count in frames.values() if isinstance(count, int))
    result["lists"] = [str(pack_folder(out, file)) for file in files]
    print(json.dumps({**result, "seconds": round(time.monotonic() - start, 1)}))


def get_path_below(folder: Path, path: Union[str, Path]) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
