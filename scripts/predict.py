#!/usr/bin/env python3
"""Predicts the classes of videos (for resnet50: images) and draws the frames that are read.

    python scripts/predict.py --checkpoint_path C VIDEO_OR_FOLDER [...] [--config_path Y]
        [--labels FILE] [--top 5] [--threshold P] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--cam] [--save FILE.mp4] [--overwrite]
        [--executor processes|dask:ADDRESS] [--part I/N] [--section.key=value ...]

A checkpoint that the zoo wrote needs no config file. A folder stands for all videos in it and in
its subfolders. Scores equal those of the network's `eval.py` for the same views. A video longer
than 30 seconds is divided into windows of 10 seconds; --window divides any video (0: one clip for
the whole video).
--step is the time from one window's start to the next, by default the window. --labels is a file
with a line for each class. --threshold leaves out classes of less than this probability; if none
remains, the class is `none`. --save writes one video with its classes drawn in.

Prints a table for every video. Writes `predictions.csv` and `predictions.jsonl`, a line for each
video, and `NAME.png` into DIR, by default `predictions` beside the checkpoint. The last line of
stdout is one JSON object: predictions, videos, failed, out, seconds. Exit status 1 if some of the
videos could not be read, 2 if none could. A command that was killed continues when it is started
again; only one process may write into DIR, except different parts.

--cam also draws what speaks for the best class: `NAME_cam.png` and, of videos, `NAME_cam.mp4`.
Docs: docs/cam.md.

`--executor dask:ADDRESS` predicts on a Dask cluster; else this process predicts. `--part I/N`
predicts part I of N of the videos, from 1 to N. When all parts have ended, run the command without
`--part`: it writes both files, and predicts what a part has left. Docs: docs/many_machines.md.

Cameras and streams: scripts/stream.py.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import shutil
import time
from typing import Any, Optional

from scripts.executors.process_pool import PROCESSES, Executor, PartOption
from scripts.executors.video_jobs import RECORDS, VideoJobs, check_errors, lock_records
from scripts.prediction.records import (
    OWN,
    PredictOptions,
    Predictor,
    check_save,
    format_table,
    list_videos,
    write_tables,
)
from utils import cli, log
from utils.files import check_folder, check_inputs, report_write_errors
from utils.inference.checkpoint import assign_class_names
from utils.inference.prediction import PREDICTIONS, make_file_names
from utils.networks import Network
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from utils.weights.checkpoint_file import open_weights


def main(
    network: Network,
    cfg: NetworkConfig,
    videos: list[str],
    *,
    checkpoint_path: str,
    labels: str = "",
    out: Optional[Path] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
    overwrite: bool = False,
    **choices: Any,
) -> int:
    start = time.monotonic()
    folder = out or Path(checkpoint_path).parent / "predictions"
    options = PredictOptions(folder, **choices)
    reads_videos = bool(network.list_annotation_files(cfg))
    videos = list_videos(videos, VIDEO_SUFFIXES if reads_videos else IMAGE_SUFFIXES)
    inputs = [*videos, checkpoint_path, labels]
    if options.save:
        if part or executor != PROCESSES or len(videos) > 1 or not reads_videos:
            raise ValueError("--save takes one VIDEO, and neither --part nor --executor")
        check_save(options.save, inputs, overwrite)
    spaces = network.list_label_spaces(cfg)
    # An error before a file is written
    assign_class_names(spaces, labels, open_weights(Path(checkpoint_path)))
    log.start_log(Runtime())
    tables = [folder / f"{PREDICTIONS}{end}" for end in (".csv", ".jsonl")]
    check_inputs([*tables, *(folder / Path(name).name for name in videos)], inputs)
    check_folder(folder, OWN)
    work = VideoJobs(network.name, cfg, checkpoint_path, Predictor, options, labels)
    jobs = list(zip(videos, make_file_names(videos)))
    hidden = sys.stdout.isatty()  # there, a table for every video shows the progress
    records = []
    with report_write_errors(folder, "--out"), lock_records(folder, PREDICTIONS, part):
        for record in work.compute_records(jobs, executor, folder, PREDICTIONS, part, hidden):
            records.append(record)
            if "error" not in record:
                print(format_table(record), flush=True)
        errors = [record["error"] for record in records if "error" in record]
        check_errors(errors, jobs, folder, PREDICTIONS)
        if not part:
            write_tables(folder, records)
            shutil.rmtree(folder / RECORDS.format(PREDICTIONS))
    result: dict[str, Any] = {"part": str(part)} if part else {"predictions": records}
    result |= {"videos": len(records), "failed": len(errors), "out": str(folder)}
    log.print_result({**result, "seconds": round(time.monotonic() - start, 2)}, Runtime())
    return 1 if errors else 0


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, PredictOptions)
