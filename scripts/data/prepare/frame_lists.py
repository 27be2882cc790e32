"""Folders of frames, or of optical flow, of all listed videos, and the lists of these folders."""

import json
import time
from pathlib import Path
from typing import Any, Optional

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


def extract_lists(
    network: Network,
    cfg: NetworkConfig,
    quality: int,
    flow_tmpl: str = "",
    *,
    out: Path,
    fps: cli.NonNegativeFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    """Writes the folders and lists below `out`, and prints the JSON object of the command.

    The arguments are those of `FrameJob`. With `flow_tmpl`, the names of its images, it writes the
    optical flow. Raises ValueError if there is nothing to extract.
    """
    start = time.monotonic()
    data: Any = cfg.data  # of videos, if there are lists
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos")
    if data.source == "frames":
        raise ValueError("data.source: the lists name folders already; take a recipe of videos")
    image_tmpl = flow_tmpl or data.image_tmpl
    if not image_tmpl.endswith(SUFFIXES):
        raise ValueError(f"data.image_tmpl: {image_tmpl} must end in {', '.join(SUFFIXES)}")
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
                image_tmpl=image_tmpl,
                fps=fps,
                short_side=short_side,
                quality=quality,
                flow=bool(flow_tmpl),
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
