#!/usr/bin/env python3
"""Predicts the classes of videos (for resnet50: images) and draws the frames that are read.

    python scripts/predict.py --checkpoint_path C VIDEO_OR_FOLDER [...] [--config_path Y]
        [--labels FILE] [--top 5] [--threshold P] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--cam] [--cam_class LABEL] [--save FILE.mp4] [--overwrite]
        [--executor processes|dask:ADDRESS] [--part I/N] [--section.key=value ...]

A checkpoint that the zoo wrote needs no config file. A folder stands for all videos in it and in
its subfolders. Scores equal those of the network's `eval.py` for the same views. A video longer
than 30 seconds is divided into windows of 10 seconds; --window divides any video (0: one clip for
the whole video).
--step is the time from one window's start to the next, by default the window. --labels is a file
with a line for each class. --threshold leaves out classes of less than this probability; if none
remains, the class is `none`. --save writes one video with its classes drawn in.

Prints a table for every video. Writes `predictions.csv` and `predictions.jsonl`, a line for each
video, and `NAME.png` into DIR, by default `predictions` beside the checkpoint; for windows also
`NAME.csv`, all classes over time, and `NAME_timeline.png`. The last line of stdout is one JSON
object: predictions, videos, failed, out, seconds. Exit status 1 if some of the videos could not be
read, 2 if none could. A command that was killed continues when it is started again; only one
process may write into DIR, except different parts.

--cam also draws what speaks for the best class: `NAME_cam.png` and, of videos, `NAME_cam.mp4`.
--cam_class is another class. Docs: docs/cam.md.

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

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from scripts.executors.process_pool import PROCESSES, Executor, PartOption
from scripts.executors.video_jobs import JobSettings
from scripts.prediction.files import OWN, check_save, list_videos, write_predictions
from scripts.prediction.records import PredictOptions, Predictor
from utils import cli, log
from utils.evaluate.label_space import LabelSpace, assign_class_names
from utils.files import check_folder, check_inputs
from utils.networks import Network
from utils.predict.prediction import PREDICTIONS
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES


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
    folder = out or Path(checkpoint_path).parent / "predictions"
    options = PredictOptions(folder, **choices)
    save = options.save
    reads_videos = bool(network.list_annotation_files(cfg))
    videos = list_videos(videos, VIDEO_SUFFIXES if reads_videos else IMAGE_SUFFIXES)
    if save and (part or executor != PROCESSES):
        raise ValueError("--save reads in this process; it does not go with --part, --executor")
    if save and len(videos) > 1:
        raise ValueError(f"--save takes one VIDEO, not {len(videos)}")
    if save and not reads_videos:
        raise ValueError("--save writes a video, and the network reads images: scripts/stream.py")
    if save:
        check_save(save, [*videos, checkpoint_path, labels], overwrite)
    heads = network.list_label_spaces(cfg)
    assign_class_names(heads, labels, checkpoint_path)  # an error before a video is read
    check_cam(options.cam, label=options.cam_class, path=checkpoint_path, heads=heads)
    log.start_log(Runtime())
    tables = [folder / f"{PREDICTIONS}{end}" for end in (".csv", ".jsonl")]
    inputs = [*videos, checkpoint_path, labels]
    check_inputs([*tables, *(folder / Path(name).name for name in videos)], inputs)
    check_folder(folder, OWN)
    settings = JobSettings(
        network.name,
        cfg=cfg,
        checkpoint_path=checkpoint_path,
        runner=Predictor,
        options=options,
        labels=labels,
    )
    result = write_predictions(
        videos,
        folder=folder,
        run_jobs=partial(settings.run_jobs, executor),
        settings=settings.compute_digest(),
        part=part,
    )
    log.print_result(result, Runtime())
    return 1 if result["failed"] else 0


def check_cam(cam: bool, label: Optional[int], path: str, heads: Sequence[LabelSpace]) -> None:
    """Raises ValueError if --cam or --cam_class does not fit the network or its file."""
    if label is not None and not cam:
        raise ValueError("--cam_class chooses the class of --cam: give both")
    if cam and Path(path).suffix in (".onnx", ".mindir"):
        raise ValueError(f"--cam: {path} has no gradients; give the checkpoint that it is made of")
    if label is not None and len(heads) > 1:
        raise ValueError("--cam_class: the network has several data sets; leave it out")
    if label is not None and label >= heads[0].classes:
        raise ValueError(f"--cam_class {label}: the {heads[0].classes} classes count from 0")


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, PredictOptions)
