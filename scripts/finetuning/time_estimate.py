"""How long a fine-tuning will take, from a measured decode and a measured training step."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from utils.cores import count_workers
from utils.networks import Network
from utils.settings import NetworkConfig, VideoData
from utils.video.reader import VideoError

MEASURED = 3  # files whose mean is taken
LONG = 5.0  # seconds after which the rest of a video is taken to cost as much as its beginning
# Decodes of a video that its copy takes: 6.3 and 6.8 of two clips of 340 x 256 pixels.
COPYING = 6.5
COPY_READ = 0.4  # of the time in which a training reads the original: docs/measured/data_path.md
FORWARD = 1 / 3  # of a step; the rest are gradients, which a frozen backbone does not need


class Times(NamedTuple):
    """Seconds: one core decodes a file, a training step, the start of a command."""

    decode: float
    step: float
    start: float


def measure_decode(network: Network, cfg: NetworkConfig, files: Sequence[Path]) -> float:
    """Seconds in which one core decodes a video or an image, on average; broken ones count as 0.

    Only the beginning of a long video is decoded.
    """
    chosen = files[:: -(-len(files) // MEASURED)]
    seconds = 0.0
    for file in chosen:
        start = time.monotonic()
        with contextlib.suppress(VideoError), network.open_frames(cfg, str(file)) as frames:
            done = 0
            for _ in frames.in_order():
                done += 1
                if time.monotonic() - start > LONG:
                    break
            seconds += (time.monotonic() - start) * len(frames) / done
    return seconds / len(chosen)


def describe_time(
    network: Network, cfg: NetworkConfig, counts: Mapping[str, int], times: Times, has_copies: bool
) -> str:
    """`about 125 minutes in all: checking 1, copies 8, training 110, evaluation 6 (...)`.

    `counts` are the files of the lists train, val and test. On a CPU, reading and computing need
    the same cores, else they overlap.
    """
    reading = times.decode / count_workers("auto")
    is_checked = isinstance(cfg.data, VideoData)
    checking = is_checked * reading * (counts["train"] + counts["val"] + counts["test"])
    copying = has_copies * COPYING * checking
    reading *= COPY_READ if has_copies else 1
    step = times.step / cfg.data.batch
    forward = step / cfg.data.clips_per_sample
    forward *= 1 if cfg.train.freeze == "backbone" else FORWARD
    add = sum if cfg.run.device == "CPU" else max
    epochs = cfg.train.epochs
    validations = epochs // cfg.run.eval_every if cfg.run.eval_every else 0
    has_draws = cfg.train.feature_draws > 0 and cfg.train.freeze == "backbone"
    if has_draws and cfg.run.device == "CPU" and not cfg.data.mixes:  # features computed once
        epochs = min(epochs, cfg.train.feature_draws)
        validations = min(validations, 1)
    validated = validations * (counts["val"] or counts["test"])
    space = network.list_label_spaces(cfg)[0]
    training = epochs * counts["train"] * add((reading, step)) + validated * add((reading, forward))
    test = counts["test"] * add((reading, space.clips * space.crops * forward))
    parts = {"checking": checking, "copies": copying}
    parts |= {"training": times.start + training, "evaluation": times.start + test}
    shown = [f"{name} {count_minutes(seconds)}" for name, seconds in parts.items() if seconds]
    return (
        f"about {count_minutes(sum(parts.values()))} minutes in all: {', '.join(shown)} (measured: "
        f"{times.decode:.2g} s to decode a file, {times.step:.2g} s for a training step)"
    )


def count_minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}" if seconds >= 600 else f"{seconds / 60:.1f}"
