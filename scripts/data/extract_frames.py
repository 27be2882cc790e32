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

Videos that cannot be read are left out of the lists. The command continues where it was
interrupted: it does not write a complete folder again. The last line of stdout is one JSON object:
out, videos, bad, frames, lists, seconds.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

from scripts.data.integrity import make_job
from scripts.data.prepare.frames import SUFFIXES, FrameJob, extract_frames
from utils import cli
from utils.data.annotation_file import AnnotationFile, iterate_lines
from utils.data.packed.reader import pack_folder
from utils.files import report_write_errors, write_text
from utils.messages import print_line
from utils.networks import Network
from utils.process_pool import PROCESSES, choose_workers, run_all
from utils.progress import track

MAX_SHOWN = 5  # unreadable videos named on stderr


class Line(NamedTuple):
    """A line of a list: the path of its video for the new list, or why the line is bad."""

    text: str
    job: Optional[FrameJob]  # None for a bad line
    label: int


def main(
    network: Network,
    cfg,
    *,
    out: Path,
    fps: cli.NonNegativeFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    quality: Annotated[int, cli.integer_between(1, 100)] = 90,
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    start = time.monotonic()
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos")
    if cfg.data.source == "frames":
        raise ValueError("data.source: the lists name folders of frames already")
    if Path(cfg.data.image_tmpl).suffix not in SUFFIXES:
        endings = ", ".join(SUFFIXES)
        raise ValueError(f"data.image_tmpl: {cfg.data.image_tmpl} must end in {endings}")
    targets = [pack_folder(out, file) for file in files]
    for file, target in zip(files, targets):
        if file.path.resolve() == target.resolve():
            raise ValueError(f"--out {out} is the folder of {file.path}, which would be replaced")
    lists = [list_jobs(file, cfg.data, out, fps, short_side, quality) for file in files]
    jobs = {job.folder: job for lines in lists for _, job, _ in lines if job}
    with report_write_errors(out, "--out"):
        results = run_all(extract_frames, jobs.values(), choose_workers(workers, PROCESSES))
        frames = {
            job.folder: result for job, result in track(results, "extracting frames", len(jobs))
        }
        bad = []
        for file, target, lines in zip(files, targets, lists):
            bad += write_list(file, target, lines, frames)
    for reason in bad[:MAX_SHOWN]:
        print_line(f"left out: {reason}")
    result = {"out": str(out), "videos": sum(map(len, lists)) - len(bad), "bad": len(bad)}
    result["frames"] = sum(count for count in frames.values() if isinstance(count, int))
    result["lists"] = [str(target) for target in targets]
    print(json.dumps({**result, "seconds": round(time.monotonic() - start, 1)}))


def list_jobs(
    file: AnnotationFile, data: Any, out: Path, fps: float, short_side: int, quality: int
) -> list[Line]:
    """All lines of a list."""
    lines = []
    for number, _, record in iterate_lines(file):
        if isinstance(record, str):
            lines.append(Line(f"{file.path}, line {number}: {record}", None, 0))
            continue
        path = get_path_below(file.root, Path(record.path))
        folder = out / get_path_below(data.root, file.root) / path
        video = make_job(record, file, data.reader)
        job = FrameJob(video, str(folder), data.image_tmpl, fps, short_side, quality)
        lines.append(Line(str(path), job, record.label))
    return lines


def get_path_below(folder: Path, path: Path) -> Path:
    """The path relative to a folder, without the `..` of a path outside it."""
    return Path(*(part for part in Path(os.path.relpath(path, folder)).parts if part != ".."))


def write_list(
    file: AnnotationFile, target: Path, lines: list[Line], frames: dict[str, Any]
) -> list[str]:
    """Writes the list of the extracted videos, and its class names; returns what is left out."""
    good = []
    bad = []
    for text, job, label in lines:
        count = frames[job.folder] if job else None
        if isinstance(count, int):
            good.append(f"{text} {count} {label}\n")
        else:
            bad.append(f"{job.video.path}: {count}" if job else text)
    if not good:
        raise ValueError(f"{file.path} has no video that can be read: {bad[0]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, "".join(good))
    class_names = file.path.with_name("labels.txt")
    if class_names.is_file():
        shutil.copyfile(class_names, target.with_name("labels.txt"))
    return bad


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
