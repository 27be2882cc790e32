#!/usr/bin/env python3
"""Writes the features of videos (for resnet50: images): the input of the network's classifier.

    python scripts/extract_features.py --checkpoint_path C SOURCE [...] --out DIR [--config_path Y]
        [--per video|clip|window] [--window SECONDS] [--step SECONDS]
        [--executor processes|dask:ADDRESS] [--part I/N] [--section.key=value ...]

SOURCE is an annotation file (.txt or .csv), or videos and folders of videos. --per video, the
default: one row for each video, the mean over all test views of the config file; clip: one row for
each temporal clip, the mean over its crops; window: one row for each window, as in predict.py.

Writes `features.npy`, float32 (N, C), and `index.csv`: path, start, end (seconds) and label of each
row, in the order of the source. Label is empty if SOURCE is no list. A command that was killed
continues when it is started again. The last line of stdout is one JSON object: features (N and C),
videos, failed, out, seconds. Exit status 1 if some of the videos could not be read; they have no
row. 2 if none could.

`--executor dask:ADDRESS` works on a Dask cluster; else this process works. `--part I/N` does part I
of N, from 1 to N; then the command without `--part` joins the parts. Docs: docs/features.md.
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
from scripts.executors.video_jobs import RECORDS, VideoJobs, lock_records
from scripts.prediction.features import (
    FEATURES,
    OWN,
    TABLE,
    UNLISTED,
    FeatureExtractor,
    FeatureOptions,
    read_source,
    write_features,
)
from utils import cli, log
from utils.files import check_folder, check_inputs, report_write_errors
from utils.networks import Network
from utils.runtime import Runtime
from utils.settings import NetworkConfig


def main(
    network: Network,
    cfg: NetworkConfig,
    source: list[str],
    *,
    checkpoint_path: str,
    out: Path,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
    **choices: Any,
) -> int:
    start = time.monotonic()
    if choices.get("per") != "window" and {"window", "step"} & set(choices):
        raise ValueError("--window and --step go with --per window")
    check_inputs([out / f"{FEATURES}.npy", out / TABLE], [*source, checkpoint_path])
    check_folder(out, OWN)
    log.start_log(Runtime())
    videos = read_source(network, cfg, source)
    options = FeatureOptions(videos.head, **choices)
    work = VideoJobs(network.name, cfg, checkpoint_path, FeatureExtractor, options)
    # A video that a list has twice, with two labels, is computed once
    jobs = [
        r._replace(label=UNLISTED if r.label == UNLISTED else 0, line=0) for r in videos.records
    ]
    result: dict[str, Any] = {}
    with report_write_errors(out, "--out"), lock_records(out, FEATURES, part):
        records = work.compute_records(jobs, executor, out, FEATURES, part)
        if part:
            errors = ["error" in record for record in records]
            result = {"part": str(part), "videos": len(errors), "failed": sum(errors)}
        else:
            shape, errors = write_features(videos, records, out)
            shutil.rmtree(out / RECORDS.format(FEATURES))
            result = {"features": shape, "videos": len(jobs), "failed": len(errors)}
    seconds = round(time.monotonic() - start, 2)
    log.print_result({**result, "out": str(out), "seconds": seconds}, Runtime())
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, FeatureOptions)
