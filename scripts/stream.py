"""Labels a camera, a stream or a video while it runs.

    python scripts/stream.py --config_path Y --checkpoint_path C SOURCE
        [--labels FILE] [--top 5] [--threshold P] [--out DIR] [--window SECONDS] [--step SECONDS]
        [--fps N] [--retry SECONDS] [--save FILE.mp4] [--section.key=value ...]

SOURCE is a camera (its number), an address such as rtsp:// or http://, or a video. Prints a JSON
line for each window, or, for resnet50 and for tsm built with model.online=true, for each frame,
--fps of them in a second. Windows have --window seconds (10), and begin every --step seconds, by
default the window. --labels, --top, --threshold and --out are those of scripts/predict.py. --save
writes the frames with the present class drawn in.

Writes `NAME_stream.csv` and `NAME_stream.png`; ctrl-C ends it. The last line of stdout is one JSON
object: the mean of all results, their number, and those of dropped frames and interruptions. A
source that breaks off is opened again for up to --retry seconds (30); then the exit status is 1.
Docs: docs/streams.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

from typing import Optional

from scripts.prediction.files import list_videos
from scripts.prediction.stream import label_stream
from utils import cli, log
from utils.files import check_outputs
from utils.networks import Network
from utils.predict.model import build_model
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.live import RETRY, is_address
from utils.video.media_files import VIDEO_SUFFIXES


def main(
    network: Network,
    cfg: NetworkConfig,
    source: list[str],
    *,
    checkpoint_path: str,
    fps: Optional[cli.NonNegativeFloat] = None,
    retry: cli.NonNegativeFloat = RETRY,
    window: Optional[cli.NonNegativeFloat] = None,
    step: Optional[cli.NonNegativeFloat] = None,
    threshold: cli.Probability = 0.0,
    save: Optional[Path] = None,
    labels: str = "",
    top: cli.PositiveInt = 5,
    out: Optional[Path] = None,
) -> int:
    if step == 0:
        raise ValueError("--step must be above 0 seconds; without it, windows follow each other")
    if save and save.suffix != ".mp4":
        raise ValueError(f"--save: {save} must end in .mp4")
    if not (source[0].isdecimal() or is_address(source[0])):
        source = list_videos(source, VIDEO_SUFFIXES)
    if len(source) > 1:
        raise ValueError(f"SOURCE is one video, not {len(source)}")
    if save:
        check_outputs([save], inputs=[*source, checkpoint_path, labels], option="--save")
    log.start_log(Runtime())
    model = build_model(network, cfg=cfg, checkpoint=checkpoint_path, labels=labels)
    stream = model.stream(
        source[0],
        window=window,
        step=step,
        fps=fps or None,
        threshold=threshold,
        save=save or "",
        retry=retry,
    )
    folder = out or Path(checkpoint_path).parent / "predictions"
    summary = label_stream(model, stream=stream, video=source[0], folder=folder, top=top)
    log.print_result(summary, Runtime())
    return 1 if "error" in summary else 0


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
