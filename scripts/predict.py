"""Predicts the classes of videos (for resnet50: images) and draws the frames that are read.

    python scripts/predict.py --config_path Y --checkpoint_path C VIDEO_OR_FOLDER [...]
        [--labels FILE] [--top 5] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--executor processes|dask:ADDRESS] [--part I/N] [--stream] [--fps N]
        [--section.key=value ...]

A folder stands for all videos in it and in its subfolders. Scores equal those of the network's
`eval.py` for the same views. A video longer than 30 seconds is
divided into windows of 10 seconds; --window divides any video (0: one clip for the whole video).
--step is the time from one window's start to the next, by default the window. --labels is a file
with a line for each class.

Prints a table for every video. Writes `predictions.csv` and `predictions.jsonl`, a line for each
video, and `NAME.png` into DIR, by default `predictions` beside the checkpoint; for windows also
`NAME.csv`, all classes over time, and `NAME_timeline.png`. The last line of stdout is one JSON
object: predictions, failed, out, seconds. Exit status 1 if some of the videos could not be read, 2
if none could.

`--executor dask:ADDRESS` predicts on a Dask cluster; else this process predicts. `--part I/N`
predicts part I of N of the videos, from 1 to N. When all parts have ended, run the command without
`--part`: it writes both files, and predicts what a part has left. Docs: docs/many_machines.md.

--stream (tsm, built with model.online=true) reads one VIDEO, or the camera of that number, frame by
frame: a JSON line for each frame, `NAME_stream.csv` and `NAME_stream.png`; ctrl-C ends it. --fps is
the number of frames per second. Docs: docs/predict.md.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.runtime import prepare_process

prepare_process()

from scripts.data.integrity import SUFFIXES
from scripts.executors.process_pool import PROCESSES, Executor, PartOption
from scripts.prediction.files import list_videos, write_predictions
from scripts.prediction.jobs import PredictSettings, run_on_cluster
from utils import cli, log, runtime
from utils.config import NetworkConfig
from utils.evaluate.predict import assign_class_names
from utils.networks import Network
from utils.runtime import Runtime

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")


def main(
    network: Network,
    cfg: NetworkConfig,
    videos: list[str],
    *,
    checkpoint_path: str,
    stream: bool = False,
    fps: Optional[cli.NonNegativeFloat] = None,
    window: Optional[cli.NonNegativeFloat] = None,
    step: Optional[cli.NonNegativeFloat] = None,
    labels: str = "",
    top: cli.PositiveInt = 5,
    out: Optional[Path] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
) -> int:
    if step == 0:
        raise ValueError("--step must be above 0 seconds; without it, windows follow each other")
    windows = window is not None or step is not None
    if (stream and (len(videos) > 1 or windows)) or (fps is not None and not stream):
        raise ValueError("--stream takes one VIDEO, --fps goes with it, --window and --step do not")
    if stream and (part or executor != PROCESSES):
        raise ValueError("--stream reads in this process: --part and --executor do not go with it")
    if not (stream and videos[0].isdecimal()):
        reads_videos = bool(network.list_annotation_files(cfg))
        videos = list_videos(videos, SUFFIXES if reads_videos else IMAGE_SUFFIXES)
    if stream and len(videos) > 1:
        raise ValueError(f"--stream takes one VIDEO, and the folder has {len(videos)}")
    heads = network.build_heads(cfg)
    assign_class_names(heads, labels)
    folder = out or Path(checkpoint_path).parent / "predictions"
    log.start_log(Runtime())
    if stream:
        rt = runtime.start(cfg.run)
        summary = network.run_stream(
            cfg,
            checkpoint_path=checkpoint_path,
            video=videos[0],
            head=heads[0],
            top=top,
            fps=fps or 0.0,
            out=folder,
        )
        log.print_result(summary, rt)
        return 0
    settings = PredictSettings(
        network.name,
        cfg=cfg,
        checkpoint_path=checkpoint_path,
        labels=labels,
        folder=folder,
        top=top,
        window=window,
        step=step,
    )
    run_jobs = partial(run_on_cluster, settings, executor)
    if executor == PROCESSES:
        run_jobs = settings.build_runner().run_jobs
    result = write_predictions(
        videos, folder=folder, run_jobs=run_jobs, settings=settings.compute_digest(), part=part
    )
    log.print_result(result, Runtime())
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
