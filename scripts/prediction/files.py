"""The videos of a prediction, and the files and tables of their records."""

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional

from scripts.executors.process_pool import Part
from scripts.executors.video_jobs import PART_FILE, RunJobs, make_key, write_records
from scripts.prediction.records import Job
from utils.files import JOURNAL, check_target, open_replacement, write_text
from utils.messages import escape_control, format_line, hide_secrets, print_line
from utils.predict.prediction import PREDICTIONS, make_file_names
from utils.video.live import ADDRESS
from utils.video.media_files import IMAGE_SUFFIXES, describe_left_out, find_files, has_suffix

MAX_CLASS_NAME = 200  # characters of a class name in a table
# Main files of predict.py and stream.py, which have one folder
OWN = {
    f"{PREDICTIONS}.jsonl": r'\{"video": |\Z',
    PART_FILE.format(PREDICTIONS, "*"): JOURNAL,
    "*_stream.csv": "start,end,|time,",
}


def check_save(save: Path, inputs: Sequence[str], overwrite: bool) -> None:
    """Raises ValueError for a --save that is no .mp4, or that `check_target` refuses."""
    if save.suffix != ".mp4":
        raise ValueError(f"--save: {save} must end in .mp4")
    check_target(save, inputs, "--save", overwrite)


def list_videos(names: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """The paths of videos; a folder stands for all files below it that end in `suffixes`, sorted.

    A folder without such a file stays, as a folder of frames. Hidden and system files and folders
    are left out, which a line says. Raises ValueError for what does not exist, a folder without any
    of them, and an address.
    """
    videos = []
    for name in names:
        if ADDRESS.match(name):
            raise ValueError(f"{hide_secrets(name)}: an address needs scripts/stream.py")
        if not os.path.exists(name):
            raise ValueError(f"{name} does not exist")
        scan = find_files(name, suffixes) if os.path.isdir(name) else None
        if scan is None or not scan.files:
            if scan and not any(has_suffix(file, IMAGE_SUFFIXES) for file in scan.others):
                endings = ", ".join(suffixes)
                raise ValueError(f"{name}: this folder has no file that ends in {endings}")
            videos.append(name)
            continue
        videos += [os.path.join(name, file) for file in scan.files]
        kind = "images" if suffixes == IMAGE_SUFFIXES else "videos"
        left_out = describe_left_out(scan, kind)
        if left_out:
            print_line(f"{name}: {left_out}")
    return videos


def write_predictions(
    videos: list[str],
    folder: Path,
    run_jobs: RunJobs[Job],
    settings: str = "",
    part: Optional[Part] = None,
) -> dict:
    """Prints and writes the records of the videos; returns the result of the command.

    `run_jobs` yields (job, record) in any order, for these `settings`. See `write_records`.
    """
    records: list[dict] = []

    @contextlib.contextmanager
    def open_tables() -> Iterator[Callable]:
        yield print_record
        if not part:
            lines = "".join(f"{json.dumps(record)}\n" for record in records)
            write_text(folder / f"{PREDICTIONS}.jsonl", lines)
            write_table(folder / f"{PREDICTIONS}.csv", records)

    def print_record(job: Job, record: dict) -> None:
        records.append(record)
        if "error" not in record:
            print(format_table(record), flush=True)

    result = write_records(
        list(zip(videos, make_file_names(videos))),
        key=lambda job: make_key(settings, *job),
        run_jobs=run_jobs,
        writer=open_tables(),
        folder=folder,
        name=PREDICTIONS,
        part=part,
        hidden=sys.stdout.isatty(),  # there, a table for every video shows the progress
    )
    return result if part else {"predictions": records, **result}


def write_table(path: Path, records: Sequence[dict]) -> None:
    """A line for each video: its best classes in the order of their probabilities, or its error.

    With several data sets, the classes are those of `joint`, with the set before the name.
    """
    rankings = [record.get("joint") or record.get("top", []) for record in records]
    heading = ["video"]
    for rank in range(1, max(map(len, rankings)) + 1):
        heading += [f"class_{rank}", f"label_{rank}", f"probability_{rank}"]
    with open_replacement(path, newline="") as file:
        writer = csv.DictWriter(file, [*heading, "error"])
        writer.writeheader()
        for record, ranking in zip(records, rankings):
            row = {"video": escape_control(record["video"]), "error": record.get("error", "")}
            for rank, entry in enumerate(ranking, 1):
                name = "/".join(filter(None, (entry.get("set"), entry["name"])))
                row[f"class_{rank}"] = escape_control(name)
                row[f"label_{rank}"] = entry["label"]
                row[f"probability_{rank}"] = entry["probability"]
            writer.writerow(row)


def format_table(record: dict) -> str:
    """Rank, class, label and probability; for several data sets, all together, then each."""
    lines = [escape_control(f"{record['video']}  ({record['views']} views)")]
    blocks = (
        {"": record["top"]} if "top" in record else {"joint": record["joint"], **record["sets"]}
    )
    for title, entries in blocks.items():
        lines += [f" {title}"] if title else []
        for rank, entry in enumerate(entries, 1):
            prefix = f"{entry['set']}: " if title == "joint" else ""
            name = format_line(f"{prefix}{entry['name'] or '-'}", MAX_CLASS_NAME)
            percent = 100 * entry["probability"]
            lines.append(f"{rank:4d}  {name:40s} {entry['label']:5d} {percent:7.2f} %")
    return "\n".join(lines)
