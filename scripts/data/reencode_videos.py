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
import shutil
import time
from typing import Annotated, Any, NamedTuple, Optional, Union

from scripts.data.prepare.encoder import MAX_QUALITY, EncodeJob, EncodeOptions, reencode_video
from scripts.data.prepare.integrity import (
    GOOD,
    Finding,
    VideoJob,
    make_job,
    print_left_out,
    write_table,
)
from scripts.data.prepare.list_copies import (
    choose_list_paths,
    get_path_below,
    name_copy,
    write_list,
)
from scripts.executors.process_pool import (
    PROCESSES,
    CrashError,
    Executor,
    Part,
    PartOption,
    choose_workers,
    run_all,
)
from utils import cli
from utils.data.annotation_file import iterate_lines, name_record
from utils.files import check_outputs, report_write_errors
from utils.networks import Network
from utils.progress import track
from utils.settings import NetworkConfig
from utils.video.media_files import VIDEO_SUFFIXES, find_files


class Encoding(NamedTuple):
    """Where and how all videos are encoded."""

    out: Path
    options: EncodeOptions
    workers: int
    executor: str
    part: Optional[Part]

    @property
    def drafts(self) -> Path:
        return self.out / ".unfinished"

    def make_job(self, video: VideoJob, copy: Path) -> EncodeJob:
        """The job that writes the file `copy` below `out`."""
        return EncodeJob(
            video, target=str(self.out / copy), drafts=str(self.drafts), options=self.options
        )


class Line(NamedTuple):
    """A line of a list, or a file of a folder."""

    number: int
    name: str  # of the video; a bad line itself
    work: Union[EncodeJob, Finding]  # a bad line has no job
    record: Any = None
    copy: str = ""  # the path in the new list


def build_encoding(
    *,
    out: Path,
    short_side: cli.NonNegativeInt = 256,
    gop: cli.PositiveInt = 12,
    quality: Annotated[int, cli.number_between(0, MAX_QUALITY)] = 18,
    workers: Optional[cli.PositiveInt] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
) -> Encoding:
    """An Encoding from the command line."""
    return Encoding(
        out,
        options=EncodeOptions(short_side, gop, quality),
        workers=choose_workers(workers, executor),
        executor=executor,
        part=part,
    )


def reencode_lists(network: Network, cfg: NetworkConfig, **options: Any) -> None:
    encoding = build_encoding(**options)
    files = network.list_annotation_files(cfg)
    if not files:
        raise ValueError(f"{network.name} has no lists of videos; images are read as they are")
    if cfg.data.source == "frames":
        raise ValueError("data.source: the lists name folders of frames, which are read faster")
    targets = choose_list_paths(files, encoding.out)
    tables = [target.with_name(f"{target.name}.bad.tsv") for target in targets]
    check_outputs([*targets, *tables], inputs=[file.path for file in files])
    lists: list[list[Line]] = []
    for file in files:
        below = get_path_below(cfg.data.root, file.root)
        lists.append([])
        for number, text, record in iterate_lines(file):
            if isinstance(record, str):
                lists[-1].append(Line(number, name=text, work=Finding("bad line", record)))
                continue
            copy = str(name_copy(record, file))
            copy += "" if copy.endswith(".mp4") and record.segment is None else ".mp4"
            video = make_job(record, file, cfg.data.reader)
            job = encoding.make_job(video, below / copy)
            name = name_record(record)
            lists[-1].append(Line(number, name=name, work=job, record=record, copy=copy))
    result, good = reencode(encoding, lists, tables)
    if not encoding.part:
        for file, target, lines in zip(files, targets, good):
            write_list(file, target, [(line.copy, line.record) for line in lines])
        result["lists"] = [str(target) for target in targets]
    print(json.dumps(result))


def reencode_folder(*, videos: Path, **options: Any) -> None:
    encoding = build_encoding(**options)
    table = encoding.out / "bad.tsv"
    check_outputs([table])
    if not videos.is_dir():
        raise ValueError(f"--videos: {videos} is not a folder")
    names = find_files(videos, VIDEO_SUFFIXES).files
    if not names:
        raise ValueError(f"--videos: {videos} has no video")
    lines = []
    for number, name in enumerate(names, 1):
        copy = Path(name if name.endswith(".mp4") else f"{name}.mp4")
        job = encoding.make_job(VideoJob(str(videos / name)), copy)
        lines.append(Line(number, name=str(videos / name), work=job))
    print(json.dumps(reencode(encoding, [lines], [table])[0]))


def reencode(
    encoding: Encoding, lists: list[list[Line]], tables: list[Path]
) -> tuple[dict[str, Any], list[list[Line]]]:
    """Writes the videos of this part and, unless it is a part, the tables of bad lines.

    Returns the counts, and the good lines of each list. Raises ValueError if two videos would have
    one file.
    """
    start = time.monotonic()
    jobs: dict[str, EncodeJob] = {}  # a video may be in several lists
    for line in (line for lines in lists for line in lines if isinstance(line.work, EncodeJob)):
        job = jobs.setdefault(line.work.target, line.work)
        if job.video.path != line.work.video.path:
            names = f"{job.video.path} and {line.work.video.path}"
            raise ValueError(f"--out: {names} would both become {job.target}: rename one")
    chosen = encoding.part.select(jobs.values()) if encoding.part else list(jobs.values())
    findings: dict[str, Finding] = {}  # by target
    with report_write_errors(encoding.out, "--out"):
        results = run_all(
            reencode_video, jobs=chosen, workers=encoding.workers, executor=encoding.executor
        )
        for job, result in track(results, "re-encoding", len(chosen)):
            crashed = isinstance(result, CrashError)
            findings[job.target] = Finding("broken", str(result)) if crashed else result
    encoded = [job for job in chosen if findings[job.target].kind == GOOD]
    originals = {job.video.path for job in encoded}  # segments of one video count it once
    result = {"out": str(encoding.out), "videos": len(encoded), "bad": len(chosen) - len(encoded)}
    result["bytes"] = sum(os.path.getsize(job.target) for job in encoded)
    result["original_bytes"] = sum(map(os.path.getsize, originals))
    result.update({"part": str(encoding.part)} if encoding.part else {})
    result["seconds"] = round(time.monotonic() - start, 1)
    if encoding.part:
        return result, []
    shutil.rmtree(encoding.drafts, ignore_errors=True)
    good = []
    for lines, table in zip(lists, tables):
        works = [(line, line.work) for line in lines]
        checked = [(k, findings[w.target] if isinstance(w, EncodeJob) else w) for k, w in works]
        good.append([line for line, finding in checked if finding.kind == GOOD])
        bad = [(line.number, line.name, finding) for line, finding in checked]
        bad = [row for row in bad if row[-1].kind != GOOD]
        write_table(table, bad)
        print_left_out([(name, finding) for _, name, finding in bad])
    return result, good


if __name__ == "__main__":
    if any(word.partition("=")[0] == "--videos" for word in sys.argv):
        cli.run_command(reencode_folder, __doc__, build_encoding)
    cli.run_for_network(reencode_lists, __doc__, build_encoding)
